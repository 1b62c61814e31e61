"""Checks of every weighting: of mean one, and independent of other queries or `couples`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fullrank.core.spec import Spec
from fullrank.models import Queries, Record, States, Step
from fullrank.models.sequential.objectives.weightings import WeightingSpec
from fullrank.testing.inputs import (
    ITEMS,
    Device,
    close,
    histories,
    of_specs,
    padded,
    questions,
    reachable,
)


def weigh(weighting: Any, targets: Tensor, device: Device = "cpu") -> tuple[Tensor, Queries]:
    """The weights of queries for these targets, and the queries."""
    targets = targets.to(device)
    batch = padded(histories([4, 5]))
    q = questions(batch, device=device)
    batch = batch.to(device)
    rows = torch.zeros_like(targets)
    q = replace(
        q,
        targets=targets,
        vectors=torch.randn(len(targets), q.vectors.shape[1], device=device),
        rows=rows,
        positions=rows,
    )
    losses = (1.0 + targets).requires_grad_()
    step = Step(torch.nn.Identity(), batch, States(torch.zeros(2, 4, 6, device=device)), (q,), {q.name: Record(losses)})
    return weighting(q, step), q


def check_sound(weighting: Any, device: Device = "cpu") -> None:
    """A factor for each query: finite, at least 0, without a gradient; none for no queries."""
    weights, _ = weigh(weighting, torch.arange(ITEMS), device)
    assert weights.shape == (ITEMS,) and weights.dtype == torch.float32
    assert weights.isfinite().all() and (weights >= 0).all() and not weights.requires_grad
    assert weigh(weighting, torch.zeros(0, dtype=torch.long), device)[0].shape == (0,)


def check_mean(weighting: Any, device: Device = "cpu") -> None:
    """The mean is 1 over the training distribution, or over the queries where they couple."""
    for targets in (torch.arange(ITEMS), torch.tensor([7, 7, 0])):
        weights, q = weigh(weighting, targets, device)
        if weighting.couples:
            assert abs(float(weights.mean()) - 1) < 1e-4
        elif len(targets) == ITEMS:
            assert (weights > 0).all()
            assert abs(float((weights * q.table.log_q(targets.to(device)).exp()).sum()) - 1) < 1e-4


def check_coupling(weighting: Any, device: Device = "cpu") -> None:
    """Shards and micro-batches weigh a query as the whole batch does, unless `couples`."""
    whole, _ = weigh(weighting, torch.arange(ITEMS), device)
    part, _ = weigh(weighting, torch.tensor([7, 7, 0]), device)
    assert close(part, whole[[7, 7, 0]]) != weighting.couples


def _weightings(spec: Spec, device: torch.device, *, extreme: bool = True) -> Iterator[tuple[Any, ...]]:
    """Without `extreme`, a coupling weighting is tried with the spec's own settings
    alone: others may weigh evenly."""
    for other in reachable(spec):
        assert isinstance(other, WeightingSpec)
        weighting = other.build()
        if extreme or not weighting.couples or other == spec:
            yield other, weighting, device


BASE = WeightingSpec
CHECKS = (
    *of_specs((check_sound, check_mean), _weightings),
    *of_specs((check_coupling,), partial(_weightings, extreme=False)),
)
