"""Distinct ids by marking equal those by sorting."""

from __future__ import annotations

import pytest
import torch

from fullrank.ops.distinct import ROWS_PER_ID, distinct


@pytest.mark.parametrize("size", [1, 7, 1000, 1_000_000])
@pytest.mark.parametrize("count", [0, 1, 5, 300])
def test_it_equals_unique(size: int, count: int) -> None:
    ids = torch.randint(size, (count,), generator=torch.Generator().manual_seed(count))
    assert torch.equal(distinct(ids, size), torch.unique(ids))


def test_both_ways_are_tested() -> None:
    assert 1000 <= ROWS_PER_ID * 300 and 1_000_000 > ROWS_PER_ID * 300
