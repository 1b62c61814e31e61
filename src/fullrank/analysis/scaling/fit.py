"""Fit a law to a ladder: least squares, intervals over resampled runs, undetermined parameters; the paper's constants.

Runs are drawn anew with replacement, their envelope or their best points are made again and the
form is fitted again; an interval holds the middle 95 % of the fits. Resample r of seed s is drawn
from (s, r) alone.

Differs: the paper gives no intervals. An envelope of resampled runs lies at or below the envelope
of all, so intervals of `sigmoid` and `linear` reach further down than up.

`unidentified` names the parameters that the runs do not determine, and the ground:

- bound: the best value lies at a bound of the search, and is that of the bound.
- interval: over resampled runs the value changes too much: the ends of the interval of a scale or an
  exponent differ by more than a factor of 3, that of another parameter is wider than the parameter is
  large (x0: than the FLOPs observed).
- condition: parameters can move together with next to no change of the curve. The number is the ratio
  of the largest to the smallest singular value of the curve's derivatives by the logarithms of the
  parameters.
- levels: an axis takes fewer than six values, on which three parameters rest.

The last two are about noise, so they are left out where the law fits the points next to
exactly (`EXACT`) and there are more points than it could always fit: an interval around such
a law is then determined.

`end_range` says how far the upper end of a law (E of size and data, a sigmoid's asymptote) can be
moved with next to no loss of fit: the end is fixed at a value and everything else is fitted again.
Resampling does not show this, since at a bound of the search all resamples may agree.

A law can predict well between its runs and have no determined parameter: curves are to be
compared, not constants.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from jaxtyping import Float
from pydantic import Field

from fullrank.analysis.scaling.forms import FORMS, LawForm, Points, Solution, Values, Vector, centre_of, solve
from fullrank.analysis.scaling.ladder import FitPoints, Ladder, form_points, require_points, require_positive
from fullrank.analysis.scaling.read import as_ladder
from fullrank.core.checks import check_choice, public
from fullrank.core.constraints import MOST_BINS, SeedNumber
from fullrank.core.errors import UserError, unknown

Resamples = Annotated[int, Field(ge=20, le=MOST_BINS)]
RESAMPLES = 200
SHARE = 0.95
"""Share of the resamples that lie in an interval."""
ENDS = ((1 - SHARE) / 2, (1 + SHARE) / 2)
RATIO = 3.0
"""Largest ratio of the ends of an interval of a determined scale."""
CONDITION = 1000.0
"""Largest condition number of determined parameters."""
TAKES_PART = 0.3
"""Least component of a parameter that takes part in a direction."""
LEVELS = 6
"""Number of values that an axis should take."""
EXACT = 1e-9
"""Largest rmse, over the range of the metric, of a law that has been recovered exactly."""
RISE = 1.1
"""Factor of the rmse that counts as next to no loss of fit."""
HALVINGS = 14
"""Steps of the bisection that finds an end of `end_range`."""

Estimate = tuple[float, float, float]
"""A value and the ends of its interval."""


@dataclass(frozen=True)
class Unidentified:
    """Parameters that the runs do not determine, and why."""

    parameters: tuple[str, ...]
    ground: str
    """`bound`, `interval`, `condition` or `levels`."""
    text: str


@dataclass(frozen=True)
class Law:
    """A form with its fitted parameters."""

    form: LawForm
    metric: str
    theta: Vector
    draws: Float[np.ndarray, "R Q"]
    """Parameters of each resample."""
    residuals: Values
    """Metric of each point less the law."""
    rmse: float
    runs: int
    unidentified: tuple[Unidentified, ...]
    observed: Mapping[str, tuple[float, float]]
    """Axis -> the smallest and the largest value of the points."""
    at_bound: tuple[str, ...]
    end_range: tuple[float, float] | None = None
    """Range of E, or of a sigmoid's asymptote, that fits about as well."""

    @property
    def parameters(self) -> dict[str, float]:
        return dict(zip(self.form.parameters, map(float, self.theta), strict=True))

    @property
    def derived(self) -> dict[str, float]:
        return {name: float(value) for name, value in self.form.derived(self.theta).items()}

    @property
    def intervals(self) -> dict[str, tuple[float, float]]:
        """Intervals of the parameters and of the quantities derived from them."""
        named = dict(zip(self.form.parameters, self.draws.T, strict=True)) | self.form.derived(self.draws)
        return {name: middle(values) for name, values in named.items()}

    def predict(self, **at: Any) -> Values:
        """The law at values of its axes: `flops=`, or `parameters=` and `data=`; numbers or arrays."""
        return self.form.value(self.theta, self._logs(at))

    def interval(self, *, one_run: bool = False, **at: Any) -> tuple[Values, Values]:
        """Lower and upper ends of the law at values of its axes, over resampled runs.

        `one_run` adds the distance of a single run from the law, drawn from the residuals.
        """
        values = self.form.value(self.draws, self._logs(at))
        if one_run:
            draw = np.random.default_rng([len(self.draws), values.shape[1]])
            values = values + draw.choice(self.residuals, values.shape)
        low, high = np.quantile(values, ENDS, axis=0)
        return low, high

    def estimate(self, **at: Any) -> Estimate:
        """`predict` and `interval` at a single point."""
        low, high = self.interval(**at)
        return float(self.predict(**at)[0]), float(low[0]), float(high[0])

    def dump(self) -> dict[str, Any]:
        """The law as JSON holds it."""
        return {
            "form": self.form.name,
            "metric": self.metric,
            "parameters": self.parameters,
            "derived": self.derived,
            "intervals": {name: list(pair) for name, pair in self.intervals.items()},
            "rmse": self.rmse,
            "runs": self.runs,
            "points": len(self.residuals),
            "resamples": len(self.draws),
            "observed": {axis: list(pair) for axis, pair in self.observed.items()},
            "end_fits_between": self.end_range,
            "not_determined": sorted({name for doubt in self.unidentified for name in doubt.parameters}),
            "warnings": [
                {"parameters": list(doubt.parameters), "ground": doubt.ground, "text": doubt.text}
                for doubt in self.unidentified
            ],
        }

    def _logs(self, at: Mapping[str, Any]) -> Points:
        """The values of the axes as points of the form. Raises `UserError` for other
        axes and values not above 0."""
        if set(at) != set(self.form.axes):
            raise UserError(
                f"a law of the form {self.form.name!r} is asked at {' and '.join(self.form.axes)}, "
                f"not at {' and '.join(at) or 'nothing'}",
                code="wrong-axes",
            )
        for axis, numbers in at.items():
            require_positive(axis, numbers, "ask a law there")
        return _log_points(self.form, at)


