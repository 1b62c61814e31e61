"""How many directions an impression's tokens use, layer by layer (RankElastor, KDD 2026, Eq. 1, Figures 1, 2, 5 and 6).

Claim: in RankMixer a mixing raises the effective rank a little and the feed-forward after it takes it back (a damped
oscillation), in DCNv2 it only falls; RankElastor's modules raise it more and take less.

Each layer of a ranker gives a matrix [T, D] an impression: the field vectors (`embedding`), the tokens (`tokens`), each
mixing before its last norm, each feed-forward; of other rankers each layer that still has one vector a field. Of each
matrix `stable_rank` = |X|_F^2 / |X|_2^2 (the paper) and `entropy_rank` = exp of the entropy of sigma / sum sigma (the
authors' code); a zero matrix has 0. Rows, by layer (`layer` is its place from 0, `label` its name; R either rank):

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

from fullrank.analysis.diagnosis import Row, not_measured, row, rows_of
from fullrank.analysis.diagnostics import RunsFigure
from fullrank.analysis.ranking_activations import RankingActivations
from fullrank.analysis.report import Figure, Missing, Panel, Shown
from fullrank.analysis.report.draw import GREY, integer_ticks, legend, look, panel
from fullrank.analysis.report.lines import ends, plot_run
from fullrank.analysis.report.results import RunResult, Runs, readable
from fullrank.core.errors import UserError
from fullrank.ops.effective_rank import entropy_rank, stable_rank

NAME = "token_ranks"
FIGURES = ("stable_rank", "entropy_rank")
BIN = 0.1
"""Width of a bar of the histogram: the same for all layers and runs, so that they can be laid over each other."""
EDGE = 1e-4
"""Of a bar: what single precision puts this little left of an edge stands on it (n orthogonal tokens have rank n)."""
PERCENTS = (5, 25, 50, 75, 95)
NO_TOKENS = "it has one weight per value and no vectors, so an impression is no matrix"
NO_LAYERS = "behind the field vectors no layer of it gives a matrix of tokens"


def ranks(tokens: Float[Tensor, "B T D"]) -> Float[Tensor, "2 B"]:
    """Stable and entropy rank of each matrix, in float64 on the CPU. Raises `UserError` where one is not finite."""
    exact = tokens.detach().cpu().double()
    if not bool(torch.isfinite(exact).all()):
        raise UserError(
            "the model's layers give values that are not finite: its training diverged; lower training.lr",
            code="not-finite",
        )
    sigma = torch.linalg.svdvals(exact)
    return torch.stack([stable_rank(sigma), entropy_rank(sigma)])


class TokenRanks(RunsFigure):
    """Ranks of every layer, impression by impression."""

    name = NAME
    title = "Effective rank of an impression's tokens"
    shown_as = "trajectory"
    internal = True
    problem = "ranking"

    def begin(self) -> None:
        self.parts: dict[str, list[Tensor]] = {}
        """Label of a layer -> ranks [2, B] of each batch."""
        self.shapes: dict[str, tuple[int, int]] = {}

    def observe(self, batch: RankingActivations) -> None:
        for label, layer in batch.layers.items():
            self.parts.setdefault(label, []).append(ranks(layer))
            self.shapes[label] = (layer.shape[1], layer.shape[2])

    def found(self) -> dict[str, Float[np.ndarray, "2 N"]]:
        """Label of a layer -> stable and entropy rank of every impression."""
        return {name: torch.cat(parts, 1).numpy() for name, parts in self.parts.items()}

    def rows(self) -> list[Row]:
        found = self.found()
        if not found:
            return [not_measured(NAME, NO_TOKENS)]
        rows: list[Row] = []
        before: np.ndarray | None = None
        for layer, (label, both) in enumerate(found.items()):
            tokens, width = self.shapes[label]
            rows += rows_of(NAME, {"tokens": tokens, "width": width}, layer=layer, label=label)
            for at, figure in enumerate(FIGURES):
                rows += _distribution(figure, both[at], layer, label)
                if before is not None:
                    rows += _moved(figure, before[at], both[at], layer, label)
            before = both
        return rows if len(found) > 1 else [*rows, not_measured(NAME, NO_LAYERS)]

    @classmethod
    def draw(cls, there: Runs, results: Runs) -> Figure:
        """Figures 2 and 6 of RankElastor: the mean rank after each layer, with its quartiles."""
        lines = {
            figure: {one.key: dict(enumerate(layer_values(one, figure).values())) for one in there}
            for figure in FIGURES
        }
        panels = []
        for figure in FIGURES:
            word = figure.replace("_", " ")

            def paint(axes: Any, figure: str = figure) -> None:
                for one in there:
                    colour, places = look(results.index(one))["color"], range(len(lines[figure][one.key]))
                    low, high = (
                        list(layer_values(one, f"{figure}_quantile", percent).values()) for percent in (25, 75)
                    )
                    plot_run(axes, one, results, lines[figure][one.key])
                    axes.fill_between(places, low, high, color=colour, alpha=0.12, linewidth=0)
                _depth(axes, there)
                legend(axes)

            alt = f"mean {word} by layer: {ends(lines[figure])}"
            panels.append(panel(f"{cls.shown_as}-{figure}", paint, alt, x="layer (0: field vectors)", y=word))
        caption = (
            "An impression is a table of numbers behind each layer, one row a token; its rank says how many different "
            "directions the rows really use. The line is the mean over a sample of impressions, the band holds the "
            "middle half. A fall means that tokens become alike and width is wasted (collapse). The stable rank counts "
            "directions as strong as the first, the entropy rank counts softly. Models cut an impression into "
            "different numbers of tokens, so compare the course of a line before its height; the data table gives "
            "what would be the largest."
        )
        rows = tuple(
            (one.label, layer, readable(label), layer_values(one, "stable_rank")[label],
             layer_values(one, "stable_rank_rose").get(label), layer_values(one, "entropy_rank")[label],
             largest_rank(one, label))
            for one in there for layer, label in enumerate(layer_values(one, "stable_rank"))
        )  # fmt: skip
        headers = ("run", "layer", "behind", "stable rank", "share that rose", "entropy rank", "of")
        return Figure(cls.shown_as, cls.title, caption, tuple(panels), headers, rows)

    @classmethod
    def figure_of(cls, result: RunResult) -> Shown:
        """Figures 1 and 5 of RankElastor: the stable ranks of single impressions before and after each layer."""
        name, title = f"distribution-{result.key}", f"Stable rank of single impressions by layer, run {result.key}"
        bars = _bars(result)
        if not bars:
            return Missing(name, title, f"{result.name}: {result.why_missing(NAME)}.")
        labels = list(bars)
        low, high = min(min(some) for some in bars.values()), max(max(some) for some in bars.values())
        pairs: list[tuple[str, ...]] = list(zip(labels[:-1], labels[1:], strict=True)) or [(labels[0],)]
        panels = tuple(_shift(f"{name}-{place}", result, pair, bars, low, high) for place, pair in enumerate(pairs))
        caption = (
            "Each panel shows how the stable rank of single impressions is distributed before a layer (grey) and "
            "behind it (coloured). A shift to the left is a layer that makes tokens alike."
        )
        quantiles = {percent: layer_values(result, "stable_rank_quantile", percent) for percent in PERCENTS}
        rows = tuple(
            (readable(label), *(quantiles[percent].get(label) for percent in quantiles),
             layer_values(result, "stable_rank_change").get(label), layer_values(result, "stable_rank_rose").get(label))
            for label in labels
        )  # fmt: skip
        headers = ("behind", *(f"{percent} %" for percent in quantiles), "mean change", "share that rose")
        return Figure(name, title, caption, panels, headers, rows)


def _distribution(figure: str, values: Float[np.ndarray, "N"], layer: int, label: str) -> list[Row]:
    """Mean, quantiles and histogram."""
    rows = [row(NAME, figure, float(values.mean()), layer=layer, label=label)]
    for percent, value in zip(PERCENTS, np.percentile(values, PERCENTS), strict=True):
        rows.append(row(NAME, f"{figure}_quantile", float(value), layer=layer, index=percent, label=label))
    bars, counts = np.unique(np.floor(values / BIN + EDGE).astype(np.int64), return_counts=True)
    for bar, count in zip(bars, counts, strict=True):
        rows.append(row(NAME, f"{figure}_bin", float(count) / len(values), layer=layer, index=int(bar), label=label))
    return rows


def _moved(figure: str, old: np.ndarray, new: np.ndarray, layer: int, label: str) -> list[Row]:
    """Against the layer before, impression by impression; the ratio is over those whose rank was not 0."""
    some = old > 0
    ratio = float((new[some] / old[some]).mean()) if some.any() else None
    figures = {"change": float((new - old).mean()), "rose": float((new > old).mean()), "ratio": ratio}
    return rows_of(NAME, {f"{figure}_{name}": value for name, value in figures.items()}, layer=layer, label=label)


def layer_values(result: RunResult, name: str, index: int | None = None) -> dict[str, float]:
    """Label of a layer -> a figure of these rows, in order of depth."""
    return result.diagnosis.values(NAME, name, "label", index=index)


def largest_rank(result: RunResult, label: str) -> int:
    """The largest rank that there can be behind a layer: the smaller of its tokens and its width."""
    return int(min(layer_values(result, name)[label] for name in ("tokens", "width")))


def last_layer_value(result: RunResult, name: str) -> float | None:
    """A figure after the last layer."""
    return next(reversed(layer_values(result, name).values()), None)


def _shift(
    name: str, one: RunResult, pair: tuple[str, ...], bars: dict[str, dict[int, float]], low: int, high: int
) -> Panel:
    """Histograms of one layer, or of two over each other."""
    edges = [bar * BIN for bar in range(low, high + 2)]
    words = [readable(label).replace("_", " ") for label in pair]

    def paint(axes: Any) -> None:
        for column, label in enumerate(pair):
            heights = [bars[label].get(bar, 0.0) for bar in range(low, high + 1)]
            colour = look(0)["color"] if column == len(pair) - 1 else GREY
            axes.stairs(heights, edges, fill=True, alpha=0.45, color=colour, label=words[column])
        legend(axes)

    means = layer_values(one, "stable_rank")
    alt = "Shares of impressions by stable rank; means: " + "; ".join(
        f"{word} {means[label]:.3g}" for word, label in zip(words, pair, strict=True)
    )
    return panel(name, paint, alt, x="stable rank", y="share of impressions", height=2.4)


def _bars(one: RunResult) -> dict[str, dict[int, float]]:
    """Label of a layer -> bar of the histogram -> share."""
    found: dict[str, dict[int, float]] = {}
    for (label, bar), share in one.diagnosis.values(NAME, "stable_rank_bin", "label", "index").items():
        found.setdefault(label, {})[bar] = share
    return found


def _depth(axes: Any, there: Runs) -> None:
    """Names of the layers along x where all runs have the same, else whole numbers."""
    names = {tuple(layer_values(one, "stable_rank")) for one in there}
    if len(names) > 1:
        integer_ticks(axes)
        return
    words = [readable(label).replace("_", " ") for label in names.pop()]
    axes.set_xticks(range(len(words)), words, rotation=30, ha="right", fontsize=8)
