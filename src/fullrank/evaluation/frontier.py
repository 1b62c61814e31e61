"""Accuracy against latency by inference budget: after 0, 1, ... S steps for everybody, and each user's own number.

Seconds are those of answering and ranking, histories in and metrics out, on the machine at hand; the settings take
turns, and each keeps its best of `rounds`, so that a disturbance is nobody's alone. Compare them within one table only.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from fullrank.core.errors import UserError
from fullrank.core.progress import Progress
from fullrank.evaluation.oracle import at_step
from fullrank.evaluation.retrieval import EvalStore, evaluate
from fullrank.evaluation.spec import Evaluation
from fullrank.models.sequential.reasoning.budget import Budget, check_budget, reasoner_of

LENGTH = 10
"""Items that must rest where adaptive stopping is not told how many."""


@dataclass(frozen=True)
class StepCurvePoint:
    """One budget."""

    asked: int
    """Steps that may be taken."""
    adaptive: bool
    """Every user stops when their list has settled."""
    streams: int
    """Streams that were thought in."""
    steps: float
    """Steps taken, mean over users."""
    metrics: dict[str, float]
    seconds: float
    """Per 1,000 users."""

    @property
    def label(self) -> str:
        return f"{'adaptive, at most ' if self.adaptive else ''}{self.asked}"

    def dump(self) -> dict[str, Any]:
        return asdict(self)


def step_curve(
    model: Any,
    store: EvalStore,
    split: str,
    spec: Evaluation | None = None,
    *,
    metrics: Sequence[str] | None = None,
    rounds: int = 3,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
) -> list[StepCurvePoint]:
    """A point for each number of steps up to `reasoning.steps` (as trained by default), then the adaptive one.

    `metrics` are the spec's selection metric by default. Raises `UserError` for a model without a reasoner.
    """
    spec = spec or Evaluation()
    if rounds < 1:
        raise UserError(f"rounds must be at least 1, not {rounds}")
    check_budget(model, spec.reasoning)
    reasoner = reasoner_of(model)
    if reasoner is None:
        raise UserError("this model does not reason, so it has no steps to vary; give a run with a reasoner")
    most = reasoner.steps if spec.reasoning.steps is None else spec.reasoning.steps
    light = spec.for_selection().model_copy(update={"metrics": tuple(metrics or (spec.selection,))})
    settings = [at_step(light, step) for step in range(most + 1)]
    if spec.drop == 0 and spec.protocol == "full" and most:
        settings.append(light.model_copy(update={"reasoning": _adaptive(spec.reasoning, most)}))
    best, found = [float("inf")] * len(settings), [None] * len(settings)
    for turn in range(rounds):
        for place, setting in enumerate(settings):
            begun = time.perf_counter()
            measured: Any = evaluate(model, store, split, setting, device=device)
            best[place] = min(best[place], time.perf_counter() - begun)
            found[place] = measured
            if progress is not None:
                progress(turn * len(settings) + place + 1, rounds * len(settings))
    return [_point(*three) for three in zip(settings, found, best, strict=True)]


def _adaptive(budget: Budget, most: int) -> Budget:
    return Budget(steps=most, streams=budget.streams, adaptive=budget.adaptive or LENGTH, patience=budget.patience)


def _point(setting: Evaluation, found: Any, seconds: float) -> StepCurvePoint:
    asked: int = found.protocol["reasoning"]["steps"]
    adaptive = setting.reasoning.adaptive is not None
    steps = found.mean_steps if adaptive else float(asked)
    streams: int = found.protocol["reasoning"]["streams"]
    return StepCurvePoint(asked, adaptive, streams, steps, found.metrics, 1000 * seconds / found.protocol["users"])