@public
def fit_law(
    runs: Ladder | str | Path,
    form: str = "sigmoid",
    *,
    resamples: Resamples = RESAMPLES,
    seed: SeedNumber = 0,
    tell: Any = None,
) -> Law:
    """Fit a law to runs: `sigmoid`, `linear`, `power` or `loss`.

    Raises `UserError` where the runs cannot be fitted. `tell` is called with
    (resamples done, in all).
    """
    check_choice("form", form, tuple(FORMS))
    ladder, shape = as_ladder(runs), FORMS[form]
    points = require_points(shape, ladder)
    centre = centre_of(points.x)
    best = solve(shape, points.x, points.y, centre)
    draws = []
    for r in range(resamples):
        numbers = np.random.default_rng([seed, r]).integers(len(ladder), size=len(ladder))
        sample = form_points(shape, ladder.subset(numbers.tolist()))
        levels = min(len(np.unique(column)) for column in sample.x.T)
        if len(sample.y) >= len(shape.parameters) and levels >= 2 and np.ptp(sample.y) > 0:  # else they are too alike
            draws.append(solve(shape, sample.x, sample.y, centre, known=best.u).theta)
        if tell is not None:
            tell(r + 1, resamples)
    if len(draws) < resamples / 2:
        raise UserError(
            f"{ladder.source}: of {resamples} resamples of the runs only {len(draws)} could be fitted, so no interval "
            "can be given: add runs that differ",
            code="resamples-too-alike",
        )
    residuals = points.y - shape.value(best.theta, points.x)
    observed = {
        axis: (float(np.exp(x.min())), float(np.exp(x.max()))) for axis, x in zip(shape.axes, points.x.T, strict=True)
    }
    size = len(ladder)
    law = Law(
        shape, ladder.metric, best.theta, np.stack(draws), residuals, best.rmse, size, (), observed, best.at_bound
    )
    doubts = unidentified(shape, best, law.intervals, points)
    return replace(law, unidentified=tuple(doubts), end_range=end_range(shape, points, best))


def middle(values: Float[np.ndarray, "R"]) -> tuple[float, float]:
    """The interval of draws: the middle `SHARE` of them."""
    low, high = np.quantile(values, ENDS)
    return float(low), float(high)


