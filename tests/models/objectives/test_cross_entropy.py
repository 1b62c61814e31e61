"""Exact softmax: equal to torch's cross-entropy in value and gradient, whatever the chunk, smoothing and weights."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from fullrank.models.sequential.objectives.losses.cross_entropy import CrossEntropy
from tiny import ITEMS, histories, padded, questions


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])
@pytest.mark.parametrize("chunk", [1, 16 * ITEMS, 17 * ITEMS + 3, 10**8])
@pytest.mark.parametrize("weighted", [False, True])
def test_equals_torch(chunk: int, smoothing: float, weighted: bool) -> None:
    """Equal upstream gradients scale what the forward pass made; others are made anew: both must be true."""
    batch = padded(histories([30, 2, 17, 8]))
    q = replace(questions(batch), temperature=0.7)
    loss = CrossEntropy(label_smoothing=smoothing, chunk_elements=chunk).build()
    weights = torch.linspace(-1, 2, len(q.targets)) if weighted else torch.full((len(q.targets),), 0.3)
    leaves = (q.vectors, q.table.all())
    found = loss(q, batch).losses
    logits = q.vectors @ q.table.all().T / q.temperature
    wanted = F.cross_entropy(logits, q.targets, reduction="none", label_smoothing=smoothing)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    ours = torch.autograd.grad((found * weights).sum(), leaves)
    theirs = torch.autograd.grad((wanted * weights).sum(), leaves)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_even_scores_cost_log_v() -> None:
    batch = padded([[1, 2, 3]])
    q = questions(batch)
    record = CrossEntropy().build()(replace(q, vectors=q.vectors * 0), batch)
    torch.testing.assert_close(record.losses, torch.full((2,), float(ITEMS)).log())
