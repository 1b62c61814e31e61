"""How far the upper end of a law can be moved with next to no loss of fit: E of size and data, a sigmoid's asymptote.

The end is held at a value and everything else is fitted again. The range reaches as far as the rmse is at most a tenth
above the least; its edges are found by halving. Resampling does not show this: at a bound of the search all resamples
may agree.
"""

from __future__ import annotations

from fullrank.scaling.forms import Form
from fullrank.scaling.points import Points
from fullrank.scaling.solve import Solution, centre_of, solve

RISE = 1.1
"""Of the rmse, that counts as next to none."""
HALVINGS = 14


def end_range(form: Form, points: Points, found: Solution) -> tuple[float, float] | None:
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
