"""Test of a law: fit it without the largest runs, and compare its prediction with them.

The largest are the runs of the largest data set, or of the largest size. A form of FLOPs predicts
the records that the held-out runs hold in the envelope of all runs, a form of size and data the
best metric of each. The error is compared with that of no law at all: the metric of the nearest
point that was fitted.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fullrank.analysis.scaling.fit import RESAMPLES, Law, fit_law
from fullrank.analysis.scaling.forms import FORMS, Points, Values
from fullrank.analysis.scaling.ladder import Ladder, form_points
from fullrank.analysis.scaling.read import as_ladder
from fullrank.core.errors import UserError

By = Literal["data", "size"]


@dataclass(frozen=True)
class HeldOut:
    """Runs that a law was fitted without, and its predictions."""

    by: By
    level: float
    """Size or data of the runs that were held out."""
    runs: int
    law: Law
    """The law of the other runs."""
    x: Points
    measured: Values
    predicted: Values
    low: Values
    high: Values
    """Ends of the interval of a single run."""
    nearest: Values
    """Metric of the nearest fitted point."""

    @property
    def error(self) -> Values:
        return self.predicted - self.measured

    @property
    def inside(self) -> float:
        """Share of the points within their intervals."""
        return float(((self.measured >= self.low) & (self.measured <= self.high)).mean())

    def dump(self) -> dict[str, Any]:
        return {
            "without_the_largest": self.by,
            "level": self.level,
            "runs": self.runs,
            "points": len(self.measured),
            "rmse": _rms(self.error),
            "bias": float(self.error.mean()),
            "largest_error": float(abs(self.error).max()),
            "relative_error": float((abs(self.error) / np.maximum(abs(self.measured), 1e-12)).mean()),
            "inside_interval": self.inside,
            "rmse_of_nearest": _rms(self.nearest - self.measured),
            "parameters": self.law.parameters,
        }


def hold_out(
    runs: Ladder | str | Path,
    form: str = "sigmoid",
    by: By = "data",
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
    tell: Any = None,
) -> HeldOut:
    """Fit a law without the largest runs and predict them.

    Raises `UserError` where nothing is left to fit or to predict.
    """
    ladder = as_ladder(runs)
    ladder.require(by)
    levels = np.array([float(getattr(trace, by)) for trace in ladder.traces])
    largest = float(levels.max())
    smaller = np.flatnonzero(levels < largest).tolist()
    if not smaller:
        raise UserError(
            f"{ladder.source}: all runs have {by} {largest:g}, so there is none to hold out", code="nothing-held-out"
        )
    rest = ladder.subset(smaller)
    law = fit_law(rest, form, resamples=resamples, seed=seed, tell=tell)
    points, fitted = form_points(FORMS[form], ladder), form_points(FORMS[form], rest)
    is_held_out = np.isin(points.run, np.flatnonzero(levels == largest))
    if not is_held_out.any():
        raise UserError(
            f"{ladder.source}: the runs of {by} {largest:g} hold no record, so there is none to predict",
            code="no-held-out-record",
        )
    x, measured = points.x[is_held_out], points.y[is_held_out]
    at = dict(zip(law.form.axes, np.exp(x).T, strict=True))
    low, high = law.interval(one_run=True, **at)
    nearest = fitted.y[np.square(x[:, None] - fitted.x[None]).sum(2).argmin(1)]
    return HeldOut(by, largest, len(ladder) - len(rest), law, x, measured, law.predict(**at), low, high, nearest)


def _rms(values: Values) -> float:
    return float(np.sqrt(np.square(values).mean()))
