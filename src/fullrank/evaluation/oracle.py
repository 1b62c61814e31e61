"""The ceiling of a reasoner: each user answered after the step that suits them best (PLR, Sec. 6.5.2, Figure 4).

An oracle reads the truth. It says how much would be won by knowing when to stop, and is no result of a model: it beats
every fixed number of steps by construction, more so the more steps there are, even where they differ by chance alone.

Differs: the paper takes each step's own output; here step s is what the model would answer if it stopped after s steps
(0: the encoder alone), which is what a system that stopped earlier could really show. The best step is chosen anew for
every metric; of equal ones the earliest.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from fullrank.core.errors import UserError
from fullrank.core.progress import Progress
from fullrank.evaluation.retrieval import EvalStore, evaluate
from fullrank.evaluation.spec import Evaluation
from fullrank.evaluation.statistics import bounds, resample
from fullrank.metrics.names import ACCURACY
from fullrank.models.sequential.reasoning.budget import Budget, check_budget, reasoner_of

LABEL = "reads the truth: a ceiling, not a result of the model"


@dataclass(frozen=True)
class OracleCeiling:
    """One metric under the oracle."""

    metric: str
    fixed: float
    """The model as it answers."""
    best: float
    """Each user at the step that is best for them; an oracle."""
    gap: float
    """best - fixed, what stopping at the right step would be worth."""
    interval: tuple[float, float]
    """Of the gap, by bootstrap over users."""
    steps: tuple[float, ...]
    """The metric with everybody stopped after 0, 1, ... steps."""
    chosen: tuple[float, ...]
    """Share of the users whose (earliest) best step this is."""

    def dump(self) -> dict[str, Any]:
        return asdict(self) | {"label": LABEL}


def oracle_step(
    model: Any,
    store: EvalStore,
    split: str,
    spec: Evaluation | None = None,
    *,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
) -> list[OracleCeiling]:
    """The ceiling of every accuracy metric of the spec. Raises `UserError` for a model without a reasoner."""
    spec = _asked(spec or Evaluation())
    check_budget(model, spec.reasoning)
    reasoner = reasoner_of(model)
    if reasoner is None:
        raise UserError("this model does not reason, so it has no steps to choose from; give a run with a reasoner")
    most = reasoner.steps if spec.reasoning.steps is None else spec.reasoning.steps
    values = []
    for step in range(most + 1):
        tick = None if progress is None else _part(progress, step, most + 1)
        found = evaluate(model, store, split, at_step(spec, step), device=device, progress=tick)
        values.append(found.per_user.values)
    return [_ceiling(str(name), np.stack([v[str(name)] for v in values]), spec) for name in spec.names()]


def at_step(spec: Evaluation, step: int) -> Evaluation:
    """The same evaluation after this many steps."""
    return spec.model_copy(update={"reasoning": Budget(steps=step, streams=spec.reasoning.streams)})


def _asked(spec: Evaluation) -> Evaluation:
    """Accuracy alone: of what else is measured, more is not better."""
    if spec.reasoning.adaptive is not None:
        raise UserError("the oracle chooses the step itself: leave reasoning.adaptive out")
    names = tuple(str(name) for name in spec.names() if name.base in ACCURACY)
    if not names:
        raise UserError(f"the oracle chooses by accuracy: name one of {', '.join(ACCURACY)} among the metrics")
    return spec.model_copy(update={"metrics": names, "slices": False})


def _ceiling(name: str, values: np.ndarray, spec: Evaluation) -> OracleCeiling:
    """From [steps, users]."""
    best = values.max(0)
    gap = best - values[-1]
    drawn = resample(gap[:, None], samples=spec.bootstrap, seed=spec.seed)[:, 0]
    share = np.bincount(values.argmax(0), minlength=len(values)) / values.shape[1]
    return OracleCeiling(
        name, float(values[-1].mean()), float(best.mean()), float(gap.mean()), bounds(drawn, spec.level),
        tuple(values.mean(1).tolist()), tuple(share.tolist()),
    )  # fmt: skip


def _part(progress: Progress, place: int, parts: int) -> Progress:
    return lambda done, total: progress(place * total + done, parts * total)
