"""Fairness, popularity, its lift, inequality, coverage and novelty equal plain loops and worked examples."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fullrank.core.jagged import Jagged
from fullrank.metrics import MetricInputs, match
from fullrank.metrics.exposure import (
    arp,
    coverage,
    exposures,
    fair,
    gini,
    history_popularity,
    lift,
    niche,
    novelty,
    repeat,
)

Lists = list[list[int]]


def table(lists: Lists, popularity: list, width: int = 6) -> MetricInputs:
    ids = np.array([(row + [-1] * width)[:width] for row in lists])
    return MetricInputs(np.zeros(ids.shape, dtype=bool), np.ones(len(ids), dtype=np.int64), ids, np.array(popularity))


def loop_fair(row: list, popularity: list, k: int, alpha: float) -> float:
    order = sorted(range(len(popularity)), key=lambda item: (popularity[item], item))
    unpopular = order[: max(math.floor(alpha * len(popularity) + 1e-9), 1)]
    return sum(item in unpopular for item in row[:k]) / k


def loop_gini(counts: list) -> float:
    """Half the mean absolute difference over the mean: the definition, pair by pair."""
    size, total = len(counts), sum(counts)
    return sum(abs(a - b) for a in counts for b in counts) / (2 * size * total) if total else 0.0


def loop_mean(row: list, values: list, k: int) -> float:
    shown = row[:k]
    return sum(values[item] for item in shown) / len(shown) if shown else 0.0


@st.composite
def cases(draw: st.DrawFn) -> tuple:
    items = draw(st.integers(1, 15))
    popularity = draw(st.lists(st.integers(0, 6), min_size=items, max_size=items))
    row = st.lists(st.integers(0, items - 1), unique=True, max_size=6)
    return draw(st.lists(row, min_size=1, max_size=6)), popularity


@given(cases(), st.sampled_from([1, 3, 6]), st.sampled_from([0.05, 0.2, 0.5, 0.8, 0.95]))
def test_equal_plain_loops(case: tuple, k: int, alpha: float) -> None:
    lists, popularity = case
    rows = table(lists, popularity)
    total = sum(popularity) + len(popularity)
    bits = [-math.log2((count + 1) / total) for count in popularity]
    counts = [sum(item in row[:k] for row in lists) for item in range(len(popularity))]
    shown = exposures(np.array([(row + [-1] * 6)[:k] for row in lists]), len(popularity))
    assert shown.tolist() == counts
    assert fair(rows, k, alpha).tolist() == pytest.approx([loop_fair(r, popularity, k, alpha) for r in lists])
    assert arp(rows, k).tolist() == pytest.approx([loop_mean(r, popularity, k) for r in lists])
    assert novelty(rows, k).tolist() == pytest.approx([loop_mean(r, bits, k) for r in lists])
    assert float(gini(shown[None])[0]) == pytest.approx(loop_gini(counts), abs=1e-12)
    assert float(coverage(shown[None])[0]) == pytest.approx(sum(c > 0 for c in counts) / len(counts))


def loop_lift(row: list, history: list, popularity: list, k: int) -> float:
    chosen = sum(popularity[item] for item in history) / len(history) if history else 0.0
    return loop_mean(row, [float(count) for count in popularity], k) / chosen if chosen else 1.0


@given(cases(), st.data(), st.sampled_from([1, 3, 6]), st.sampled_from([1, 2, 100]))
def test_lift_equals_plain_loops(case: tuple, data: st.DataObject, k: int, chunk: int) -> None:
    """Whatever the number of users taken at once; histories repeat items and may be empty."""
    lists, popularity = case
    event = st.integers(0, len(popularity) - 1)
    histories = [data.draw(st.lists(event, max_size=5)) for _ in lists]
    chosen = history_popularity(Jagged.from_lists(histories, np.int32), np.array(popularity), chunk)
    found = lift(replace(table(lists, popularity), history=chosen), k)
    wanted = [loop_lift(row, h, popularity, k) for row, h in zip(lists, histories, strict=True)]
    assert found.tolist() == pytest.approx(wanted)


def test_unpopular_items_by_hand() -> None:
    """Ties of popularity go to the smaller id; the share is taken as written, not as its binary fraction."""
    assert np.flatnonzero(niche(np.array([5, 1, 1, 1, 9]), 0.4)).tolist() == [1, 2]
    assert niche(np.zeros(100, dtype=np.int64), 0.29).sum() == 29
    assert niche(np.zeros(3, dtype=np.int64), 0.1).sum() == 1


def test_repeat_is_the_share_of_places_with_items_of_the_own_history() -> None:
    lists, histories = np.array([[3, 1, 2], [0, 4, -1], [2, 2, 5]]), Jagged.from_lists([[1, 3, 3], [], [5]])
    rows = replace(table(lists.tolist(), [1] * 6, 3), repeats=match(lists, histories))
    assert repeat(rows, 1).tolist() == [1, 0, 0]
    assert repeat(rows, 3).tolist() == pytest.approx([2 / 3, 0, 1 / 3])
