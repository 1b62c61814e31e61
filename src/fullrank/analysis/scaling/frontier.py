"""Split of a budget of FLOPs between model and data: by the best runs (SRT, Figure 5), and under a law.

Best runs: straight lines in logarithms through the records of the envelope, for parameters N, for
interactions T of the data set and for interactions seen (T times epochs). Under a law of N and T:
the best metric among all N and T that cost the budget, for FLOPs given as a function of both (`C =
k N T`, or `EpochCost`, which is fitted to the runs).

`advise` recommends for a number of FLOPs F: size N, data T, epochs, and the metric to expect,
each with an interval. N and T are those of the best runs at such a budget
(`compute_frontier`), the epochs are F / cost(N, T). The metric is the sigmoid's at F; of a
loss, and where there is less data than the best runs had, the law's at N and T. The choice of
the law of size and data is given too, and may differ: the law need not be determined
(`Law.unidentified`). Intervals are over resampled runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from jaxtyping import Float
from pydantic import Field

from fullrank.analysis.scaling.fit import RESAMPLES, Estimate, Law, Resamples, fit_law, middle
from fullrank.analysis.scaling.forms import LawForm, Values, Vector
from fullrank.analysis.scaling.ladder import Ladder, envelope
from fullrank.analysis.scaling.read import as_ladder
from fullrank.core.checks import check_choice, public
from fullrank.core.constraints import SeedNumber
from fullrank.core.errors import UserError

Spent = Callable[[Values, Values], Values]
"""Parameters and interactions -> FLOPs, growing in both."""
BETWEEN = (1e2, 1e13)
"""Smallest and largest size that is considered."""


@dataclass(frozen=True)
class Line:
    """A power of the FLOPs: level F^slope."""

    slope: float
    level: float
    """Logarithm of the level."""

    def __call__(self, flops: float | Values) -> Values:
        return np.exp(self.level + self.slope * np.log(np.atleast_1d(np.asarray(flops, float))))


@dataclass(frozen=True)
class EpochCost:
    """FLOPs of an epoch as factor N^power T, by least squares in logarithms over the runs."""

    factor: float
    power: float
    scatter: float
    """Typical factor (one standard deviation) between a run and the fit: runs of one size differ in shape."""

    def __call__(self, parameters: Values, data: Values) -> Values:
        return self.factor * parameters**self.power * data


def compute_frontier(ladder: Ladder, *, lower: bool = False) -> tuple[dict[str, Line], dict[str, Values]]:
    """The lines through the best runs, and their points, by the names of quantities."""
    ladder.require("flops", "epochs", "parameters", "data")
    best = envelope(ladder, lower=lower)
    assert best.epochs is not None
    points = {"flops": best.flops, "metric": best.metric}
    for name in ("parameters", "data"):
        points[name] = np.array([getattr(ladder.traces[i], name) for i in best.run], float)
    points["seen"] = points["data"] * best.epochs
    if len(np.unique(best.flops)) < 2:
        raise UserError(
            f"{ladder.source}: one number of FLOPs alone, through which no line goes; add runs of other cost",
            code="one-budget",
        )
    lines = {name: _line(best.flops, points[name]) for name in ("parameters", "data", "seen")}
    return lines, points


def epoch_cost(ladder: Ladder) -> EpochCost:
    """Fit the cost of an epoch to the runs."""
    ladder.require("flops", "epochs", "parameters", "data")
    n, t = (np.array([getattr(trace, name) for trace in ladder.traces], float) for name in ("parameters", "data"))
    c = np.array([x.flops[-1] / x.epochs[-1] for x in ladder.traces if x.flops is not None and x.epochs is not None])
    line = _line(n, c / t)
    residuals = np.log(c / t) - np.log(line(n))
    return EpochCost(float(np.exp(line.level)), line.slope, float(np.exp(residuals.std())))


def optimum(
    form: LawForm,
    theta: Vector,
    flops: float,
    spent: Spent,
    *,
    data: float | None = None,
    between: tuple[float, float] = BETWEEN,
) -> tuple[float, float, float]:
    """Parameters, interactions and metric of the best split of a budget under a law; `data` limits the interactions.

    The law is evaluated on a grid of sizes `between`, then five times on a finer one around the
    best.
    """
    low, high = map(float, np.log(between))
    for _ in range(6):
        n = np.linspace(low, high, 201)
        t = _data_for(np.exp(n), flops, spent, data)
        values = form.value(theta, np.stack([n, np.log(t)], 1))
        if np.isnan(values).all():
            raise _too_small(flops)
        values = np.where(np.isnan(values), np.inf if form.lower else -np.inf, values)
        at = int(values.argmin() if form.lower else values.argmax())
        low, high = n[max(0, at - 2)], n[min(200, at + 2)]
    return float(np.exp(n[at])), float(t[at]), float(values[at])


def _data_for(n: Values, flops: float, spent: Spent, most: float | None) -> Values:
    """Interactions that the budget pays for at each size, by bisection of their logarithm."""
    low, high = np.zeros(len(n)), np.full(len(n), np.log(1e18 if most is None else most))
    for _ in range(60):
        half = (low + high) / 2
        dear = spent(n, np.exp(half)) > flops
        low, high = np.where(dear, low, half), np.where(dear, half, high)
    # a size that costs more than the budget with a single interaction is no choice
    return np.where(spent(n, np.ones(len(n))) > flops, np.nan, np.exp(low))


def _line(x: Values, y: Values) -> Line:
    slope, level = np.polyfit(np.log(x), np.log(y), 1)
    return Line(float(slope), float(level))


@dataclass(frozen=True)
class Advice:
    """A recommended training for a budget."""

    flops: float
    parameters: Estimate
    data: Estimate
    epochs: Estimate
    metric: Estimate
    """Metric to expect of the best run at these FLOPs."""
    by_law: dict[str, Estimate]
    """Parameters, data and metric by the law of size and data, at these epochs."""
    law: Law
    notes: tuple[str, ...]
    """Warnings about the advice."""

    def dump(self) -> dict[str, Any]:
        names = ("parameters", "data", "epochs", "metric")
        return {
            "flops": self.flops,
            "metric_name": self.law.metric,
            **{name: _dump(getattr(self, name)) for name in names},
            "by_law": {"form": self.law.form.name, **{name: _dump(r) for name, r in self.by_law.items()}},
            "notes": list(self.notes),
        }


@public
def advise(
    runs: Ladder | str | Path,
    flops: Annotated[float, Field(gt=0, lt=math.inf)],
    *,
    form: str = "power",
    data: Annotated[float, Field(ge=1, lt=math.inf)] | None = None,
    resamples: Resamples = RESAMPLES,
    seed: SeedNumber = 0,
    tell: Any = None,
) -> Advice:
    """Recommend size, data and epochs for a budget of `flops`.

    `data` is the number of interactions at hand; `form` is `loss` where a smaller metric is better.
    Raises `UserError` where the runs lack FLOPs, epochs, parameters or data, or cannot be fitted.
    """
    check_choice("form", form, ("power", "loss"))
    ladder = as_ladder(runs)
    law = fit_law(ladder, form, resamples=resamples, seed=seed, tell=tell)
    lower = law.form.lower
    lines, _ = compute_frontier(ladder, lower=lower)
    choices = []
    for r in range(resamples):
        numbers = np.random.default_rng([seed, r]).integers(len(ladder), size=len(ladder)).tolist()
        try:
            choices.append(_choice(ladder.subset(numbers), flops, data, lower))
        except UserError:
            continue  # the same run was drawn over and over, which no line goes through
    n, t, epochs = _estimates(_choice(ladder, flops, data, lower), np.array(choices))
    cost = epoch_cost(ladder)

    def spent(size: Values, seen: Values) -> Values:
        return epochs[0] * cost(size, seen)

    best = optimum(law.form, law.theta, flops, spent, data=data)
    draws = np.array([optimum(law.form, theta, flops, spent, data=data) for theta in law.draws])
    by_law = dict(zip(("parameters", "data", "metric"), _estimates(best, draws), strict=True))
    wanted = float(lines["data"](flops)[0])
    short = data is not None and wanted > data
    if lower or short:
        metric = law.estimate(parameters=n[0], data=t[0])
        budgets = np.concatenate([trace.flops for trace in ladder.traces if trace.flops is not None])
        observed = float(budgets.min()), float(budgets.max())
    else:
        curve = fit_law(ladder, "sigmoid", resamples=resamples, seed=seed, tell=tell)
        metric, observed = curve.estimate(flops=flops), curve.observed["flops"]
    advice = Advice(flops, n, t, epochs, metric, by_law, law, ())
    return replace(advice, notes=tuple(_notes(advice, ladder, observed, cost.scatter, wanted if short else None)))


def _choice(ladder: Ladder, flops: float, data: float | None, lower: bool) -> Estimate:
    """N, T and epochs of the best runs at a budget."""
    lines, _ = compute_frontier(ladder, lower=lower)
    n, t = float(lines["parameters"](flops)[0]), float(lines["data"](flops)[0])
    seen = flops / float(epoch_cost(ladder)(np.array([n]), np.ones(1))[0])
    if seen < 1:
        raise _too_small(flops)
    t = min(t, seen, np.inf if data is None else data)  # less than one epoch: less data
    return n, t, seen / t


def _notes(
    advice: Advice, ladder: Ladder, observed: tuple[float, float], scatter: float, wanted: float | None
) -> Iterator[str]:
    """Warnings: of extrapolation, of too little data (`wanted`), of an unsure law."""
    law, flops, epochs = advice.law, advice.flops, advice.epochs[0]
    if not observed[0] <= flops <= observed[1]:
        yield (
            f"{flops:.3g} FLOPs are outside of the {observed[0]:.3g} to {observed[1]:.3g} that the runs spent: this "
            "is an extrapolation, and its interval knows nothing of what changes out there"
        )
    most = max(trace.epochs[-1] for trace in ladder.traces if trace.epochs is not None)
    if epochs > 1.001 * most:
        yield f"{epochs:.3g} epochs are more than any run had ({most:g}): get more data, or expect less"
    if wanted is not None:
        yield (
            f"the best runs had more data at such a budget ({wanted:.3g} interactions), so the metric is what the law "
            "of size and data expects of these"
        )
    if scatter > 1.5:
        yield f"runs of one size differ in cost by a factor of {scatter:.2g}: epochs are as uncertain as that"
    if law.unidentified:
        names = ", ".join(sorted({name for doubt in law.unidentified for name in doubt.parameters}))
        yield f"the law of size and data is not determined in {names}, so its choice is a hint"
    if not BETWEEN[0] * 1.01 < advice.by_law["parameters"][0] < BETWEEN[1] / 1.01:
        yield "the law asks for the smallest or the largest size that was looked at: it says nothing of size here"


def _too_small(flops: float) -> UserError:
    return UserError(
        f"{flops:.3g} FLOPs do not pay for one interaction with a model of a size that may be chosen; give more",
        code="budget-too-small",
    )


def _estimates(values: tuple[float, ...], draws: Float[np.ndarray, "R n"]) -> Iterator[Estimate]:
    """Each of n values with the interval of its draws."""
    return ((float(value), *middle(column)) for value, column in zip(values, draws.T, strict=True))


def _dump(estimate: Estimate) -> dict[str, Any]:
    return {"value": estimate[0], "interval": [estimate[1], estimate[2]]}