def unidentified(
    form: LawForm, solution: Solution, intervals: Mapping[str, tuple[float, float]], points: FitPoints
) -> Iterator[Unidentified]:
    """The parameters that the runs do not determine, ground by ground."""
    x = points.x
    exact = solution.rmse < EXACT * np.ptp(points.y) and len(points.y) > len(form.parameters)
    for name in solution.at_bound:
        text = f"{name} ended at a bound of the search: its value is the bound's, not the data's"
        yield Unidentified((name,), "bound", text)
    for name, value in zip(form.parameters, solution.theta, strict=True):
        low, high = intervals[name]
        width, why = high - low, ""
        if name in form.positive:
            if low <= 0 or high / low > RATIO:
                why = f"its ends differ by a factor of {'infinity' if low <= 0 else f'{high / low:.3g}'}"
        elif name == "x0":
            if width > np.ptp(x):
                why = f"wider than the {np.ptp(x):.3g} of ln FLOPs that were observed"
        elif width > abs(value):
            why = f"wider than the value {value:.3g} is large"
        if why:
            text = f"{name} is between {low:.3g} and {high:.3g} over resampled runs, {why}"
            yield Unidentified((name,), "interval", text)
    number, together = condition(form, solution.theta, x)
    if number > CONDITION and not exact:
        text = (
            f"{', '.join(together)} can move together with next to no change of the curve (condition {number:.2g}): "
            "compare curves, not these constants"
        )
        yield Unidentified(together, "condition", text)
    if len(form.axes) > 1:
        for axis, column, names in zip(form.axes, x.T, (("E", "A", "alpha"), ("E", "B", "beta")), strict=True):
            levels = len(np.unique(column))
            if levels < (4 if exact else LEVELS):  # three values can always be reached by three parameters
                text = f"{axis} takes {levels} values, on which {', '.join(names)} rest"
                yield Unidentified(names, "levels", text)


def condition(form: LawForm, theta: Vector, x: Points) -> tuple[float, tuple[str, ...]]:
    """Condition number of the curve, and the parameters of its least determined direction."""
    step = 1e-6
    columns = []
    for moving in np.eye(len(theta), dtype=bool):
        above, below = (np.where(moving, theta * (1 + sign * step), theta) for sign in (1, -1))
        columns.append((form.value(above, x) - form.value(below, x)) / (2 * step))
    _, s, v = np.linalg.svd(np.stack(columns, 1), full_matrices=False)
    names = tuple(name for name, part in zip(form.parameters, v[-1], strict=True) if abs(part) >= TAKES_PART)
    return float(s[0] / s[-1]) if s[-1] > 0 else float("inf"), names


def end_range(form: LawForm, points: FitPoints, solution: Solution) -> tuple[float, float] | None:
    """Range of the law's end with next to no loss of fit; None for a form without an end."""
    if form.name == "linear":
        return None
    centre, best = centre_of(points.x), float(solution.u[0])
    low, high = form.bounds(points.x - centre, points.y)

    def fits(end: float) -> bool:
        return solve(form, points.x, points.y, centre, known=solution.u, end=end).rmse <= RISE * solution.rmse

    def edge(outside: float) -> float:
        if fits(outside):
            return outside
        inside = best
        for _ in range(HALVINGS):
            half = (inside + outside) / 2
            inside, outside = (half, outside) if fits(half) else (inside, half)
        return inside

    return edge(float(low[0])), edge(float(high[0]))


SRT: dict[str, dict[str, float]] = {
    "sigmoid": {"a": 0.396, "k": 0.18, "x0": 24.44, "c": -0.247},
    "power": {"E": 0.163, "A": 18.56, "alpha": 0.376, "B": 2.9, "beta": 0.364},
}
"""Form -> the paper's parameters."""


def srt_value(form: str, **at: Any) -> np.ndarray:
    """The paper's law at values of its axes, as `Law.predict`."""
    if form not in SRT:
        raise unknown("form", form, SRT)
    shape = FORMS[form]
    return shape.value(np.array(list(SRT[form].values())), _log_points(shape, at))


def _log_points(form: LawForm, at: Mapping[str, Any]) -> Points:
    """Values of the axes, numbers or arrays, as the points of a form."""
    columns = (np.atleast_1d(np.asarray(at[axis], float)) for axis in form.axes)
    return np.log(np.stack(np.broadcast_arrays(*columns), 1))


def srt_distance(law: Law, points: int = 400) -> float:
    """The largest distance of a law from the paper's, on the range that the law was fitted to."""
    axes = [np.geomspace(*law.observed[axis], points if len(law.form.axes) == 1 else 40) for axis in law.form.axes]
    at = dict(zip(law.form.axes, (grid.ravel() for grid in np.meshgrid(*axes)), strict=True))
    return float(abs(law.predict(**at) - srt_value(law.form.name, **at)).max())
