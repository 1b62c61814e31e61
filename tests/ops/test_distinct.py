"""Distinct ids by marking equal those by sorting."""

import pytest
import torch

from fullrank.ops.distinct import ROWS_PER_ID, distinct, distinct_and_places


@pytest.mark.parametrize("size", [1, 7, 1000, 1_000_000])
@pytest.mark.parametrize("count", [0, 1, 5, 300])
def test_it_equals_unique(size: int, count: int) -> None:
    ids = torch.randint(size, (count,), generator=torch.Generator().manual_seed(count))
    assert torch.equal(distinct(ids, size), torch.unique(ids))


def test_both_ways_are_tested() -> None:
    assert 1000 <= ROWS_PER_ID * 300 and 1_000_000 > ROWS_PER_ID * 300


@pytest.mark.parametrize("size", [12, 13, 3 * ROWS_PER_ID * 12])
def test_places_lead_back_to_the_ids(size: int) -> None:
    ids = torch.randint(12, (3, 4))
    found, places = distinct_and_places(ids, size)
    assert torch.equal(found, torch.unique(ids)) and torch.equal(found[places], ids)
