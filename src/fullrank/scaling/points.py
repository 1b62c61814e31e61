"""What a law is fitted to: records of the envelope, or the best metric of each run; and what makes that impossible.

The envelope is the best metric that any run had reached at a number of FLOPs (SRT, Section 4.3, the blue line of Figure
4). Each run's metric is interpolated linearly over its FLOPs onto the union of all runs' moments (never outside of its
own first and last), the best run is taken at each, and what is no strict new record is dropped.

Differs: the paper does not say how it made its envelope; of the ways tried, this one gives its constants of Eq. 3.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from fullrank.core.errors import UserError
from fullrank.scaling.forms import LawForm, Points, Values
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
    ladder.require("flops")
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


@dataclass(frozen=True)
class FitPoints:
    x: Points
    """Logarithms of FLOPs, or of parameters and data."""
    y: Values
    run: Int[np.ndarray, "P"]
    """Place of the run that each point is of."""


def form_points(form: LawForm, ladder: Ladder) -> FitPoints:
    """The points that a form is fitted to."""
    ladder.require(*form.axes)
    if form.axes == ("flops",):
        records = envelope(ladder, lower=form.lower)
        return FitPoints(np.log(records.flops)[:, None], records.metric, records.run)
    traces = ladder.traces
    x = np.log([[float(getattr(trace, axis)) for axis in form.axes] for trace in traces])
    y = np.array([trace.metric[trace.best(lower=form.lower)] for trace in traces])
    return FitPoints(x, y, np.arange(len(traces)))


def require_points(form: LawForm, ladder: Ladder) -> FitPoints:
    """The points of a ladder that can be fitted. Raises `UserError` where it cannot."""
    least = len(form.parameters)
    if len(ladder) < least:
        raise UserError(
            f"{ladder.source} holds {len(ladder)} runs and the form {form.name!r} has {least} parameters "
            f"({', '.join(form.parameters)}): give at least {least} runs that differ, or another form",
            code="too-few-runs",
        )
    points = form_points(form, ladder)
    if np.ptp(points.y) == 0 and np.ptp(np.concatenate([trace.metric for trace in ladder.traces])) == 0:
        raise UserError(
            f"{ladder.source}: {ladder.metric} is {points.y[0]:g} everywhere, so there is no growth to fit; "
            "check that this is the metric you mean",
            code="constant-metric",
        )
    if not form.lower and points.y.max() > 1:
        raise UserError(
            f"{ladder.source}: {ladder.metric} reaches {points.y.max():g}, and a metric that the form {form.name!r} "
            "describes lies between 0 and 1: divide percentages by 100, or give a loss to the form 'loss'",
            code="metric-above-one",
        )
    if len(points.y) < least:
        raise UserError(
            f"{ladder.source}: the best of the runs make {len(points.y)} points and the form {form.name!r} has {least} "
            "parameters: give more runs, or more evaluations of each",
            code="too-few-points",
        )
    for place, axis in enumerate(form.axes):
        levels = len(np.unique(points.x[:, place]))
        if levels < 3 and least > 2:
            raise UserError(
                f"{ladder.source}: {axis} takes {levels} different value{'s' if levels > 1 else ''}, and at least 3 "
                f"are needed to see a curve: add runs that differ in {axis}, or choose another form",
                code="too-few-levels",
            )
    return points
