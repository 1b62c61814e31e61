"""Ranks of tokens: how many directions an impression's tokens use, layer by layer.

RankElastor, KDD 2026, Eq. 1, Figures 1, 2, 5 and 6. Claim: in RankMixer a mixing raises the
effective rank a little and the feed-forward after it takes it back (a damped oscillation), in DCNv2
it only falls; RankElastor's modules raise it more and take less.

Each layer of a ranker gives a matrix [T, D] an impression: the field vectors (`embedding`), the
tokens (`tokens`), each mixing before its last norm, each feed-forward; of other rankers each layer
that still has one vector a field. Two ranks are measured of each matrix, 0 of a zero matrix:

    stable_rank     |X|_F^2 / |X|_2^2 (the paper)
    entropy_rank    exp of the entropy of sigma / sum sigma (the authors' code)

Rows, by layer (`layer` is its number from 0, `label` its name; R either rank):

    R                mean over the impressions               tokens, width   T and D: no rank is above the smaller
    R_quantile       `index` is the percent                  R_change        mean change since the layer before
    R_bin            share of the impressions whose R is     R_rose          share of the impressions in which it rose
                     in [index * BIN, (index + 1) * BIN)     R_ratio         mean of R over that of the layer before

Differs: the code measures one batch of the test split; here it is a sample of any split.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.analysis.activations import RankingActivations
from fullrank.analysis.diagnostics import Claim, Diagnostic, Figure, Row, RunResult, Runs, lines, readable
from fullrank.core.errors import UserError
from fullrank.ops.singular_values import entropy_rank, stable_rank

FIGURES = ("stable_rank", "entropy_rank")
BIN = 0.1
"""Width of a bar of the histogram: the same for all layers and runs, so that they can be laid over each other."""
EDGE = 1e-4
"""Tolerance, in bars: a rank that single precision puts this little left of an edge counts as on it (n orthogonal
tokens have rank n, which is an edge)."""
WORDS = {"stable_rank": "stable rank", "entropy_rank": "entropy rank"}
PERCENTS = (5, 25, 50, 75, 95)
NO_TOKENS = "it has one weight per value and no vectors, so an impression is no matrix"
NO_LAYERS = "behind the field vectors no layer of it gives a matrix of tokens"


def ranks(tokens: Float[Tensor, "B T D"]) -> Float[Tensor, "2 B"]:
    """Stable and entropy rank of each matrix, in float64 on the CPU.

    Raises `UserError` where one is not finite.
    """
    exact = tokens.detach().cpu().double()
    if not bool(torch.isfinite(exact).all()):
        raise UserError(
            "the model's layers give values that are not finite: its training diverged; lower training.lr",
            code="not-finite",
        )
    sigma = torch.linalg.svdvals(exact)
    return torch.stack([stable_rank(sigma), entropy_rank(sigma)])


class TokenRanks(Diagnostic):
    """Distribution over impressions of the ranks of every layer."""

    name = "token_ranks"
    internal = True
    problem = "ranking"
    claim = Claim(
        "Effective rank of an impression's tokens",
        "An impression is a table of numbers behind each layer, one row a token; its rank says how many different "
        "directions the rows really use. The line is the mean over a sample of impressions, the band holds the "
        "middle half. A fall means that tokens become alike and width is wasted (collapse). The stable rank counts "
        "directions as strong as the first, the entropy rank counts softly. Models cut an impression into "
        "different numbers of tokens, so compare the course of a line before its height; the data table gives "
        "what would be the largest.",
        name="trajectory",
    )
    claim_of = Claim(
        "Stable rank of single impressions by layer, {}",
        "Each panel shows how the stable rank of single impressions is distributed before a layer (grey) and "
        "behind it (coloured). A shift to the left is a layer that makes tokens alike.",
        name="distribution",
    )

    def begin(self) -> None:
        self.parts: dict[str, list[Tensor]] = {}
        """Label of a layer -> ranks [2, B] of each batch."""
        self.shapes: dict[str, tuple[int, int]] = {}
        """Label of a layer -> T and D."""

    def observe(self, batch: RankingActivations) -> None:
        for label, layer in batch.layers.items():
            self.parts.setdefault(label, []).append(ranks(layer))
            self.shapes[label] = (layer.shape[1], layer.shape[2])

    def by_layer(self) -> dict[str, Float[np.ndarray, "2 N"]]:
        """Label of a layer -> stable and entropy rank of every impression."""
        return {label: torch.cat(parts, 1).numpy() for label, parts in self.parts.items()}

    def rows(self) -> list[Row]:
        layers = self.by_layer()
        if not layers:
            return self.left_out(NO_TOKENS)
        rows: list[Row] = []
        before: np.ndarray | None = None
        for layer, (label, rank_pair) in enumerate(layers.items()):
            where: dict[str, Any] = {"layer": layer, "label": label}
            rows += self.rows_of(dict(zip(("tokens", "width"), self.shapes[label], strict=True)), **where)
            for number, figure in enumerate(FIGURES):
                rows += self._distribution(figure, rank_pair[number], where)
                if before is not None:
                    rows += self._change(figure, before[number], rank_pair[number], where)
            before = rank_pair
        return rows if len(layers) > 1 else [*rows, *self.left_out(NO_LAYERS)]

    def _distribution(self, figure: str, values: Float[np.ndarray, "N"], where: dict[str, Any]) -> list[Row]:
        """Rows of mean, quantiles and histogram."""
        rows = [self.row(figure, values.mean(), **where)]
        for percent, value in zip(PERCENTS, np.percentile(values, PERCENTS), strict=True):
            rows.append(self.row(f"{figure}_quantile", value, index=percent, **where))
        bars, counts = np.unique(np.floor(values / BIN + EDGE).astype(np.int64), return_counts=True)
        for bar, share in zip(bars.tolist(), counts / len(values), strict=True):
            rows.append(self.row(f"{figure}_bin", share, index=bar, **where))
        return rows

    def _change(self, figure: str, old: np.ndarray, new: np.ndarray, where: dict[str, Any]) -> list[Row]:
        """Rows of the change since the layer before; the ratio is over ranks above 0."""
        positive = old > 0
        ratio = (new[positive] / old[positive]).mean() if positive.any() else None
        figures = {"change": (new - old).mean(), "rose": (new > old).mean(), "ratio": ratio}
        return self.rows_of({f"{figure}_{name}": value for name, value in figures.items()}, **where)

    @classmethod
    def draw(cls, claim: Claim, there: Runs) -> Figure:
        """Figures 2 and 6 of RankElastor: the mean rank after each layer, with its quartiles."""
        same_layers = len({tuple(layer_values(run, "stable_rank")) for run in there}) == 1
        charts = []
        for figure, word in WORDS.items():
            drawn: list[tuple[Any, ...]] = []
            for run in there:
                low, high = (layer_values(run, f"{figure}_quantile", percent) for percent in (25, 75))
                drawn += [
                    (run.label, _word(label) if same_layers else layer, mean, low[label], high[label])
                    for layer, (label, mean) in enumerate(layer_values(run, figure).items())
                ]
            charts.append(lines("layer (0: field vectors)", word, interval="y", rows=drawn))
        rows: list[tuple[Any, ...]] = []
        for run in there:
            columns = [layer_values(run, name) for name in ("stable_rank", "stable_rank_rose", "entropy_rank")]
            for layer, label in enumerate(columns[0]):
                values = (column.get(label) for column in columns)
                rows.append((run.label, layer, readable(label), *values, largest_rank(run, label)))
        headers = ("run", "layer", "behind", "stable rank", "share that rose", "entropy rank", "of")
        return claim.figure(headers, rows, *charts)

    @classmethod
    def draw_of(cls, claim: Claim, result: RunResult) -> Figure:
        """Figures 1 and 5 of RankElastor: stable ranks of impressions around each layer."""
        shares = result.diagnosis.values(cls.name, "stable_rank_bin", "label", "index")
        labels = list(dict.fromkeys(label for label, _ in shares))
        bars = [bar for _, bar in shares]
        charts = []
        for pair in zip(labels[:-1], labels[1:], strict=True) if len(labels) > 1 else [labels]:
            drawn = [
                (_word(label), (bar + 0.5) * BIN, shares.get((label, bar), 0.0))
                for label in pair
                for bar in range(min(bars) - 1, max(bars) + 2)
            ]
            before = _word(pair[0]) if len(pair) > 1 else ""
            chart = lines("stable rank", "share of impressions", by="layer", beside=before, filled=True, rows=drawn)
            charts.append(chart)
        columns = {f"{percent} %": layer_values(result, "stable_rank_quantile", percent) for percent in PERCENTS}
        columns["mean change"] = layer_values(result, "stable_rank_change")
        columns["share that rose"] = layer_values(result, "stable_rank_rose")
        rows = [(readable(label), *(column.get(label) for column in columns.values())) for label in labels]
        return claim.figure(("behind", *columns), rows, *charts)


def layer_values(result: RunResult, name: str, index: int | None = None) -> dict[str, float]:
    """Label of a layer -> its figure of this name, in order of depth."""
    return result.diagnosis.values(TokenRanks.name, name, "label", index=index)


def largest_rank(result: RunResult, label: str) -> int:
    """The largest possible rank behind a layer: the smaller of its tokens and its width."""
    return int(min(layer_values(result, name)[label] for name in ("tokens", "width")))


def last_layer_value(result: RunResult, name: str) -> float | None:
    """The figure of this name behind the last layer."""
    return next(reversed(layer_values(result, name).values()), None)


def _word(label: str) -> str:
    return readable(label).replace("_", " ")
