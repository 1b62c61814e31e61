"""Relative attention against its formula, the classes of distances, and what its spec refuses."""

from __future__ import annotations

import math

import pytest
import torch

from fullrank.models.sequential.attention.relative import Relative, RelativeAttention, distance_classes
from refusals import refused
from tiny import close, histories, padded, shaken


def bucket(apart: int, count: int, both_sides: bool) -> int:
    """The class of one distance, in words: own ones first, then logarithms up to 128."""
    upper = 0
    if both_sides:
        count, upper = count // 2, count // 2 if apart < 0 else 0
        apart = abs(apart)
    apart, own = max(apart, 0), count // 2
    if apart < own:
        return apart + upper
    far = own + int(math.log(apart / own) / math.log(128 / own) * (count - own) + 1e-6)
    return min(far, count - 1) + upper


@pytest.mark.parametrize("both_sides", [True, False])
@pytest.mark.parametrize("count", [4, 8, 32])
def test_classes_of_distances(count: int, both_sides: bool) -> None:
    apart = torch.arange(-300, 301)
    found = distance_classes(apart, count, both_sides=both_sides)
    assert found.tolist() == [bucket(int(d), count, both_sides) for d in apart]
    idle = {count // 2} if both_sides else set()  # no key ahead is at distance 0; T5 has this row too
    assert set(found.tolist()) == set(range(count)) - idle


def test_a_table_of_t5() -> None:
    """Of 32 classes on both sides, distances below 8 have their own; the known edges of the others."""
    edges = {8: 8, 11: 8, 12: 9, 16: 10, 23: 11, 32: 12, 46: 13, 64: 14, 91: 15, 128: 15, 500: 15}
    found = distance_classes(torch.tensor(list(edges)), 32, both_sides=True)
    assert found.tolist() == list(edges.values())
    assert (distance_classes(-torch.tensor(list(edges)), 32, both_sides=True) - found == 16).all()


@pytest.mark.parametrize("causal", [True, False])
def test_equals_its_formula(causal: bool) -> None:
    """softmax(q k / sqrt(e) + b) v head by head and query by query, written with loops."""
    dim, heads, length = 10, 2, 13
    attention = shaken(RelativeAttention(dim, 16, Relative(heads=heads, causal=causal, buckets=8)), 1.0).eval()
    batch = padded(histories([length, length - 2]))
    x = torch.randn(2, length, dim)
    y = attention(x, batch)
    q, k, v = (x @ attention.qkv.weight.T).split(dim, -1)
    e = dim // heads
    for b, n in enumerate(batch.lengths.tolist()):
        for t in range(n):
            parts, upto = [], t + 1 if causal else n
            for h in range(heads):
                of = slice(h * e, (h + 1) * e)
                added = torch.stack([attention.by_bucket[bucket(t - j, 8, not causal), h] for j in range(upto)])
                parts.append((k[b, :upto, of] @ q[b, t, of] / e**0.5 + added).softmax(0) @ v[b, :upto, of])
            assert close(y[b, t], torch.cat(parts) @ attention.output.weight.T, 1e-4)


def test_refuses_classes_that_do_not_divide() -> None:
    with refused("invalid-buckets", "30"):
        Relative().override("buckets=30")


def test_without_classes_it_is_softmax_attention() -> None:
    """Of any width of a head."""
    for width in (None, 3):
        attention = shaken(RelativeAttention(8, 16, Relative(buckets=0, width=width)), 1.0).eval()
        batch, x = padded(histories([5, 3])), torch.randn(2, 5, 8)
        q, k, v = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in attention.qkv(x).chunk(3, -1))
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        wanted = attention.output(mixed.transpose(1, 2).flatten(2))
        assert close(attention(x, batch)[batch.valid], wanted[batch.valid])
