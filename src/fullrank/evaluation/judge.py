"""Evaluate or compare, whatever kind the model is of: one that ranks items, or one of clicks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fullrank.core.progress import Progress
from fullrank.data.impressions import ImpressionStore
from fullrank.data.stores import AnyStore
from fullrank.errors import UserError
from fullrank.evaluation.clicks import evaluate_clicks
from fullrank.evaluation.clicks_result import Clicked, compare_clicks
from fullrank.evaluation.clicks_spec import Clicks
from fullrank.evaluation.compare import Comparison
from fullrank.evaluation.compare import compare as compare_lists
from fullrank.evaluation.measure import evaluate
from fullrank.evaluation.result import Evaluated
from fullrank.evaluation.spec import Evaluation


def judge(
    model: Any,
    store: AnyStore,
    split: str,
    spec: Evaluation | Clicks,
    *,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
) -> Evaluated | Clicked:
    """The model's metrics on a split, by the evaluation that its experiment has."""
    if isinstance(spec, Clicks) and isinstance(store, ImpressionStore):
        return evaluate_clicks(model, store, split, spec, device=device, progress=progress)
    if isinstance(spec, Evaluation) and not isinstance(store, ImpressionStore):
        return evaluate(model, store, split, spec, device=device, progress=progress)
    holds = "impressions" if isinstance(store, ImpressionStore) else "histories"
    raise UserError(f"{store.path} holds {holds} and the run was trained on the other kind of store; give that one")


def compare(
    a: Evaluated | Clicked | Sequence[Evaluated],
    b: Evaluated | Clicked | Sequence[Evaluated],
    metric: str,
    *,
    samples: int | None = None,
    level: float = 0.95,
    seed: int = 0,
) -> Comparison:
    """The paired difference b - a of one metric, on the same users or the same impressions, an interval and a p value.

    Several evaluations of lists, one for each seed of a model, count as their mean, user by user.
    `samples`: permutations of users (None is 10,000), or bootstrap samples of impressions (None is 1,000).
    """
    if isinstance(a, Clicked) and isinstance(b, Clicked):
        return compare_clicks(a, b, metric, samples=1000 if samples is None else samples, level=level, seed=seed)
    if not isinstance(a, Clicked) and not isinstance(b, Clicked):
        return compare_lists(a, b, metric, samples=10_000 if samples is None else samples, level=level, seed=seed)
    raise UserError("one run ranks items and the other predicts clicks; compare two of the same kind")
