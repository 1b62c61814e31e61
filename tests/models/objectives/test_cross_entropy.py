"""Exact softmax: equal to torch's cross-entropy in value and gradient, whatever the chunk, smoothing and weights."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from parts import CrossEntropy
from tiny import ITEMS, histories, padded, questions
from twins import same


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])
@pytest.mark.parametrize("chunk", [1, 16 * ITEMS, 17 * ITEMS + 3, 10**8])
@pytest.mark.parametrize("weighted", [False, True])
def test_equals_torch(chunk, smoothing, weighted) -> None:
    """Equal upstream gradients scale what the forward pass made; others are made anew: both must be true."""
    batch = padded(histories([30, 2, 17, 8]))
    q = replace(questions(batch), temperature=0.7)
    loss = CrossEntropy(label_smoothing=smoothing, chunk_elements=chunk).build()
    weights = torch.linspace(-1, 2, len(q.targets)) if weighted else torch.full((len(q.targets),), 0.3)
    found = loss(q, batch).losses
    logits = q.vectors @ q.table.all().T / q.temperature
    wanted = F.cross_entropy(logits, q.targets, reduction="none", label_smoothing=smoothing)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    same((found * weights).sum(), (wanted * weights).sum(), q.vectors, q.table.all())
