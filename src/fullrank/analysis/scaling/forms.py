"""The forms of a law: sigmoid (SRT, Eq. 3) and line in ln FLOPs (Figure 6), power law of size and data (Eq. 4), loss.

    sigmoid   a / (1 + exp(-k (ln F - x0))) + c
    linear    slope ln F + intercept
    power     E - A / N^alpha - B / T^beta        E between 0 and 1, A and B not below 0
    loss      E + A / N^alpha + B / T^beta        (Hoffmann et al., arXiv:2203.15556)

Each is solved around the middle of the points (F, N and T over their geometric means), where its
parameters are of the size of the metric, and then written as above. ln is natural: the paper's
"30.7" is the ln of its 2.15e13 FLOPs.

`solve` is bounded least squares from many starts: the grid of a form's starts is ranked by squared
residuals, the best few are polished (trust region, scipy), and the best of those counts. Nothing is
drawn at random, so the same points give the same law.

Differs: a sigmoid's asymptote a + c is at most 1 and its a at most 2, since the metrics lie between
0 and 1; the paper names no bounds for Eq. 3 and E >= 0 for Eq. 4. Exponents stay from 0.001 to 3.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

Vector = Float[np.ndarray, "Q"]
"""The Q parameters of a law."""
Several = Float[np.ndarray, "*r _"]
"""Parameters, or values: a row for each of several draws, or a single row."""
Points = Float[np.ndarray, "P X"]
"""Logarithms of the coordinates of P points."""
Centre = Float[np.ndarray, "X"]
Values = Float[np.ndarray, "P"]
Slopes = Float[np.ndarray, "P Q"]


@dataclass(frozen=True)
class LawForm(ABC):
    """A family of curves: `theta` are its parameters, `u` those around a centre."""

    name: str
    parameters: tuple[str, ...]
    """Names, in the order of `theta`."""
    axes: tuple[str, ...]
    """Quantities that the law is a function of."""
    lower: bool = False
    """Whether smaller values are better."""
    positive: frozenset[str] = frozenset()
    """Parameters that are scales: their intervals are judged by the ratio of the ends."""

    @abstractmethod
    def value(self, theta: Several, x: Points) -> Several:
        """The law at points: parameters [*r Q] -> values [*r P]."""

    def local(self, u: Vector, x: Points) -> Values:
        """The law from parameters around a centre, at points less that centre."""
        return self.value(u, x)

    @abstractmethod
    def jacobian(self, u: Vector, x: Points) -> Slopes:
        """Derivatives of `local` by `u`."""

    @abstractmethod
    def reported(self, u: Vector, centre: Centre) -> Vector:
        """Convert `u` to `theta`."""

    @abstractmethod
    def bounds(self, x: Points, y: Values) -> tuple[Vector, Vector]:
        """Lower and upper bounds of `u`."""

    @abstractmethod
    def starts(self, x: Points, y: Values) -> Iterator[Vector]:
        """Starts of `u`: a grid of nonlinear parameters, the least squares of linear ones."""

    def derived(self, theta: Several) -> dict[str, Any]:
        """Quantities computed from the parameters that are better determined than these."""
        return {}


class Linear(LawForm):
    def value(self, theta: Several, x: Points) -> Several:
        return theta[..., :1] * x[:, 0] + theta[..., 1:]

    def jacobian(self, u: Vector, x: Points) -> Slopes:
        return np.stack([x[:, 0], np.ones(len(x))], 1)

    def reported(self, u: Vector, centre: Centre) -> Vector:
        return np.array([u[0], u[1] - u[0] * centre[0]])

    def bounds(self, x: Points, y: Values) -> tuple[Vector, Vector]:
        return np.full(2, -np.inf), np.full(2, np.inf)

    def starts(self, x: Points, y: Values) -> Iterator[Vector]:
        yield np.linalg.lstsq(self.jacobian(np.zeros(2), x), y, rcond=None)[0]


class Sigmoid(LawForm):
    """u = asymptote, a, k, x0."""

    def value(self, theta: Several, x: Points) -> Several:
        a, k, x0, c = (theta[..., i : i + 1] for i in range(4))
        return a * _logistic(k * (x[:, 0] - x0)) + c

    def local(self, u: Vector, x: Points) -> Values:
        return u[0] - u[1] * _logistic(-u[2] * (x[:, 0] - u[3]))

    def jacobian(self, u: Vector, x: Points) -> Slopes:
        at = x[:, 0] - u[3]
        below = _logistic(-u[2] * at)
        bend = u[1] * below * (1 - below)
        return np.stack([np.ones(len(x)), -below, bend * at, -bend * u[2]], 1)

    def reported(self, u: Vector, centre: Centre) -> Vector:
        return np.array([u[1], u[2], u[3] + centre[0], u[0] - u[1]])

    def bounds(self, x: Points, y: Values) -> tuple[Vector, Vector]:
        return np.array([0.0, 1e-6, 1e-3, -60.0]), np.array([1.0, 2.0, 20.0, 60.0])

    def starts(self, x: Points, y: Values) -> Iterator[Vector]:
        low, high = x[:, 0].min(), x[:, 0].max()
        for k in np.geomspace(0.5, 40, 8) / (high - low):
            for x0 in np.linspace(low - (high - low), high + (high - low), 9):
                below = _logistic(-k * (x[:, 0] - x0))
                off = below - below.mean()
                a = -float(off @ y) / max(float(off @ off), 1e-30)
                yield np.array([y.mean() + a * below.mean(), a, k, x0])

    def derived(self, theta: Several) -> dict[str, Any]:
        return {"asymptote": theta[..., 0] + theta[..., 3]}


class Power(LawForm):
    """u = E, A / N0^alpha, alpha, B / T0^beta, beta; N0 and T0 are the centre."""

    def value(self, theta: Several, x: Points) -> Several:
        e, a, alpha, b, beta = (theta[..., i : i + 1] for i in range(5))
        lost = a * np.exp(-alpha * x[:, 0]) + b * np.exp(-beta * x[:, 1])
        return e + lost if self.lower else e - lost

    def jacobian(self, u: Vector, x: Points) -> Slopes:
        n, t = np.exp(-u[2] * x[:, 0]), np.exp(-u[4] * x[:, 1])
        lost = np.stack([n, -u[1] * x[:, 0] * n, t, -u[3] * x[:, 1] * t], 1)
        return np.concatenate([np.ones((len(x), 1)), lost if self.lower else -lost], 1)

    def reported(self, u: Vector, centre: Centre) -> Vector:
        return np.array([u[0], u[1] * np.exp(u[2] * centre[0]), u[2], u[3] * np.exp(u[4] * centre[1]), u[4]])

    def bounds(self, x: Points, y: Values) -> tuple[Vector, Vector]:
        top = float(y.max()) if self.lower else 1.0
        return np.array([0.0, 0.0, 1e-3, 0.0, 1e-3]), np.array([top, np.inf, 3.0, np.inf, 3.0])

    def starts(self, x: Points, y: Values) -> Iterator[Vector]:
        for alpha in EXPONENTS:
            for beta in EXPONENTS:
                columns = self.jacobian(np.array([0, 0, alpha, 0, beta]), x)[:, [0, 1, 3]]
                e, a, b = np.linalg.lstsq(columns, y, rcond=None)[0]
                yield np.array([e, a, alpha, b, beta])


EXPONENTS = (0.005, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5)
LAW = ("E", "A", "alpha", "B", "beta")
SCALES = frozenset(LAW[1:])
FORMS: dict[str, LawForm] = {
    "sigmoid": Sigmoid("sigmoid", ("a", "k", "x0", "c"), ("flops",), positive=frozenset({"a", "k"})),
    "linear": Linear("linear", ("slope", "intercept"), ("flops",)),
    "power": Power("power", LAW, ("parameters", "data"), positive=SCALES),
    "loss": Power("loss", LAW, ("parameters", "data"), lower=True, positive=SCALES),
}


def _logistic(x: np.ndarray) -> np.ndarray:
    return 0.5 * (1 + np.tanh(0.5 * x))


STARTS = 12
"""Starts that are polished in a fit."""
AGAIN = 3
"""Starts that are polished in a resample, beside the solution of the fit."""


@dataclass(frozen=True)
class Solution:
    u: Vector
    """Parameters around the centre."""
    theta: Vector
    """Parameters as reported."""
    rmse: float
    at_bound: tuple[str, ...]
    """Names of the parameters that ended at a bound of `u`; `asymptote` for that of a sigmoid."""


def centre_of(x: Points) -> Centre:
    """The middle of the points; that of a fit serves its resamples."""
    return x.mean(0)


def solve(
    form: LawForm,
    x: Points,
    y: Values,
    centre: Centre,
    *,
    known: Vector | None = None,
    end: float | None = None,
) -> Solution:
    """Fit a form to points by least squares.

    `known` is a solution nearby, which saves starts. `end` fixes the first of `u` (E, or a
    sigmoid's asymptote) at a value.
    """
    from scipy.optimize import least_squares

    at = x - centre
    low, high = form.bounds(at, y)
    if end is not None:
        low[0], high[0] = end - 1e-9, end + 1e-9
    starts = [np.clip(u, low, high) for u in form.starts(at, y)]
    squares = [float(np.square(form.local(u, at) - y).sum()) for u in starts]
    chosen = [starts[i] for i in np.argsort(squares, kind="stable")[: STARTS if known is None else AGAIN]]
    if known is not None:
        chosen.append(np.clip(known, low, high))
    scale = max(float(np.ptp(y)), 1e-12)  # the tolerances of scipy know nothing of a metric's size
    fits = [
        least_squares(
            lambda u: (form.local(u, at) - y) / scale,
            u,
            jac=lambda u: form.jacobian(u, at) / scale,
            bounds=(low, high),
            method="trf",
            x_scale="jac",
            ftol=1e-9,
            xtol=1e-9,
            gtol=1e-9,
            max_nfev=400,
        )
        for u in chosen
    ]
    best = min(fits, key=lambda fit: fit.cost)
    rmse = scale * float(np.sqrt(2 * best.cost / len(y)))
    near = 1e-6 * np.maximum(1e-3, np.abs(best.x))
    names = ("asymptote", "a", "k", "x0") if form.name == "sigmoid" else form.parameters
    at_bound = np.array(names)[(best.x - low < near) | (high - best.x < near)]
    return Solution(best.x, form.reported(best.x, centre), rmse, tuple(at_bound.tolist()))
