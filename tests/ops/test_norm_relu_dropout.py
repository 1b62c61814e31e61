"""Batch norm, ReLU and dropout in one step equal the three one after the other, in values, gradients and averages."""

import pytest
import torch
from torch import nn

from fullrank.models.ranking.perceptron import Deep
from fullrank.ops import norm_relu_dropout as op
from fullrank.ops.norm_relu_dropout import norm_relu_dropout, norm_relu_dropout_reference
from tests.ops.alike import assert_alike


def of_both(rows: int, width: int, p: float, dtype: torch.dtype = torch.double) -> tuple[list, list, torch.Tensor]:
    """Both as functions of (x, weight, bias) at one seed, their norms, and x."""
    draw = torch.Generator().manual_seed(rows)
    x = (3 * torch.randn(rows, width, generator=draw, dtype=dtype) + 1).requires_grad_()
    norms = [nn.BatchNorm1d(width, dtype=dtype) for _ in range(2)]

    def with_norm(function, norm):
        def of(x, weight, bias):
            torch.manual_seed(0)
            norm.__dict__["_parameters"] |= {"weight": weight, "bias": bias}
            return function(x, norm, p)

        return of

    pairs = zip((norm_relu_dropout, norm_relu_dropout_reference), norms, strict=True)
    return [with_norm(*pair) for pair in pairs], norms, x


@pytest.mark.parametrize("p", [0.0, 0.4, 0.9])
@pytest.mark.parametrize(("rows", "width"), [(2, 1), (5, 3), (37, 8), (64, 33)])
def test_it_equals_its_reference(rows: int, width: int, p: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(op, "GRAIN", 7 * width)  # several blocks, the last one shorter
    both, norms, x = of_both(rows, width, p)
    weight, bias = torch.linspace(-1, 2, width), torch.linspace(0.5, -0.5, width)
    assert_alike(*both, x, *(one.double().requires_grad_() for one in (weight, bias)))
    for ours, theirs in zip(norms[0].buffers(), norms[1].buffers(), strict=True):
        assert torch.equal(ours, theirs) and ours.abs().sum() > 0


def test_without_dropout_the_bits_are_those_of_the_modules() -> None:
    both, _, x = of_both(70, 11, 0.0, torch.float)
    weight, bias = (torch.rand(11).requires_grad_() for _ in range(2))
    assert_alike(*both, x, weight, bias, rtol=0, atol=0)


def test_its_gradient_is_that_of_differences() -> None:
    both, _, x = of_both(4, 3, 0.3)
    assert torch.autograd.gradcheck(both[0], [x, *(torch.rand(3).double().requires_grad_() for _ in range(2))])


def test_one_row_is_refused_as_the_norm_refuses_it() -> None:
    with pytest.raises(ValueError, match="more than 1 value"):
        norm_relu_dropout(torch.ones(1, 3), nn.BatchNorm1d(3), 0.4)


@pytest.mark.parametrize("settings", [(), ("batch_norm=true",), ("dropout=0.4",), ("batch_norm=true", "dropout=0.4")])
def test_a_perceptron_is_its_layers_one_after_the_other(settings: tuple[str, ...]) -> None:
    made, x = Deep(hidden=(9, 4)).override(*settings).build(5), torch.randn(30, 5)
    torch.manual_seed(0)
    found = made.train()(x)
    torch.manual_seed(0)
    torch.testing.assert_close(found, made.layers(x))
    torch.testing.assert_close(made.eval()(x), made.layers(x))
