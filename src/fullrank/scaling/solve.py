"""Bounded least squares from many starts.

The grid of a form's starts is ranked by what is left of the metric, the best few are polished (trust region, scipy),
and the best of those counts. Nothing is drawn, so the same points give the same law.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from fullrank.scaling.forms import Form

STARTS = 12
"""Polished in a fit."""
AGAIN = 3
"""Polished in each resample, beside the fit's own solution."""


@dataclass(frozen=True)
class Solution:
    u: Float[np.ndarray, "Q"]
    """Around the centre."""
    theta: Float[np.ndarray, "Q"]
    """As reported."""
    rmse: float
    at_bound: tuple[str, ...]
    """Which of `u` ended at a bound: a name of the form's, `asymptote` of a sigmoid."""


def centre_of(x: Float[np.ndarray, "P X"]) -> Float[np.ndarray, "X"]:
    """The middle of the points; those of a fit serve its resamples, so that their parameters compare."""
    return x.mean(0)


def solve(
    form: Form,
    x: Float[np.ndarray, "P X"],
    y: Float[np.ndarray, "P"],
    centre: Float[np.ndarray, "X"],
    *,
    known: Float[np.ndarray, "Q"] | None = None,
    end: float | None = None,
) -> Solution:
    """The least squares law of points; `known` is a solution nearby, which saves starts. `end` holds the first of `u`
    (E, or a sigmoid's asymptote) at a value."""
    from scipy.optimize import least_squares

    at = x - centre
    low, high = form.bounds(at, y)
    if end is not None:
        low[0], high[0] = end - 1e-9, end + 1e-9
    inside = [np.clip(u, low, high) for u in form.starts(at, y)]
    left = [float(np.square(form.local(u, at) - y).sum()) for u in inside]
    chosen = [inside[i] for i in np.argsort(left, kind="stable")[: STARTS if known is None else AGAIN]]
    if known is not None:
        chosen.append(np.clip(known, low, high))
    scale = max(float(np.ptp(y)), 1e-12)  # the tolerances of scipy know nothing of a metric's size
    found = [
        least_squares(
            lambda u: (form.local(u, at) - y) / scale, u, jac=lambda u: form.slopes(u, at) / scale, bounds=(low, high),
            method="trf", x_scale="jac", ftol=1e-9, xtol=1e-9, gtol=1e-9, max_nfev=400,
        )
        for u in chosen
    ]  # fmt: skip
    best = min(found, key=lambda one: one.cost)
    rmse = scale * float(np.sqrt(2 * best.cost / len(y)))
    return Solution(best.x, form.reported(best.x, centre), rmse, _at_bound(form, best.x, low, high))


def _at_bound(form: Form, u: np.ndarray, low: np.ndarray, high: np.ndarray) -> tuple[str, ...]:
    names = ("asymptote", "a", "k", "x0") if form.name == "sigmoid" else form.parameters
    near = 1e-6 * np.maximum(1e-3, np.abs(u))
    return tuple(name for name, v, lo, hi, e in zip(names, u, low, high, near, strict=True) if v - lo < e or hi - v < e)
