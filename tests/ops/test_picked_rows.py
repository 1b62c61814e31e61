"""Rows picked by ids: the distinct ids, sums and products of rows equal their references in values and gradients."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fullrank.ops.picked_rows import (
    ROWS_PER_ID,
    distinct,
    distinct_and_places,
    packed_bags,
    packed_bags_reference,
    picked_dots,
    picked_dots_reference,
    shared_dots,
)
from tests.ops.alike import assert_alike, leaves, values_and_gradients


@pytest.mark.parametrize("size", [1, 7, 1000, 1_000_000])
@pytest.mark.parametrize("count", [0, 1, 5, 300])
def test_it_equals_unique(size: int, count: int) -> None:
    ids = torch.randint(size, (count,), generator=torch.Generator().manual_seed(count))
    assert torch.equal(distinct(ids, size), torch.unique(ids))


def test_both_ways_are_tested() -> None:
    assert ROWS_PER_ID * 300 >= 1000 and ROWS_PER_ID * 300 < 1_000_000


@pytest.mark.parametrize("size", [12, 13, 3 * ROWS_PER_ID * 12])
def test_places_lead_back_to_the_ids(size: int) -> None:
    ids = torch.randint(12, (3, 4))
    found, places = distinct_and_places(ids, size)
    assert torch.equal(found, torch.unique(ids)) and torch.equal(found[places], ids)


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, requires_grad=True)


@settings(max_examples=60, deadline=None)
@given(
    m=st.integers(1, 6), n=st.integers(1, 9), rows=st.integers(1, 7), width=st.integers(1, 40), seed=st.integers(0, 99)
)
def test_values_and_gradients_are_those_of_the_reference(m: int, n: int, rows: int, width: int, seed: int) -> None:
    torch.manual_seed(seed)
    inputs = drawn(m, width), drawn(rows, width), torch.randint(rows, (m, n))
    assert_alike(picked_dots, picked_dots_reference, *inputs, rtol=1e-5, atol=1e-5)


def test_rows_that_nobody_picked_have_no_gradient() -> None:
    table = drawn(5, 3)
    picked_dots(torch.randn(2, 3), table, torch.tensor([[1, 1], [3, 1]])).sum().backward()
    assert table.grad.any(1).tolist() == [False, True, False, True, False]


@pytest.mark.parametrize("shape", [(0, 4), (3, 0)])
def test_nothing_picked_is_nothing(shape: tuple) -> None:
    picked = torch.zeros(shape, dtype=torch.long)
    dots, _, of_table = values_and_gradients(picked_dots, drawn(shape[0], 2), drawn(4, 2), picked)
    assert dots.shape == shape and not of_table.any()


def test_half_precision_comes_out_in_full() -> None:
    queries, table, place = torch.randn(3, 8).bfloat16(), torch.randn(4, 8).bfloat16(), torch.randint(4, (3, 5))
    out = picked_dots(queries, table, place)
    assert out.dtype == torch.float32
    assert torch.allclose(out, picked_dots_reference(queries.float(), table.float(), place), atol=1e-5)


@pytest.mark.parametrize("shape", [(1, 1, 1, 1, 1), (3, 5, 7, 4, 9), (20, 9, 33, 12, 16), (6, 1, 50, 3, 5)])
def test_shared_picks_in_bf16_round_what_they_read_and_give(shape: tuple) -> None:
    """Of whole numbers, which bf16 holds with their products, nothing is rounded but the sums that it does not hold."""
    r, t, n, rows, width = shape
    queries, table = torch.randint(-3, 4, (r, t, width)).float(), torch.randint(-3, 4, (rows, width)).float()
    upstream, place = torch.randint(-2, 3, (r, t, n)).float(), torch.randint(rows, (r, n))
    found, wanted = [], []
    for form, said in ((shared_dots, found), (lambda q, w, at: q @ w[at].mT, wanted)):
        leaves = queries.clone().requires_grad_(), table.clone().requires_grad_()
        out = form(*leaves, place)
        said += [out.float(), *torch.autograd.grad(out, leaves, upstream.to(out.dtype))]
    assert torch.equal(found[0], wanted[0])
    for one, other in zip(found[1:], wanted[1:], strict=True):  # a row's, then that of many rows: each rounded once
        assert one.dtype == torch.float32 and (one - other).abs().max() <= 2**-8 * other.abs().max()


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
