"""Accuracy metrics equal those of ir-measures."""

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


def truth(wanted: list) -> Jagged:
    return Jagged.from_lists(wanted).distinct()


def table(lists: list, wanted: list, width: int = 20) -> MetricInputs:
    ids = np.array([(row + [-1] * width)[:width] for row in lists])
    targets = truth(wanted)
    return MetricInputs(match(ids, targets), targets.lengths)


@st.composite
def cases(draw: st.DrawFn, most_targets: int = 5) -> tuple:
    users = draw(st.integers(1, 6))
    lists = [draw(st.lists(st.integers(0, 24), unique=True, max_size=20)) for _ in range(users)]
    wanted = [draw(st.lists(st.integers(0, 24), min_size=1, max_size=most_targets)) for _ in range(users)]
    return lists, wanted


@given(case=cases(most_targets=1))
def test_one_target_each(case: tuple) -> None:
    """The short cut for leave-one-out."""
    check(case)


def check(case: tuple) -> None:
    """Every metric at every length; scores fall strictly, so that neither side has a tie to break."""
    lists, wanted = case
    measures = {measure @ k: (name, k) for name, measure in THEIRS.items() for k in KS}
    qrels = [ir_measures.Qrel(f"u{u}", f"i{i}", 1) for u, row in enumerate(wanted) for i in set(row)]
    run = [ir_measures.ScoredDoc(f"u{u}", f"i{i}", 100.0 - p) for u, row in enumerate(lists) for p, i in enumerate(row)]
    theirs = {(name, k): np.zeros(len(lists)) for name in THEIRS for k in KS}
    for value in ir_measures.iter_calc(list(measures), qrels, run):
        theirs[measures[value.measure]][int(value.query_id[1:])] = value.value
    for k in KS:
        precision, recall = theirs["precision", k], theirs["recall", k]
        theirs["f1", k] = 2 * precision * recall / np.maximum(precision + recall, 1e-9)
    for (name, k), values in theirs.items():
        assert parse_metric(f"{name}@{k}")(table(*case)) == pytest.approx(values, abs=1e-9), f"{name}@{k}"
    assert {name for name, _ in theirs} == set(ACCURACY)


@given(case=cases())
def test_equals_ir_measures(case: tuple) -> None:
    check(case)


def test_a_target_counts_once_however_often_it_was_bought() -> None:
    assert ACCURACY["recall"](table([[3, 4]], [[3, 3, 3]]), 1).tolist() == [1.0]
    assert truth([[3, 3], [5]]).values.tolist() == [3, 5]


def test_truth_and_empty_places() -> None:
    targets = truth([[0], [2, 1], [0]])
    assert (targets.values.tolist(), targets.offsets.tolist()) == ([0, 1, 2, 0], [0, 1, 3, 4])
    assert match(np.array([[-1, 0], [1, -1], [-1, -1]]), targets).tolist() == [[0, 1], [1, 0], [0, 0]]
