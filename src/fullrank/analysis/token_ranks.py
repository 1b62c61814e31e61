"""How many directions an impression's tokens use, layer by layer (RankElastor, KDD 2026, Eq. 1, Figures 1, 2, 5 and 6).

Claim: in RankMixer a mixing raises the effective rank a little and the feed-forward behind it takes it back (a damped
oscillation), in DCNv2 it only falls; RankElastor's modules raise it more and take less.

Each tap of a ranker is one matrix [T, D] an impression: the field vectors (`embedding`), the tokens (`tokens`), each
mixing before its last norm, each feed-forward; of other rankers each layer that still has one vector a field. Of each
matrix `stable_rank` = |X|_F^2 / |X|_2^2 (the paper) and `entropy_rank` = exp of the entropy of sigma / sum sigma (the
authors' code); a zero matrix has 0. Rows, by tap (`layer` is its place from 0, `label` its name; R either rank):

    R                mean over the impressions               tokens, width   T and D: no rank is above the smaller
    R_quantile       `index` is the percent                  R_change        mean change since the tap before
    R_bin            share of the impressions whose R is     R_rose          share of the impressions in which it rose
                     in [index * BIN, (index + 1) * BIN)     R_ratio         mean of R over that of the tap before

Differs: the code measures one batch of the test split; here it is a sample of any split.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.analysis import Row, left_out, row
from fullrank.analysis.effective_rank import entropy_rank, stable_rank
from fullrank.analysis.ranking_reading import RankingReading
from fullrank.core.errors import UserError

NAME = "token_ranks"
FIGURES = ("stable_rank", "entropy_rank")
BIN = 0.1
"""Width of a bar of the histogram: the same for all taps and runs, so that they can be laid over each other."""
EDGE = 1e-4
"""Of a bar: what single precision puts this little left of an edge stands on it (n orthogonal tokens have rank n)."""
PERCENTS = (5, 25, 50, 75, 95)
NO_TOKENS = "it has one weight per value and no vectors, so an impression is no matrix"
NO_LAYERS = "behind the field vectors no layer of it gives a matrix of tokens"


def ranks(tokens: Float[Tensor, "B T D"]) -> Float[Tensor, "2 B"]:
    """Stable and entropy rank of each matrix, in float64 on the CPU. Raises `UserError` where one is not finite."""
    exact = tokens.detach().cpu().double()
    if not bool(torch.isfinite(exact).all()):
        raise UserError("the model's layers give values that are not finite: its training diverged; lower training.lr")
    sigma = torch.linalg.svdvals(exact)
    return torch.stack([stable_rank(sigma), entropy_rank(sigma)])


class TokenRanks:
    """Observer: ranks of every tap, impression by impression."""

    def __init__(self) -> None:
        self.parts: dict[str, list[Tensor]] = {}
        """Tap -> ranks [2, B] of each batch."""
        self.shapes: dict[str, tuple[int, int]] = {}

    def see(self, reading: RankingReading) -> None:
        for name, tap in reading.taps.items():
            self.parts.setdefault(name, []).append(ranks(tap))
            self.shapes[name] = (tap.shape[1], tap.shape[2])

    def found(self) -> dict[str, Float[np.ndarray, "2 N"]]:
        """Tap -> stable and entropy rank of every impression."""
        return {name: torch.cat(parts, 1).numpy() for name, parts in self.parts.items()}

    def rows(self) -> list[Row]:
        found = self.found()
        if not found:
            return [left_out(NAME, NO_TOKENS)]
        rows: list[Row] = []
        before: np.ndarray | None = None
        for layer, (tap, both) in enumerate(found.items()):
            tokens, width = self.shapes[tap]
            rows += [
                row(NAME, "tokens", tokens, layer=layer, label=tap),
                row(NAME, "width", width, layer=layer, label=tap),
            ]
            for place, figure in enumerate(FIGURES):
                rows += _spread(figure, both[place], layer, tap)
                if before is not None:
                    rows += _moved(figure, before[place], both[place], layer, tap)
            before = both
        return rows if len(found) > 1 else [*rows, left_out(NAME, NO_LAYERS)]


def _spread(figure: str, values: Float[np.ndarray, "N"], layer: int, tap: str) -> list[Row]:
    """Mean, quantiles and histogram."""
    rows = [row(NAME, figure, float(values.mean()), layer=layer, label=tap)]
    for percent, value in zip(PERCENTS, np.percentile(values, PERCENTS), strict=True):
        rows.append(row(NAME, f"{figure}_quantile", float(value), layer=layer, index=percent, label=tap))
    bars, counts = np.unique(np.floor(values / BIN + EDGE).astype(np.int64), return_counts=True)
    for bar, count in zip(bars, counts, strict=True):
        rows.append(row(NAME, f"{figure}_bin", float(count) / len(values), layer=layer, index=int(bar), label=tap))
    return rows


def _moved(figure: str, old: np.ndarray, new: np.ndarray, layer: int, tap: str) -> list[Row]:
    """Against the tap before, impression by impression; the ratio is over those whose rank was not 0."""
    some = old > 0
    ratio = float((new[some] / old[some]).mean()) if some.any() else None
    figures = {"change": float((new - old).mean()), "rose": float((new > old).mean()), "ratio": ratio}
    return [row(NAME, f"{figure}_{name}", value, layer=layer, label=tap) for name, value in figures.items()]
