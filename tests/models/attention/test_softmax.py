"""Softmax attention against its formula, rotary positions, and what its spec refuses."""

import math

import pytest
import torch
from torch import Tensor

from fullrank.models.sequential.attention import mask, rotate
from fullrank.models.sequential.attention.softmax import SoftmaxAttention
from parts import Softmax
from refusals import refused
from tiny import close, histories, padded, shaken


def by_hand(attention, x, causal, added=lambda head, query, key: 0.0) -> Tensor:
    """softmax(q k / sqrt(e) + what is added) v of one row, head by head and query by query."""
    q, k, v = attention.qkv(x).unflatten(-1, (3, attention.heads, -1)).unbind(1)
    rows = []
    for t in range(len(x)):
        upto, parts = t + 1 if causal else len(x), []
        for h in range(attention.heads):
            scores = [k[j, h] @ q[t, h] / q.shape[-1] ** 0.5 + added(h, t, j) for j in range(upto)]
            parts.append(torch.stack(scores).softmax(0) @ v[:upto, h])
        rows.append(attention.output(torch.cat(parts)))
    return torch.stack(rows)


def check_by_hand(attention, lengths, dim, causal, *added) -> None:
    batch, x = padded(histories(lengths)), torch.randn(len(lengths), lengths[0], dim)
    for row, n, y in zip(x, lengths, attention(x, batch), strict=True):
        assert close(y[:n], by_hand(attention, row[:n], causal, *added), 1e-4)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("dim", "heads", "length"), [(6, 3, 1), (7, 1, 5), (10, 2, 13)])
def test_equals_its_formula(causal, dim, heads, length) -> None:
    attention = shaken(SoftmaxAttention(dim, 16, Softmax(heads=heads, causal=causal, bias=True)), 1.0).eval()
    check_by_hand(attention, [length, max(1, length - 2)], dim, causal)


@pytest.mark.parametrize("width", [2, 8, 14])
def test_rotation_is_relative(width) -> None:
    """The inner product of rotated vectors depends on the distance of their positions alone; lengths are kept."""
    q, k = torch.randn(1, 1, 6, width), torch.randn(1, 1, 6, width)
    at = torch.arange(6)[None]

    def scores(shift_q, shift_k):
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
