"""A ladder of runs (the metric of each over its training, the size of its model and data), and the points of a law.

Values that cannot be fitted (a metric that is not a number, FLOPs below zero) are refused here,
whatever they were read from.

A law is fitted to records of the envelope, or to the best metric of each run. The envelope is the
best metric that any run had reached at a number of FLOPs (SRT, Section 4.3, the blue line of Figure
4). Each run's metric is interpolated linearly over its FLOPs onto the union of all runs' moments
(never outside of its first and last), the best run is taken at each, and every point that is no
strict new record is dropped.

Differs: the paper does not say how it made its envelope; of the ways tried, this one
gives its constants of Eq. 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from fullrank.analysis.scaling.forms import LawForm, Points, Values
from fullrank.core.errors import UserError


@dataclass(frozen=True)
class Trace:
    """One run, with its metric at P moments of training."""

    run: str
    metric: Float[np.ndarray, "P"]
    flops: Float[np.ndarray, "_"] | None = None
    """FLOPs spent from the start to each moment, ascending."""
    epochs: Float[np.ndarray, "_"] | None = None
    """Passes over the data at each moment."""
    parameters: float | None = None
    """N of Eq. 4."""
    data: float | None = None
    """T of Eq. 4: interactions of an epoch."""
    size: float | None = None
    """Equal for models of one size: parameters without tables where they are known, else all."""
    group: str = ""
    """Name of the data set."""

    def check(self, where: str, metric: str) -> None:
        """Raise `UserError` for values that cannot be fitted; `where` begins the sentence."""
        if not len(self.metric):
            raise UserError(f"{where}: no value of {metric}; leave the run out, or evaluate it", code="no-values")
        wrong = self.metric[~np.isfinite(self.metric)]
        if len(wrong):
            raise UserError(
                f"{where}: {metric} holds {wrong[0]}, and a number is needed; leave the run out, or evaluate it again",
                code="not-finite",
            )
        for name in ("flops", "epochs", "parameters", "data", "size"):
            values = getattr(self, name)
            if values is None:
                continue
            require_positive(f"{where}: {name}", values, "correct it in the file")
            if np.ndim(values) == 0:
                continue
            if len(values) != len(self.metric):
                raise UserError(
                    f"{where}: {len(values)} {name} for {len(self.metric)} values of {metric}", code="wrong-length"
                )
            if (np.diff(values) <= 0).any():
                raise UserError(
                    f"{where}: {name} must rise from moment to moment; give those spent since the start",
                    code="not-rising",
                )

    def best(self, *, lower: bool = False) -> int:
        """Index of the moment of the best metric, the first of equal ones."""
        return int(self.metric.argmin() if lower else self.metric.argmax())


@dataclass(frozen=True)
class Ladder:
    """Runs that differ in size, data or training."""

    traces: tuple[Trace, ...]
    metric: str
    source: str = "these runs"
    """Name of the source, for messages."""
    missing: str = ""
    """How to get values that the source lacks, for messages."""

    def __len__(self) -> int:
        return len(self.traces)

    def __post_init__(self) -> None:
        for trace in self.traces:
            trace.check(f"{self.source}, run {trace.run!r}", self.metric)

    def require(self, *names: str) -> None:
        """Raise `UserError` where a run lacks one of these values."""
        for name in names:
            without = [trace.run for trace in self.traces if getattr(trace, name) is None]
            if without:
                raise UserError(
                    f"{self.source}: {len(without)} of {len(self)} runs have no {name} (the first is {without[0]!r}); "
                    + (self.missing or f"give them as `{name}` of each trace"),
                    code="missing-sizes",
                )

    def subset(self, numbers: Sequence[int]) -> Ladder:
        """The runs of these numbers, which may repeat."""
        return replace(self, traces=tuple(self.traces[i] for i in numbers))


def require_positive(name: str, values: Any, remedy: str) -> None:
    """Raise `UserError` for numbers that are not above 0, or not finite."""
    numbers = np.atleast_1d(np.asarray(values, float))
    wrong = numbers[~(np.isfinite(numbers) & (numbers > 0))]
    if len(wrong):
        raise UserError(f"{name} is {wrong[0]:g}; it must be a number above 0: {remedy}", code="not-positive")


@dataclass(frozen=True)
class Envelope:
    """Records of the metric, by rising FLOPs."""

    flops: Float[np.ndarray, "R"]
    metric: Float[np.ndarray, "R"]
    run: Int[np.ndarray, "R"]
    """Number of the run that holds the record."""
    epochs: Float[np.ndarray, "R"] | None
    """Epochs of that run at that moment; None where a run does not know them."""

    def __len__(self) -> int:
        return len(self.flops)


def envelope(ladder: Ladder, *, lower: bool = False) -> Envelope:
    """The envelope of runs that know their FLOPs; `lower` where a smaller metric is better."""
    ladder.require("flops")
    sign = -1.0 if lower else 1.0
    traces = ladder.traces
    grid = np.unique(np.concatenate([trace.flops for trace in traces if trace.flops is not None]))
    best, holder = np.full(len(grid), -np.inf), np.zeros(len(grid), np.int64)
    for number, trace in enumerate(traces):
        assert trace.flops is not None
        low, high = np.searchsorted(grid, trace.flops[[0, -1]])
        span = slice(low, high + 1)
        values = np.interp(grid[span], trace.flops, sign * trace.metric)
        better = values > best[span]
        best[span][better], holder[span][better] = values[better], number
    before = np.concatenate([[-np.inf], np.maximum.accumulate(best)[:-1]])
    record = best > before
    flops, run = grid[record], holder[record]
    epochs = None
    if all(trace.epochs is not None for trace in traces):
        epochs = np.array([np.interp(at, traces[i].flops, traces[i].epochs) for at, i in zip(flops, run, strict=True)])
    return Envelope(flops, sign * best[record], run, epochs)


@dataclass(frozen=True)
class FitPoints:
    """The points that a law is fitted to."""

    x: Points
    """Logarithms of FLOPs, or of parameters and data."""
    y: Values
    run: Int[np.ndarray, "P"]
    """Number of each point's run."""


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
    """The points of a ladder that can be fitted. Raises `UserError` for one that cannot."""
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
    for number, axis in enumerate(form.axes):
        levels = len(np.unique(points.x[:, number]))
        if levels < 3 and least > 2:
            raise UserError(
                f"{ladder.source}: {axis} takes {levels} different value{'s' if levels > 1 else ''}, and at least 3 "
                f"are needed to see a curve: add runs that differ in {axis}, or choose another form",
                code="too-few-levels",
            )
    return points
