"""Metrics of a reasoner by the number of its steps: the oracle's ceiling, and the curve of accuracy against latency.

`oracle_ceilings` takes each user's answer after the step that suits them best (PLR, Sec. 6.5.2,
Figure 4). An oracle reads the truth. It says how much would be won by knowing when to stop, and is
no result of a model: it beats every fixed number of steps by construction, more so the more steps
there are, even where they differ by chance alone. Differs: the paper takes each step's own output;
here step s is what the model would answer if it stopped after s steps (0: the encoder alone), which
is what a system that stopped earlier could really show. The best step is chosen anew for every
metric; of equal ones the earliest.

`accuracy_by_steps` measures after 0, 1, ... S steps for everybody, and with adaptive stopping.
Seconds are those of scoring and ranking, histories in and metrics out, on the machine at hand; the
settings take turns, and each keeps its best of `rounds`, so that a disturbance is nobody's alone.
Compare them within one table only.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from fullrank.core.checks import public
from fullrank.core.constraints import MOST_ROUNDS
from fullrank.core.errors import UserError
from fullrank.core.files import JsonObject
from fullrank.core.log import Progress, untold
from fullrank.evaluation.retrieval import EvalStore, evaluate
from fullrank.evaluation.spec import Evaluation
from fullrank.evaluation.statistics import bounds, resample
from fullrank.metrics.names import accuracy_among
from fullrank.models import Budget, check_budget

LABEL = "reads the truth: a ceiling, not a result of the model"
LENGTH = 10
"""Items that must stay the same from step to step, where adaptive stopping is not told how many."""


@dataclass(frozen=True)
class OracleCeiling:
    """One metric under the oracle."""

    metric: str
    fixed: float
    """The metric with the number of steps that the model takes."""
    best: float
    """The metric of each user at the step that is best for them; an oracle."""
    gap: float
    """best - fixed, what stopping at the right step would be worth."""
    interval: tuple[float, float]
    """Interval of the gap, by bootstrap over users."""
    steps: tuple[float, ...]
    """The metric with everybody stopped after 0, 1, ... steps."""
    chosen: tuple[float, ...]
    """Share of the users whose (earliest) best step this is."""

    def dump(self) -> JsonObject:
        return asdict(self) | {"label": LABEL}


@dataclass(frozen=True)
class StepCurvePoint:
    """Metrics and latency of one budget."""

    asked: int
    """Most steps that may be taken. The name is a key of `--json`, which keeps it."""
    adaptive: bool
    """Whether each user stops when their list no longer changes."""
    streams: int
    """Streams that were computed."""
    steps: float
    """Steps taken, mean over users."""
    metrics: dict[str, float]
    seconds: float
    """Per 1,000 users."""

    @property
    def label(self) -> str:
        return f"{'adaptive, at most ' if self.adaptive else ''}{self.asked}"

    def dump(self) -> JsonObject:
        return asdict(self)


def oracle_ceilings(
    model: Any,
    store: EvalStore,
    split: str,
    spec: Evaluation = Evaluation(),
    *,
    progress: Progress = untold,
) -> list[OracleCeiling]:
    """The ceiling of every accuracy metric of the spec. Raises `UserError` for a model without a reasoner."""
    if spec.reasoning.adaptive is not None:
        raise UserError(
            "the oracle chooses the step itself: leave reasoning.adaptive out", code="adaptive-without-effect"
        )
    # for what else is measured (exposure, fairness) more is not better
    names = accuracy_among(spec.names(), "the oracle, which chooses by accuracy,")
    spec = spec.model_copy(update={"metrics": names, "slices": False})
    most = _most_steps(model, spec)
    values = []
    for step in range(most + 1):
        evaluation = evaluate(model, store, split, _at_step(spec, step), progress=part_of(progress, step, most + 1))
        values.append(evaluation.per_user.values)
    return [_ceiling(str(name), np.stack([v[str(name)] for v in values]), spec) for name in spec.names()]


@public
def accuracy_by_steps(
    model: Any,
    store: EvalStore,
    split: str,
    spec: Evaluation = Evaluation(),
    *,
    metrics: Sequence[str] | None = None,
    rounds: Annotated[int, Field(ge=1, le=MOST_ROUNDS)] = 3,
    progress: Progress = untold,
) -> list[StepCurvePoint]:
    """A point for each number of steps up to `reasoning.steps` (as trained by default), then the adaptive one.

    `metrics` are the spec's selection metric by default. Raises `UserError` for a
    model without a reasoner.
    """
    most = _most_steps(model, spec)
    light = spec.selection_alone().model_copy(update={"metrics": tuple(metrics or (spec.selection,))})
    settings = [_at_step(light, step) for step in range(most + 1)]
    if spec.drop == 0 and not spec.popularity_discount and spec.protocol == "full" and most:
        adaptive = spec.reasoning.model_copy(update={"steps": most, "adaptive": spec.reasoning.adaptive or LENGTH})
        settings.append(light.model_copy(update={"reasoning": adaptive}))
    best = [float("inf")] * len(settings)
    evaluations: list[Any] = [None] * len(settings)
    for turn in range(rounds):
        for number, setting in enumerate(settings):
            begun = time.perf_counter()
            evaluations[number] = evaluate(model, store, split, setting)
            best[number] = min(best[number], time.perf_counter() - begun)
            progress(turn * len(settings) + number + 1, rounds * len(settings))
    return list(map(_point, settings, evaluations, best))


def _most_steps(model: Any, spec: Evaluation) -> int:
    check_budget(model, spec.reasoning)
    reasoner = model.reasoner
    if reasoner is None:
        raise UserError(
            "this model does not reason, so it has no steps to vary; give a run with a reasoner", code="not-a-reasoner"
        )
    return spec.reasoning.steps_of(reasoner)


def _at_step(spec: Evaluation, step: int) -> Evaluation:
    """The evaluation stopped after this many steps."""
    return spec.model_copy(update={"reasoning": Budget(steps=step, streams=spec.reasoning.streams)})


def _ceiling(name: str, values: np.ndarray, spec: Evaluation) -> OracleCeiling:
    """The ceiling of a metric whose values are a table [steps, users]."""
    best = values.max(0)
    gap = best - values[-1]
    drawn = resample(gap[:, None], samples=spec.bootstrap, seed=spec.seed)[:, 0]
    share = np.bincount(values.argmax(0), minlength=len(values)) / values.shape[1]
    return OracleCeiling(
        name,
        float(values[-1].mean()),
        float(best.mean()),
        float(gap.mean()),
        bounds(drawn, spec.level),
        tuple(values.mean(1).tolist()),
        tuple(share.tolist()),
    )


def _point(setting: Evaluation, evaluation: Any, seconds: float) -> StepCurvePoint:
    most: int = evaluation.protocol["reasoning"]["steps"]
    adaptive = setting.reasoning.adaptive is not None
    steps = evaluation.mean_steps if adaptive else float(most)
    streams: int = evaluation.protocol["reasoning"]["streams"]
    return StepCurvePoint(
        most, adaptive, streams, steps, evaluation.metrics, 1000 * seconds / evaluation.protocol["users"]
    )


def part_of(progress: Progress, number: int, parts: int) -> Progress:
    """The progress of part `number` of `parts` of the same length, as one of the whole."""
    return lambda done, total: progress(number * total + done, parts * total)
