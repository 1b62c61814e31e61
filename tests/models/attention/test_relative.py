"""Relative attention against its formula, the classes of distances, and what its spec refuses."""

import math

import pytest
import torch

from fullrank.models.sequential.attention.relative import Relative, RelativeAttention, distance_classes
from refusals import refused
from tests.models.attention.test_softmax import check_by_hand
from tiny import shaken


def bucket(apart, count, both_sides) -> int:
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
def test_classes_of_distances(count, both_sides) -> None:
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
def test_equals_its_formula(causal) -> None:
    """softmax(q k / sqrt(e) + b) v."""
    attention = shaken(RelativeAttention(10, 16, Relative(heads=2, causal=causal, buckets=8)), 1.0).eval()

    def added(head, query, key):
        return attention.by_bucket[bucket(query - key, 8, not causal), head]

    check_by_hand(attention, [13, 11], 10, causal, added)


def test_refuses_classes_that_do_not_divide() -> None:
    with refused("invalid-setting", "30"):
        Relative().override("buckets=30")


@pytest.mark.parametrize("width", [None, 3])
def test_without_classes_it_is_softmax_attention(width) -> None:
    attention = shaken(RelativeAttention(8, 16, Relative(buckets=0, width=width)), 1.0).eval()
    check_by_hand(attention, [5, 3], 8, True)
