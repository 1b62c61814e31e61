"""Layers of ranking models: norm, ReLU and dropout in one step, a perceptron in blocks of rows and a cross by hand
equal those that autograd differentiates, in values, gradients and averages.
"""

import pytest
import torch
from torch import nn

from fullrank.models.ranking.dnn import Deep
from fullrank.ops import ranking_layers
from fullrank.ops.ranking_layers import (
    cross,
    cross_reference,
    norm_relu_dropout,
    norm_relu_dropout_reference,
    wide_perceptron,
    wide_perceptron_reference,
)
from tests.ops.alike import assert_alike, leaves


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
    monkeypatch.setattr(ranking_layers, "GRAIN", 7 * width)  # several blocks, the last one shorter
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


def of_wide(chunks: int, inner: int, outer: int, normed: bool, p: float, dtype: torch.dtype = torch.double) -> tuple:
    """Both as functions of (x, *weights) at one seed, and the weights."""
    scale = [(7,)] if normed else []
    weights = leaves((7, inner), (7,), *scale, (outer, 7), (outer,), dtype=dtype)

    def with_weights(function):
        def of(x, *weights):
            torch.manual_seed(0)
            up, norm, down = nn.Linear(inner, 7), nn.RMSNorm(7, eps=1e-12), nn.Linear(7, outer)
            for layer, given in ((up, weights[:2]), (norm, weights[2:3]), (down, weights[-2:])):
                layer.__dict__["_parameters"] |= dict(zip(("weight", "bias"), given, strict=False))
            return function(x, up, norm if normed else None, down, p)

        return of

    return with_weights(wide_perceptron), with_weights(wide_perceptron_reference), weights


@pytest.mark.parametrize("p", [0.0, 0.4])
@pytest.mark.parametrize("normed", [True, False])
@pytest.mark.parametrize(("rows", "chunks"), [(1, 1), (3, 5), (37, 4)])
def test_a_wide_perceptron_equals_its_reference(
    rows: int, chunks: int, normed: bool, p: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranking_layers, "ROWS_GRAIN", 8 * 7 * chunks)  # several blocks, the last one shorter
    ours, theirs, weights = of_wide(chunks, 3, 2, normed, p)
    assert_alike(ours, theirs, *leaves((rows, chunks, 3), dtype=torch.double), *weights)


def test_the_gradient_of_a_wide_perceptron_is_that_of_differences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranking_layers, "ROWS_GRAIN", 1)
    ours, _, weights = of_wide(2, 3, 2, True, 0.3)
    assert torch.autograd.gradcheck(ours, [*leaves((9, 2, 3), dtype=torch.double), *weights])


def test_a_wide_perceptron_under_mixed_precision_is_its_reference_nearly() -> None:
    ours, theirs, weights = of_wide(2, 3, 2, True, 0.4, torch.float)
    x = leaves((40, 2, 3), dtype=torch.float)
    with torch.autocast("cpu", torch.bfloat16):
        outs = [function(*x, *weights).float() for function in (ours, theirs)]
    torch.testing.assert_close(*outs, rtol=0.02, atol=0.02)
    grads = [torch.autograd.grad(out.sum(), [*x, *weights]) for out in outs]
    torch.testing.assert_close(*grads, rtol=0.05, atol=0.05)


def drawn(rows: int, width: int) -> list:
    return leaves((rows, width), (rows, width), (width, width), (width,), dtype=torch.double)


@pytest.mark.parametrize(("rows", "width"), [(1, 1), (5, 3), (17, 8), (64, 33)])
def test_a_cross_equals_its_reference(rows: int, width: int) -> None:
    first, x, weight, bias = drawn(rows, width)
    assert_alike(cross, cross_reference, first, x, weight, bias)
    # the first layer crosses its input with itself
    assert_alike(*(lambda x, *layer, op=op: op(x, x, *layer) for op in (cross, cross_reference)), x, weight, bias)


def test_the_gradient_of_a_cross_is_that_of_differences() -> None:
    assert torch.autograd.gradcheck(cross, drawn(3, 4))


def test_mixed_precision_takes_the_reference() -> None:
    inputs = [x.detach().float() for x in drawn(5, 3)]
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(cross(*inputs), cross_reference(*inputs))
