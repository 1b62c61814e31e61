"""Products with picked rows: the reference's values and gradients, without its memory."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fullrank.ops.picked_dots import picked_dots, picked_dots_reference
from tests.ops.alike import assert_alike, values_and_gradients


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
