"""Packed bags against their reference, in values and gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fullrank.ops.packed_bags import packed_bags, packed_bags_reference


def case(items: int, most: int, kind: torch.dtype) -> tuple[Tensor, Tensor]:
    counts = torch.arange(items) * 7 % (most + 1)
    flat = torch.arange(int(counts.sum())) * 5 % 11
    return flat.to(kind), torch.cat([torch.zeros(1, dtype=torch.long), counts.cumsum(0)])


@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("kind", [torch.int32, torch.int64])
@pytest.mark.parametrize(("items", "most", "asked"), [(1, 0, 1), (1, 3, 3), (9, 4, 0), (37, 5, 101), (200, 40, 64)])
def test_equals_the_reference(items: int, most: int, asked: int, kind: torch.dtype, mean: bool) -> None:
    flat, offsets = case(items, most, kind)
    rows = torch.randint(0, items, (asked,), generator=torch.Generator().manual_seed(0))
    found = []
    for way in (packed_bags, packed_bags_reference):
        table = torch.randn(11, 3, generator=torch.Generator().manual_seed(1)).requires_grad_()
        vectors = way(table, flat, offsets, rows, mean=mean)
        (vectors * torch.arange(3.0)).pow(2).sum().backward()
        assert vectors.shape == (asked, 3)
        found.append((vectors.detach(), torch.zeros(11, 3) if table.grad is None else table.grad))
    for fast, slow in zip(*found, strict=True):
        assert torch.allclose(fast, slow, rtol=1e-5, atol=1e-5)


def test_an_item_without_tokens_is_zero() -> None:
    flat, offsets = torch.tensor([1, 2]), torch.tensor([0, 0, 2, 2])
    vectors = packed_bags(torch.ones(3, 2), flat, offsets, torch.tensor([0, 1, 2]))
    assert vectors.tolist() == [[0, 0], [2, 2], [0, 0]]
