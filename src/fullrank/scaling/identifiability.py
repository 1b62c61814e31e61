"""Which parameters of a law the runs do not determine, and on what ground that is said.

- bound: the best value lies at a bound of the search, so it tells of the bound.
- interval: over resampled runs the value changes too much: the ends of the interval of a scale or an exponent differ by
  more than a factor of 3, that of another parameter is wider than the parameter is large (x0: than the FLOPs observed).
- condition: parameters can move together with next to no change of the curve. The number is the ratio of the largest to
  the smallest singular value of the curve's derivatives by the logarithms of the parameters.
- levels: an axis takes fewer than six values, on which three parameters rest.

The last two are about noise, so they are left out where the law leaves next to nothing of the points (`EXACT`) and
there are more of them than it could always reach: what an interval around such a law holds is determined.

`end_range` says how far the upper end of a law (E of size and data, a sigmoid's asymptote) can be moved with next to no
loss of fit: the end is held at a value and everything else is fitted again. Resampling does not show this, since at a
bound of the search all resamples may agree.

A law can predict well between its runs and have no determined parameter: curves are to be compared, not constants.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from fullrank.scaling.forms import LawForm, Solution, centre_of, solve
from fullrank.scaling.points import FitPoints

RATIO = 3.0
"""Ends of an interval that still count as one value."""
CONDITION = 1000.0
"""From here on the direction is named."""
SHARE = 0.3
"""A parameter takes part in a direction from this component on."""
LEVELS = 6
"""Values that an axis should take."""
EXACT = 1e-9
"""Of the range of the metric: a law with a smaller rmse has been recovered."""


@dataclass(frozen=True)
class Unidentified:
    parameters: tuple[str, ...]
    ground: str
    """`bound`, `interval`, `condition` or `levels`."""
    text: str


def unidentified(
    form: LawForm, found: Solution, intervals: Mapping[str, tuple[float, float]], points: FitPoints
) -> tuple[Unidentified, ...]:
    """What is not determined."""
    x = points.x
    exact = found.rmse < EXACT * np.ptp(points.y) and len(points.y) > len(form.parameters)
    made = [
        Unidentified(
            (name,), "bound", f"{name} ended at a bound of the search: its value is the bound's, not the data's"
        )
        for name in found.at_bound
    ]
    for name, value in zip(form.parameters, found.theta, strict=True):
        low, high = intervals[name]
        if name in form.positive and (low <= 0 or high / low > RATIO):
            by = "infinity" if low <= 0 else f"{high / low:.3g}"
            made.append(_wide(name, low, high, f"its ends differ by a factor of {by}"))
        elif name == "x0" and high - low > np.ptp(x):
            made.append(_wide(name, low, high, f"wider than the {np.ptp(x):.3g} of ln FLOPs that were observed"))
        elif name not in form.positive and name != "x0" and high - low > abs(value):
            made.append(_wide(name, low, high, f"wider than the value {value:.3g} is large"))
    number, together = condition(form, found.theta, x)
    if number > CONDITION and not exact:
        text = (
            f"{', '.join(together)} can move together with next to no change of the curve (condition {number:.2g}): "
            "compare curves, not these constants"
        )
        made.append(Unidentified(together, "condition", text))
    if len(form.axes) > 1:
        for place, axis in enumerate(form.axes):
            levels, on = len(np.unique(x[:, place])), ("E", *(("A", "alpha"), ("B", "beta"))[place])
            if levels < (4 if exact else LEVELS):  # three can always be reached by three parameters
                text = f"{axis} takes {levels} values, on which {', '.join(on)} rest"
                made.append(Unidentified(on, "levels", text))
    return tuple(made)


def condition(
    form: LawForm, theta: Float[np.ndarray, "Q"], x: Float[np.ndarray, "P X"]
) -> tuple[float, tuple[str, ...]]:
    """How much less the curve tells of the least determined direction than of the best, and who takes part in it."""
    step = 1e-6
    columns = []
    for place, value in enumerate(theta):
        moved = [theta.copy(), theta.copy()]
        for sign, one in zip((1, -1), moved, strict=True):
            one[place] = value * (1 + sign * step)
        columns.append((form.value(moved[0], x) - form.value(moved[1], x)) / (2 * step))
    _, s, v = np.linalg.svd(np.stack(columns, 1), full_matrices=False)
    names = tuple(name for name, part in zip(form.parameters, v[-1], strict=True) if abs(part) >= SHARE)
    return float(s[0] / s[-1]) if s[-1] > 0 else float("inf"), names


def _wide(name: str, low: float, high: float, why: str) -> Unidentified:
    return Unidentified((name,), "interval", f"{name} is between {low:.3g} and {high:.3g} over resampled runs, {why}")


RISE = 1.1
"""Of the rmse, that counts as next to none."""
HALVINGS = 14


def end_range(form: LawForm, points: FitPoints, found: Solution) -> tuple[float, float] | None:
    """Between which values the end may lie; None for a form without one. `found` is the law's own solution."""
    if form.name == "linear":
        return None
    centre, best = centre_of(points.x), float(found.u[0])
    low, high = form.bounds(points.x - centre, points.y)

    def fits(end: float) -> bool:
        return solve(form, points.x, points.y, centre, known=found.u, end=end).rmse <= RISE * found.rmse

    def edge(outside: float) -> float:
        if fits(outside):
            return outside
        inside = best
        for _ in range(HALVINGS):
            middle = (inside + outside) / 2
            inside, outside = (middle, outside) if fits(middle) else (inside, middle)
        return inside

    return edge(float(low[0])), edge(float(high[0]))
