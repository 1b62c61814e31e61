"""Softmax attention against its formula, rotary positions, and what its spec refuses."""

from __future__ import annotations

import math

import pytest
import torch

from fullrank.models.sequential.attention import mask
from fullrank.models.sequential.attention.positions import rotate
from fullrank.models.sequential.attention.softmax import Softmax, SoftmaxAttention
from refusals import refused
from tiny import close, histories, padded, shaken


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("dim", "heads", "length"), [(6, 3, 1), (7, 1, 5), (10, 2, 13)])
def test_equals_its_formula(causal: bool, dim: int, heads: int, length: int) -> None:
    """softmax(q k / sqrt(e)) v head by head and query by query, written with loops."""
    attention = SoftmaxAttention(dim, 16, Softmax(heads=heads, causal=causal, bias=True))
    shaken(attention, 1.0).eval()
    batch = padded(histories([length, max(1, length - 2)]))
    x = torch.randn(2, length, dim)
    y = attention(x, batch)
    q, k, v = (x @ attention.qkv.weight.T + attention.qkv.bias).split(dim, -1)
    e = dim // heads
    for b, n in enumerate(batch.lengths.tolist()):
        for t in range(n):
            parts = []
            for h in range(heads):
                of = slice(h * e, (h + 1) * e)
                upto = t + 1 if causal else n
                weights = (k[b, :upto, of] @ q[b, t, of] / e**0.5).softmax(0)
                parts.append(weights @ v[b, :upto, of])
            wanted = torch.cat(parts) @ attention.output.weight.T + attention.output.bias
            assert close(y[b, t], wanted, 1e-4)


@pytest.mark.parametrize("width", [2, 8, 14])
def test_rotation_is_relative(width: int) -> None:
    """The inner product of rotated vectors depends on the distance of their positions alone; lengths are kept."""
    q, k = torch.randn(1, 1, 6, width), torch.randn(1, 1, 6, width)
    at = torch.arange(6)[None]

    def scores(shift_q: int, shift_k: int) -> torch.Tensor:
        return rotate(q, at + shift_q) @ rotate(k, at + shift_k).mT

    assert close(scores(0, 0), scores(17, 17), 1e-4)
    assert not close(scores(0, 0), scores(17, 16), 1e-2)
    assert close(rotate(q, at).norm(dim=-1), q.norm(dim=-1))
    assert close(rotate(q, torch.zeros_like(at)), q)


def test_rotation_by_hand() -> None:
    x = torch.tensor([1.0, 0.0, 0.0, 1.0])[None, None, None]  # two planes: (x0, x2) and (x1, x3)
    turned = rotate(x, torch.tensor([[3]]))[0, 0, 0]
    slow = 3 * 10_000**-0.5
    assert close(turned, torch.tensor([math.cos(3), -math.sin(slow), math.sin(3), math.cos(slow)]))


def test_rope_sees_order_and_plain_attention_does_not() -> None:
    batch = padded(histories([6]))
    x = torch.randn(1, 6, 8)
    order = torch.tensor([3, 0, 4, 1, 2, 5])
    for rope in (False, True):
        attention = shaken(SoftmaxAttention(8, 16, Softmax(rope=rope)), 1.0).eval()
        same = close(attention(x, batch)[:, -1], attention(x[:, order], batch)[:, -1])
        assert same is (not rope)


def test_dropout_in_training_alone() -> None:
    attention = shaken(SoftmaxAttention(8, 16, Softmax(dropout=0.5)))
    batch, x = padded(histories([6])), torch.randn(1, 6, 8)
    attention.eval()
    assert torch.equal(attention(x, batch), attention(x, batch))
    attention.train()
    torch.manual_seed(0)
    first = attention(x, batch)
    assert not close(first, attention(x, batch))
    torch.manual_seed(0)
    assert torch.equal(first, attention(x, batch))


def test_mask() -> None:
    """Keys of the row, up to the query; a padded query sees the first key, so that no row is empty."""
    batch = padded([[1, 2, 3], [1]])
    causal, both = mask(batch, causal=True), mask(batch, causal=False)
    assert causal[0, 0].int().tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    assert both[0, 0].all()
    assert causal[1, 0].int().tolist() == both[1, 0].int().tolist() == [[1, 0, 0]] * 3
    empty = mask(padded([[], [1]]), causal=False)
    assert empty[0, 0].int().tolist() == [[1]]


def test_refusals() -> None:
    with refused("width-not-divisible", "softmax", 10, 3):
        Softmax(heads=3).build(10, 5)
    with refused("width-not-even", "softmax", 3):
        Softmax(heads=2, rope=True).build(6, 5)
    assert Softmax(heads=2).build(6, 5)(torch.randn(1, 1, 6), padded([[1]])).shape == (1, 1, 6)
