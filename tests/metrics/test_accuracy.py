"""Accuracy metrics equal plain loops and ir-measures; a wrong discount does not."""

from __future__ import annotations

import math
from collections.abc import Callable

import ir_measures
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fullrank.core.jagged import Jagged
from fullrank.metrics import MetricInputs, match
from fullrank.metrics.names import ACCURACY, parse_metric

KS = (1, 2, 3, 5, 10, 20)
THEIRS = {
    "ndcg": ir_measures.nDCG,
    "recall": ir_measures.R,
    "hit": ir_measures.Success,
    "mrr": ir_measures.RR,
    "map": ir_measures.AP,
    "precision": ir_measures.P,
}
Case = tuple[list[list[int]], list[list[int]]]


def loop_hit(ranked: list[int], wanted: set[int], k: int) -> float:
    return float(any(item in wanted for item in ranked[:k]))


def loop_recall(ranked: list[int], wanted: set[int], k: int) -> float:
    return sum(item in wanted for item in ranked[:k]) / len(wanted)


def loop_ndcg(ranked: list[int], wanted: set[int], k: int) -> float:
    gained = sum(1 / math.log2(place + 1) for place, item in enumerate(ranked[:k], 1) if item in wanted)
    return gained / sum(1 / math.log2(place + 1) for place in range(1, min(k, len(wanted)) + 1))


def loop_mrr(ranked: list[int], wanted: set[int], k: int) -> float:
    for place, item in enumerate(ranked[:k], 1):
        if item in wanted:
            return 1 / place
    return 0.0


def loop_map(ranked: list[int], wanted: set[int], k: int) -> float:
    found, total = 0, 0.0
    for place, item in enumerate(ranked[:k], 1):
        if item in wanted:
            found += 1
            total += found / place
    return total / len(wanted)


def loop_precision(ranked: list[int], wanted: set[int], k: int) -> float:
    return sum(item in wanted for item in ranked[:k]) / k


def loop_f1(ranked: list[int], wanted: set[int], k: int) -> float:
    p, r = loop_precision(ranked, wanted, k), loop_recall(ranked, wanted, k)
    return 2 * p * r / (p + r) if p + r else 0.0


LOOPS: dict[str, Callable[[list[int], set[int], int], float]] = {
    "ndcg": loop_ndcg,
    "recall": loop_recall,
    "hit": loop_hit,
    "mrr": loop_mrr,
    "map": loop_map,
    "precision": loop_precision,
    "f1": loop_f1,
}


def truth(wanted: list[list[int]]) -> Jagged:
    return Jagged.from_lists(wanted).distinct()


def table(lists: list[list[int]], wanted: list[list[int]], width: int = 20) -> MetricInputs:
    ids = np.array([(row + [-1] * width)[:width] for row in lists])
    targets = truth(wanted)
    return MetricInputs(match(ids, targets), targets.lengths)


@st.composite
def cases(draw: st.DrawFn, most_targets: int = 5) -> Case:
    users = draw(st.integers(1, 6))
    lists = [draw(st.lists(st.integers(0, 24), unique=True, max_size=20)) for _ in range(users)]
    wanted = [draw(st.lists(st.integers(0, 24), min_size=1, max_size=most_targets)) for _ in range(users)]
    return lists, wanted


def check_loops(case: Case, metric: str, ours: Callable[[MetricInputs, int], np.ndarray] | None = None) -> None:
    lists, wanted = case
    for k in KS:
        expected = [LOOPS[metric](row, set(w), k) for row, w in zip(lists, wanted, strict=True)]
        assert (ours or ACCURACY[metric])(table(*case), k) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("metric", LOOPS)
@given(case=cases())
def test_equals_plain_loops(metric: str, case: Case) -> None:
    check_loops(case, metric)


@given(case=cases(most_targets=1))
def test_one_target_each(case: Case) -> None:
    """The short cut for leave-one-out."""
    for metric in LOOPS:
        check_loops(case, metric)


@pytest.mark.parametrize("metric", THEIRS)
@given(case=cases())
def test_equals_ir_measures(metric: str, case: Case) -> None:
    """Scores fall strictly, so that neither side has a tie to break."""
    lists, wanted = case
    measures = [THEIRS[metric] @ k for k in KS]
    qrels = [ir_measures.Qrel(f"u{u}", f"i{i}", 1) for u, row in enumerate(wanted) for i in set(row)]
    run = [ir_measures.ScoredDoc(f"u{u}", f"i{i}", 100.0 - p) for u, row in enumerate(lists) for p, i in enumerate(row)]
    theirs = np.zeros((len(KS), len(lists)))
    for value in ir_measures.iter_calc(measures, qrels, run):
        theirs[measures.index(value.measure), int(value.query_id[1:])] = value.value
    for row, k in zip(theirs, KS, strict=True):
        assert parse_metric(f"{metric}@{k}")(table(*case)) == pytest.approx(row, abs=1e-9)


def test_a_target_counts_once_however_often_it_was_bought() -> None:
    assert ACCURACY["recall"](table([[3, 4]], [[3, 3, 3]]), 1).tolist() == [1.0]
    assert truth([[3, 3], [5]]).values.tolist() == [3, 5]


def test_truth_and_empty_places() -> None:
    targets = truth([[0], [2, 1], [0]])
    assert (targets.values.tolist(), targets.offsets.tolist()) == ([0, 1, 2, 0], [0, 1, 3, 4])
    assert match(np.array([[-1, 0], [1, -1], [-1, -1]]), targets).tolist() == [[0, 1], [1, 0], [0, 0]]


def _late(table: MetricInputs, k: int) -> np.ndarray:
    """nDCG with places counted from 0 in the list but from 1 in the ideal: the classical slip."""
    discounts = 1 / np.log2(np.arange(2, k + 3))
    hits = table.hits[:, :k]
    return hits @ discounts[1 : hits.shape[1] + 1] / np.cumsum(discounts)[np.minimum(table.relevant, k) - 1]


def _uncut(table: MetricInputs, k: int) -> np.ndarray:
    """nDCG whose ideal forgets that a list of k holds only k targets."""
    discounts = 1 / np.log2(np.arange(2, table.relevant.max() + 22))
    return table.hits[:, :k] @ discounts[:k] / np.cumsum(discounts)[table.relevant - 1]


def _found(table: MetricInputs, k: int) -> np.ndarray:
    """Average precision over the hits found instead of the targets there are."""
    hits = table.hits[:, :k]
    precision = np.cumsum(hits, 1) / np.arange(1, hits.shape[1] + 1)
    return (precision * hits).sum(1) / np.maximum(hits.sum(1), 1)


@pytest.mark.parametrize(("metric", "broken"), [("ndcg", _late), ("ndcg", _uncut), ("map", _found)])
def test_planted_faults_are_caught(metric: str, broken: Callable[[MetricInputs, int], np.ndarray]) -> None:
    with pytest.raises(AssertionError):
        check_loops(([[1, 2, 3], [4, 5]], [[2, 9], [5, 4, 8]]), metric, broken)
