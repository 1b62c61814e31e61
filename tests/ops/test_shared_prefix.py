"""Streams against a shared prefix, against the reference that copies it: values, gradients, and nothing is copied."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fullrank.ops.shared_prefix import stream_mix, stream_mix_reference, stream_scores, stream_scores_reference
from tiny import close

SIZES = [(1, 1, 1, 1, 1, 1), (2, 3, 7, 5, 3, 2), (3, 1, 13, 2, 4, 1), (2, 2, 5, 3, 1, 3), (0, 2, 5, 3, 2, 2)]
"""B, H, T, width, streams, tokens of each stream."""


def case(b: int, h: int, t: int, e: int, m: int, s: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(t)
    shapes = {"q": (b, h, m, e), "k": (b, h, t, e), "own": (b, h, m, s, e), "weights": (b, h, m, t + s)}
    return {name: torch.randn(*shape, generator=generator).requires_grad_() for name, shape in shapes.items()}


@pytest.mark.parametrize("size", SIZES)
def test_equals_the_reference(size: tuple[int, ...]) -> None:
    given = case(*size)
    for names, fast, slow in (
        (("q", "k", "own"), stream_scores, stream_scores_reference),
        (("weights", "k", "own"), stream_mix, stream_mix_reference),
    ):
        arguments = [given[name] for name in names]
        a, b = fast(*arguments), slow(*arguments)
        assert close(a, b)
        found, wanted = (torch.autograd.grad(y.pow(2).sum(), arguments) for y in (a, b))
        assert all(close(f, w, 1e-4) for f, w in zip(found, wanted, strict=True))


def test_the_prefix_is_read_in_place() -> None:
    """No tensor as large as the keys of one head is made from a strided projection."""
    qkv = torch.randn(4, 64, 3, 2, 8)
    q, k = torch.randn(4, 2, 2, 8), qkv.permute(2, 0, 3, 1, 4)[1]
    with torch.profiler.profile(profile_memory=True) as made:
        stream_scores(q, k, torch.randn(4, 2, 2, 1, 8))
    assert max(event.self_cpu_memory_usage for event in made.events()) < k.numel() * 4 // 2
