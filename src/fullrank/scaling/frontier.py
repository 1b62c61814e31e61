"""How large the model and how much data at a number of FLOPs: of the best runs (SRT, Figure 5), and under a law.

Of the best runs: straight lines in logarithms through the records of the envelope, for parameters N, for interactions T
of the data set and for interactions seen (T times epochs). Under a law of N and T: the best metric among all N and T
that cost the budget, for FLOPs given as a function of both (`C = k N T`, or `EpochCost`, which is read from the runs).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fullrank.core.errors import UserError
from fullrank.scaling.forms import LawForm, Values, Vector
from fullrank.scaling.ladder import Ladder
from fullrank.scaling.points import envelope

Spent = Callable[[Values, Values], Values]
"""Parameters and interactions -> FLOPs, growing in both."""


BETWEEN = (1e2, 1e13)
"""Sizes that are looked at."""


@dataclass(frozen=True)
class Line:
    """A power of the FLOPs: level F^slope."""

    slope: float
    level: float
    """Its logarithm."""

    def __call__(self, flops: float | Values) -> Values:
        return np.exp(self.level + self.slope * np.log(np.atleast_1d(np.asarray(flops, float))))


@dataclass(frozen=True)
class EpochCost:
    """FLOPs of an epoch as factor N^power T, by least squares in logarithms over the runs."""

    factor: float
    power: float
    scatter: float
    """By which factor a run is off, typically (one standard deviation): runs of one size differ in shape."""

    def __call__(self, parameters: Values, data: Values) -> Values:
        return self.factor * parameters**self.power * data


def compute_frontier(ladder: Ladder, *, lower: bool = False) -> tuple[dict[str, Line], dict[str, Values]]:
    """The lines through the best runs, and their points: `flops`, `metric`, `parameters`, `data`, `seen`."""
    ladder.require("flops", "epochs", "parameters", "data")
    best = envelope(ladder, lower=lower)
    assert best.epochs is not None
    own = {
        name: np.array([getattr(ladder.traces[i], name) for i in best.run], float) for name in ("parameters", "data")
    }
    points = {"flops": best.flops, "metric": best.metric, **own, "seen": own["data"] * best.epochs}
    if len(np.unique(best.flops)) < 2:
        raise UserError(
            f"{ladder.source}: one number of FLOPs alone, through which no line goes; add runs of other cost",
            code="one-budget",
        )
    lines = {name: _line(best.flops, points[name]) for name in ("parameters", "data", "seen")}
    return lines, points


def epoch_cost(ladder: Ladder) -> EpochCost:
    """What an epoch costs, from the runs."""
    ladder.require("flops", "epochs", "parameters", "data")
    n, t = (np.array([getattr(trace, name) for trace in ladder.traces], float) for name in ("parameters", "data"))
    c = np.array([x.flops[-1] / x.epochs[-1] for x in ladder.traces if x.flops is not None and x.epochs is not None])
    line = _line(n, c / t)
    off = np.log(c / t) - np.log(line(n))
    return EpochCost(float(np.exp(line.level)), line.slope, float(np.exp(off.std())))


def optimum(
    form: LawForm, theta: Vector, flops: float, spent: Spent, *,
    data: float | None = None, between: tuple[float, float] = BETWEEN,
) -> tuple[float, float, float]:  # fmt: skip
    """Parameters, interactions and metric of the best split of a budget under a law; `data` is all there is.

    The law is evaluated on a grid of sizes `between`, then on a finer one around the best.
    """
    low, high = map(float, np.log(between))
    for _ in range(6):
        n = np.linspace(low, high, 201)
        t = _data_for(np.exp(n), flops, spent, data)
        values = form.value(theta, np.stack([n, np.log(t)], 1))
        if np.isnan(values).all():
            raise UserError(
                f"{flops:.3g} FLOPs pay for no interaction with a model of any size; give more", code="budget-too-small"
            )
        values = np.where(np.isnan(values), np.inf if form.lower else -np.inf, values)
        at = int(values.argmin() if form.lower else values.argmax())
        low, high = n[max(0, at - 2)], n[min(200, at + 2)]
    return float(np.exp(n[at])), float(t[at]), float(values[at])


def _data_for(n: Values, flops: float, spent: Spent, most: float | None) -> Values:
    """How many interactions the budget pays for at each size, by halving an interval of their logarithm."""
    low, high = np.zeros(len(n)), np.full(len(n), np.log(1e18 if most is None else most))
    for _ in range(60):
        middle = (low + high) / 2
        dear = spent(n, np.exp(middle)) > flops
        low, high = np.where(dear, low, middle), np.where(dear, middle, high)
    # a size that costs more than the budget with a single interaction is no choice
    return np.where(spent(n, np.ones(len(n))) > flops, np.nan, np.exp(low))


def _line(x: Values, y: Values) -> Line:
    slope, level = np.polyfit(np.log(x), np.log(y), 1)
    return Line(float(slope), float(level))
