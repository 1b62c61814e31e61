"""What to train with a number of FLOPs: size N, data T, epochs, and the metric to expect, each with an interval.

N and T are those of the best runs at such a budget (`compute_frontier`), epochs are what is then left of it,
F / cost(N, T).
The metric is the sigmoid's at F; of a loss, and where there is less data than the best runs had, the law's at N and T.
Beside it stands what the law of size and data would choose, which may differ: it need not be determined
(`Law.unidentified`). Intervals are over resampled runs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from fullrank.core.checks import check_choice, public
from fullrank.core.constraints import MOST_BINS
from fullrank.core.errors import UserError
from fullrank.scaling.fit import RESAMPLES, Estimate, Law, fit_law, middle
from fullrank.scaling.frontier import BETWEEN, compute_frontier, epoch_cost, optimum
from fullrank.scaling.ladder import Ladder
from fullrank.scaling.read import as_ladder


@dataclass(frozen=True)
class Advice:
    flops: float
    parameters: Estimate
    data: Estimate
    epochs: Estimate
    metric: Estimate
    """To expect, of the best run at these FLOPs."""
    by_law: dict[str, Estimate]
    """The same, as the law of size and data chooses at these epochs."""
    law: Law
    notes: tuple[str, ...]
    """What to know before relying on it."""

    def dump(self) -> dict[str, Any]:
        told = ("parameters", "data", "epochs", "metric")
        return {
            "flops": self.flops, "metric_name": self.law.metric, **{name: _dump(getattr(self, name)) for name in told},
            "by_law": {"form": self.law.form.name, **{name: _dump(r) for name, r in self.by_law.items()}},
            "notes": list(self.notes),
        }  # fmt: skip


@public
def advise(
    runs: Ladder | str | Path,
    flops: Annotated[float, Field(gt=0, lt=math.inf)],
    *,
    form: str = "power",
    data: Annotated[float, Field(ge=1, lt=math.inf)] | None = None,
    resamples: Annotated[int, Field(ge=20, le=MOST_BINS)] = RESAMPLES,
    seed: Annotated[int, Field(ge=0)] = 0,
    tell: Any = None,
) -> Advice:
    """What to train with `flops`. `data` is how many interactions there are; `form` is `loss` where smaller is better.

    Raises `UserError` where the runs lack FLOPs, epochs, parameters or data, or cannot be fitted.
    """
    check_choice("form", form, ("power", "loss"))
    ladder = as_ladder(runs)
    law = fit_law(ladder, form, resamples=resamples, seed=seed, tell=tell)
    lower = law.form.lower
    lines, _ = compute_frontier(ladder, lower=lower)
    drawn = []
    for r in range(resamples):
        places = np.random.default_rng([seed, r]).integers(len(ladder), size=len(ladder)).tolist()
        try:
            drawn.append(_choice(ladder.subset(places), flops, data, lower))
        except UserError:
            continue  # the same run over and over
    chosen = _choice(ladder, flops, data, lower)
    n, t, epochs = (_reading(v, np.array(d)) for v, d in zip(chosen, zip(*drawn, strict=True), strict=True))
    by_law = _by_law(ladder, law, flops, data, epochs[0])
    wanted = float(lines["data"](flops)[0])
    short = data is not None and wanted > data
    if lower or short:
        metric = law.estimate(parameters=n[0], data=t[0])
        reach = np.concatenate([trace.flops for trace in ladder.traces if trace.flops is not None])
        seen = float(reach.min()), float(reach.max())
    else:
        curve = fit_law(ladder, "sigmoid", resamples=resamples, seed=seed, tell=tell)
        metric, seen = curve.estimate(flops=flops), curve.observed["flops"]
    notes = _notes(ladder, law, flops, epochs[0], seen, wanted if short else None)
    if not BETWEEN[0] * 1.01 < by_law["parameters"][0] < BETWEEN[1] / 1.01:
        notes.append(
            "the law asks for the smallest or the largest size that was looked at: it says nothing of size here"
        )
    return Advice(flops, n, t, epochs, metric, by_law, law, tuple(notes))


def _choice(ladder: Ladder, flops: float, data: float | None, lower: bool) -> Estimate:
    """N, T and epochs of the best runs at a budget."""
    lines, _ = compute_frontier(ladder, lower=lower)
    n, t = float(lines["parameters"](flops)[0]), float(lines["data"](flops)[0])
    cost = epoch_cost(ladder)
    seen = flops / float(cost(np.array([n]), np.ones(1))[0])
    if seen < 1:
        raise UserError(
            f"{flops:.3g} FLOPs do not pay for one interaction with the size that such a budget asks for",
            code="budget-too-small",
        )
    t = min(t, seen, np.inf if data is None else data)  # less than one epoch: less data
    return n, t, seen / t


def _by_law(ladder: Ladder, law: Law, flops: float, data: float | None, epochs: float) -> dict[str, Estimate]:
    cost = epoch_cost(ladder)

    def spent(n: np.ndarray, t: np.ndarray) -> np.ndarray:
        return epochs * cost(n, t)

    best = optimum(law.form, law.theta, flops, spent, data=data)
    drawn = np.array([optimum(law.form, theta, flops, spent, data=data) for theta in law.draws])
    return {name: _reading(v, d) for name, v, d in zip(("parameters", "data", "metric"), best, drawn.T, strict=True)}


def _notes(
    ladder: Ladder, law: Law, flops: float, epochs: float, seen: tuple[float, float], wanted: float | None
) -> list[str]:
    found = []
    if not seen[0] <= flops <= seen[1]:
        found.append(
            f"{flops:.3g} FLOPs are outside of the {seen[0]:.3g} to {seen[1]:.3g} that the runs spent: this is an "
            "extrapolation, and its interval knows nothing of what changes out there"
        )
    most = max(trace.epochs[-1] for trace in ladder.traces if trace.epochs is not None)
    if epochs > 1.001 * most:
        found.append(f"{epochs:.3g} epochs are more than any run had ({most:g}): get more data, or expect less")
    if wanted is not None:
        found.append(
            f"the best runs had more data at such a budget ({wanted:.3g} interactions), so the metric is what the law "
            "of size and data expects of these"
        )
    scatter = epoch_cost(ladder).scatter
    if scatter > 1.5:
        found.append(f"runs of one size differ in cost by a factor of {scatter:.2g}: epochs are as uncertain as that")
    if law.unidentified:
        names = ", ".join(sorted({name for one in law.unidentified for name in one.parameters}))
        found.append(f"the law of size and data is not determined in {names}, so its choice is a hint")
    return found


def _reading(value: float, draws: np.ndarray) -> Estimate:
    return float(value), *middle(draws)


def _dump(reading: Estimate) -> dict[str, Any]:
    return {"value": reading[0], "interval": [reading[1], reading[2]]}
