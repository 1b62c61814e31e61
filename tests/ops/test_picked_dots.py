"""Products with picked rows: the reference's values and gradients, without its memory."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fullrank.ops.picked_dots import picked_dots, picked_dots_reference


@settings(max_examples=60, deadline=None)
@given(
    m=st.integers(1, 6), n=st.integers(1, 9), rows=st.integers(1, 7), width=st.integers(1, 40), seed=st.integers(0, 99)
)
def test_values_and_gradients_are_those_of_the_reference(m: int, n: int, rows: int, width: int, seed: int) -> None:
    torch.manual_seed(seed)
    place, weight = torch.randint(rows, (m, n)), torch.randn(m, n)
    found = []
    for action in (picked_dots, picked_dots_reference):
        torch.manual_seed(seed + 1)
        queries, table = torch.randn(m, width, requires_grad=True), torch.randn(rows, width, requires_grad=True)
        out = action(queries, table, place)
        (out * weight).sum().backward()
        found.append((out.detach(), queries.grad, table.grad))
    for fast, slow in zip(*found, strict=True):
        assert torch.allclose(fast, slow, atol=1e-5)


def test_rows_that_nobody_picked_have_no_gradient() -> None:
    table = torch.randn(5, 3, requires_grad=True)
    picked_dots(torch.randn(2, 3), table, torch.tensor([[1, 1], [3, 1]])).sum().backward()
    assert table.grad is not None and (table.grad[[0, 2, 4]] == 0).all() and (table.grad[[1, 3]] != 0).all()


@pytest.mark.parametrize("shape", [(0, 4), (3, 0)])
def test_nothing_picked_is_nothing(shape: tuple[int, int]) -> None:
    queries, table = torch.randn(shape[0], 2, requires_grad=True), torch.randn(4, 2, requires_grad=True)
    out = picked_dots(queries, table, torch.zeros(shape, dtype=torch.long))
    assert out.shape == shape
    out.sum().backward()
    assert table.grad is not None and not table.grad.any()


def test_half_precision_comes_out_in_full() -> None:
    queries, table, place = torch.randn(3, 8).bfloat16(), torch.randn(4, 8).bfloat16(), torch.randint(4, (3, 5))
    out = picked_dots(queries, table, place)
    assert out.dtype == torch.float32
    assert torch.allclose(out, picked_dots_reference(queries.float(), table.float(), place), atol=1e-5)
