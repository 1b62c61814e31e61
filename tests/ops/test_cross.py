"""A cross layer by hand equals the one that autograd differentiates, in value and gradient, at odd sizes."""

import pytest
import torch

from fullrank.ops.cross import cross, cross_reference
from tests.ops.alike import assert_alike, leaves


def drawn(rows: int, width: int) -> list:
    return leaves((rows, width), (rows, width), (width, width), (width,), dtype=torch.double)


@pytest.mark.parametrize(("rows", "width"), [(1, 1), (5, 3), (17, 8), (64, 33)])
def test_it_equals_its_reference(rows: int, width: int) -> None:
    first, x, weight, bias = drawn(rows, width)
    assert_alike(cross, cross_reference, first, x, weight, bias)
    # the first layer crosses its input with itself
    assert_alike(*(lambda x, *layer, op=op: op(x, x, *layer) for op in (cross, cross_reference)), x, weight, bias)


def test_its_gradient_is_that_of_differences() -> None:
    assert torch.autograd.gradcheck(cross, drawn(3, 4))


def test_mixed_precision_takes_the_reference() -> None:
    inputs = [x.detach().float() for x in drawn(5, 3)]
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(cross(*inputs), cross_reference(*inputs))
