"""The best metric that any run had reached at a number of FLOPs (SRT, Section 4.3, the blue line of Figure 4).

Each run's metric is interpolated linearly over its FLOPs onto the union of all runs' moments (never outside of its own
first and last), the best run is taken at each, and what is no strict new record is dropped.

Differs: the paper does not say how it made its envelope; of the ways tried, this one gives its constants of Eq. 3.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from fullrank.scaling.ladder import Ladder


@dataclass(frozen=True)
class Envelope:
    """Records, by rising FLOPs."""

    flops: Float[np.ndarray, "R"]
    metric: Float[np.ndarray, "R"]
    run: Int[np.ndarray, "R"]
    """Place of the run that holds the record."""
    epochs: Float[np.ndarray, "R"] | None
    """Its epochs at that moment; None where a run does not know them."""

    def __len__(self) -> int:
        return len(self.flops)


def envelope(ladder: Ladder, *, lower: bool = False) -> Envelope:
    """The envelope of runs that know their FLOPs; `lower` where a smaller metric is better."""
    ladder.need("flops")
    sign = -1.0 if lower else 1.0
    traces = ladder.traces
    grid = np.unique(np.concatenate([trace.flops for trace in traces if trace.flops is not None]))
    best, holder = np.full(len(grid), -np.inf), np.zeros(len(grid), np.int64)
    for place, trace in enumerate(traces):
        assert trace.flops is not None
        low, high = np.searchsorted(grid, trace.flops[[0, -1]])
        span = slice(low, high + 1)
        values = np.interp(grid[span], trace.flops, sign * trace.metric)
        better = values > best[span]
        best[span] = np.where(better, values, best[span])
        holder[span] = np.where(better, place, holder[span])
    before = np.concatenate([[-np.inf], np.maximum.accumulate(best)[:-1]])
    kept = best > before
    flops, run = grid[kept], holder[kept]
    epochs = None
    if all(trace.epochs is not None for trace in traces):
        epochs = np.array([
            np.interp(at, traces[i].flops, traces[i].epochs)
            for at, i in zip(flops, run, strict=True)
        ])  # fmt: skip
    return Envelope(flops, sign * best[kept], run, epochs)
