"""Packed bags against their reference, in values and gradients."""

import pytest
import torch

from fullrank.ops.packed_bags import packed_bags, packed_bags_reference
from tests.ops.alike import assert_alike, leaves


@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("kind", [torch.int32, torch.int64])
@pytest.mark.parametrize(("items", "most", "asked"), [(1, 0, 1), (1, 3, 3), (9, 4, 0), (37, 5, 101), (200, 40, 64)])
def test_equals_the_reference(items: int, most: int, asked: int, kind: torch.dtype, mean: bool) -> None:
    counts = torch.arange(items) * 7 % (most + 1)
    flat = (torch.arange(int(counts.sum())) * 5 % 11).to(kind)
    offsets = torch.cat([torch.zeros(1, dtype=torch.long), counts.cumsum(0)])
    rows = torch.randint(0, items, (asked,), generator=torch.Generator().manual_seed(0))
    (table,) = leaves((11, 3))
    assert packed_bags(table, flat, offsets, rows, mean=mean).shape == (asked, 3)
    assert_alike(packed_bags, packed_bags_reference, table, flat, offsets, rows, mean=mean)


def test_an_item_without_tokens_is_zero() -> None:
    flat, offsets = torch.tensor([1, 2]), torch.tensor([0, 0, 2, 2])
    vectors = packed_bags(torch.ones(3, 2), flat, offsets, torch.tensor([0, 1, 2]))
    assert vectors.tolist() == [[0, 0], [2, 2], [0, 0]]
