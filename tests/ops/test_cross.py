"""A cross layer by hand equals the one that autograd differentiates, in value and gradient, at odd sizes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fullrank.ops.cross import cross, cross_reference

SIZES = [(1, 1), (5, 3), (17, 8), (64, 33)]


def made(rows: int, width: int) -> list[Tensor]:
    draw = torch.Generator().manual_seed(rows)
    shapes = [(rows, width), (rows, width), (width, width), (width,)]
    return [torch.randn(shape, generator=draw, dtype=torch.double).requires_grad_() for shape in shapes]


@pytest.mark.parametrize(("rows", "width"), SIZES)
def test_it_equals_its_reference(rows: int, width: int) -> None:
    inputs = made(rows, width)
    assert torch.allclose(cross(*inputs), cross_reference(*inputs))
    weights = torch.randn(rows, width, dtype=torch.double)
    fast, slow = (torch.autograd.grad((f(*inputs) * weights).sum(), inputs) for f in (cross, cross_reference))
    assert all(torch.allclose(a, b) for a, b in zip(fast, slow, strict=True))


def test_the_first_layer_crosses_its_input_with_itself() -> None:
    x, _, weight, bias = made(6, 4)
    fast, slow = (torch.autograd.grad(f(x, x, weight, bias).pow(2).sum(), x)[0] for f in (cross, cross_reference))
    assert torch.allclose(fast, slow)


def test_a_wrong_gradient_would_be_seen() -> None:
    assert torch.autograd.gradcheck(cross, made(3, 4))


def test_mixed_precision_takes_the_reference() -> None:
    inputs = [x.detach().float() for x in made(5, 3)]
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(cross(*inputs), cross_reference(*inputs))
