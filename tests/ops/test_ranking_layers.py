"""Layers of ranking models: dropout keeps its share and expectations exactly; norm, ReLU and dropout in one step, and a
cross layer by hand, equal those that autograd differentiates, in values, gradients and averages.
"""

import pytest
import torch
from torch import nn

from fullrank.models.ranking.dnn import Deep
from fullrank.ops import ranking_layers
from fullrank.ops.ranking_layers import (
    STEPS,
    Dropout,
    cross,
    cross_reference,
    draws,
    dropout,
    keep_mask,
    keep_probability,
    norm_relu_dropout,
    norm_relu_dropout_reference,
    wide_perceptron,
    wide_perceptron_reference,
)
from tests.ops.alike import assert_alike, leaves


@pytest.mark.parametrize("p", [0.1, 0.4, 0.5, 0.9])
def test_it_keeps_its_share_and_the_sum(p: float) -> None:
    torch.manual_seed(0)
    x = torch.ones(301, 203, requires_grad=True)
    out = dropout(x, p)
    kept = out.detach() != 0
    assert abs(kept.float().mean() - (1 - p)) < 4 * (p * (1 - p) / x.numel()) ** 0.5
    assert torch.equal(out.detach(), kept / torch.tensor(keep_probability(p)))
    (gradient,) = torch.autograd.grad(out.sum(), x)
    assert torch.equal(gradient, out.detach())


@pytest.mark.parametrize("p", [0.4, 1e-9, 1 - 1e-9])
def test_the_share_is_exactly_that_of_all_draws(p: float) -> None:
    """Over each of the 2^16 values that a draw may have; never all of them and never none."""
    every = torch.arange(-STEPS // 2, STEPS // 2, dtype=torch.int16)
    share = keep_mask(every, keep_probability(p), torch.empty(STEPS)).mean().item()
    assert share == keep_probability(p) and 0 < share < 1 and abs(share - (1 - p)) <= 1 / STEPS


def test_draws_are_even_and_know_nothing_of_each_other() -> None:
    torch.manual_seed(0)
    bits = torch.stack([(draws((400_000,)).long() >> place) & 1 for place in range(16)]).double()
    lagged = torch.cat([bits, bits.roll(1, 1), bits.roll(4, 1)])
    expected = 4.5 / bits.shape[1] ** 0.5
    assert (2 * bits.mean(1) - 1).abs().max() < expected
    assert (lagged.corrcoef() - torch.eye(len(lagged))).abs().max() < expected


def test_a_seed_gives_the_same_units_and_the_next_draw_others() -> None:
    x = torch.ones(7, 9)
    torch.manual_seed(3)
    first, second = dropout(x, 0.5), dropout(x, 0.5)
    torch.manual_seed(3)
    assert torch.equal(dropout(x, 0.5), first) and not torch.equal(first, second)


def test_odd_shapes_types_and_layouts() -> None:
    for x in (torch.ones(0, 3), torch.ones(()), torch.ones(5, 3).T, torch.ones(3, 1, 2, dtype=torch.bfloat16)):
        out = dropout(x, 0.5)
        assert out.shape == x.shape and out.dtype == x.dtype and ((out == 0) | (out == 2)).all()


def test_evaluation_drops_nothing() -> None:
    x = torch.ones(50, 50)
    assert torch.equal(Dropout(0.5).eval()(x), x) and not torch.equal(Dropout(0.5)(x), x)
    assert dropout(x, 0.0) is x


def test_what_is_compiled_takes_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    x = torch.ones(20, 30)
    torch.manual_seed(0)
    ours = dropout(x, 0.4)
    torch.manual_seed(0)
    assert torch.equal(ours, torch.nn.functional.dropout(x, 0.4))


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
