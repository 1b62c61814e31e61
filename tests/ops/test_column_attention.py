"""Attention with column sums against its reference: values and gradients, blocks, dropout, memory."""

import pytest
import torch
from torch import Tensor

from fullrank.ops import column_attention as module
from fullrank.ops.column_attention import column_attention, column_attention_reference
from tests.ops.alike import assert_alike, values_and_gradients
from tiny import drawn

CAUSAL = pytest.mark.parametrize("causal", [True, False])
SIZES = [(1, 1, 1, 1), (3, 2, 7, 5), (4, 3, 13, 8), (2, 1, 31, 3)]


def case(b: int, h: int, t: int, e: int) -> tuple:
    generator = torch.Generator().manual_seed(b + t)
    qkv = torch.randn(3, b, h, t, e, generator=generator).requires_grad_().unbind()
    lengths = torch.randint(0, t + 1, (b, 1), generator=generator)
    return *qkv, torch.arange(t) < lengths


def assert_equals_its_reference(*inputs: Tensor, **settings) -> None:
    """In output, sums, log-sum-exps, and the gradients of the first two."""
    assert_alike(column_attention, column_attention_reference, *inputs, differentiated=2, **settings)


@CAUSAL
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("block", "elements"), [(128, 10**6), (5, 60), (1, 1)])
def test_equals_its_reference(
    size: tuple, causal: bool, block: int, elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BLOCK", block)
    monkeypatch.setattr(module, "BLOCK_ELEMENTS", elements)
    assert_equals_its_reference(*case(*size), causal=causal, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dropped", [True, False])
@CAUSAL
def test_gradients_under_dropout_are_those_of_the_values(causal: bool, dropped: bool) -> None:
    """The backward pass must meet the very weights that were dropped: checked by differences, in float32."""
    q, k, v, valid = case(2, 2, 6, 4)

    def loss(x: Tensor) -> Tensor:
        torch.manual_seed(4)
        out, sums, _ = column_attention(*x.unbind(0), valid, causal=causal, dropout=0.5, dropped_columns=dropped)
        return (out * torch.arange(out.numel()).view_as(out).sin()).sum() + sums.square().sum()

    leaf = torch.stack([q, k, v]).requires_grad_()
    (found,) = torch.autograd.grad(loss(leaf), leaf)
    for seed in range(6):
        way = drawn(*leaf.shape, seed=seed)
        with torch.no_grad():
            slope = (loss(leaf + 5e-3 * way) - loss(leaf - 5e-3 * way)) / 1e-2
        torch.testing.assert_close((found * way).sum(), slope, rtol=2e-2, atol=2e-2)


def test_dropout_keeps_the_mean_and_repeats_with_the_seed() -> None:
    q, k, v, valid = case(3, 2, 7, 5)
    exact = column_attention(q, k, v, valid, causal=True)
    torch.manual_seed(0)
    draws = [column_attention(q, k, v, valid, causal=True, dropout=0.5, dropped_columns=True) for _ in range(2000)]
    for part in (0, 1):
        mean = torch.stack([d[part] for d in draws]).mean(0)
        torch.testing.assert_close(mean, exact[part], rtol=0.2, atol=0.2)
    torch.testing.assert_close(
        column_attention(q, k, v, valid, causal=True, dropout=0.5)[1], exact[1], msg="sums are of undropped weights"
    )
    torch.manual_seed(0)
    again = column_attention(q, k, v, valid, causal=True, dropout=0.5, dropped_columns=True)
    assert torch.equal(again[0], draws[0][0]) and torch.equal(again[1], draws[0][1])


def test_sums_count_every_valid_query_once() -> None:
    q, k, v, valid = case(4, 3, 13, 8)
    _, sums, _ = column_attention(q, k, v, valid, causal=True)
    torch.testing.assert_close(sums.sum(-1), valid.sum(1, keepdim=True).expand(-1, 3).float())
    assert not sums.masked_select(~valid[:, None]).any(), "padded keys receive nothing"


def test_large_scores_and_half_precision() -> None:
    q, k, v, valid = case(2, 2, 9, 4)
    found = values_and_gradients(column_attention, 300 * q, 300 * k, v, valid, causal=True, differentiated=2)
    assert all(x.isfinite().all() for x in found)
    half = column_attention(*(x.bfloat16() for x in (q, k, v)), valid, causal=True)
    assert half[0].dtype == torch.bfloat16 and half[1].dtype == torch.float32
    torch.testing.assert_close(half[1], column_attention(q, k, v, valid, causal=True)[1], rtol=0.05, atol=0.05)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@CAUSAL
def test_on_cuda(causal: bool) -> None:
    inputs = [x.cuda() for x in case(4, 3, 200, 16)]
    assert_equals_its_reference(*inputs, causal=causal, rtol=1e-3, atol=1e-3)
