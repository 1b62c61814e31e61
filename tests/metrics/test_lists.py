"""Metrics of lists: accuracy equals that of ir-measures; fairness, popularity, inequality, coverage, novelty and
diversity equal plain loops and worked examples.
"""

import math
from dataclasses import replace
from itertools import combinations
from typing import Any

import ir_measures
import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes import Kept, Whole
from fullrank.core.jagged import Jagged
from fullrank.data.events.catalog import Catalog
from fullrank.evaluation import Evaluation, EvaluationResult, evaluate
from fullrank.evaluation.compare import compare
from fullrank.metrics import MetricInputs, match
from fullrank.metrics.lists import (
    arp,
    coverage,
    exposures,
    fair,
    gini,
    history_popularity,
    ild,
    lift,
    niche,
    novelty,
    repeat,
)
from fullrank.metrics.names import ACCURACY, parse_metric
from refusals import refused

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


Lists = list[list[int]]


def exposed(lists: Lists, popularity: list, width: int = 6) -> MetricInputs:
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
def catalogues(draw: st.DrawFn) -> tuple:
    items = draw(st.integers(1, 15))
    popularity = draw(st.lists(st.integers(0, 6), min_size=items, max_size=items))
    row = st.lists(st.integers(0, items - 1), unique=True, max_size=6)
    return draw(st.lists(row, min_size=1, max_size=6)), popularity


@given(catalogues(), st.sampled_from([1, 3, 6]), st.sampled_from([0.05, 0.2, 0.5, 0.8, 0.95]))
def test_equal_plain_loops(case: tuple, k: int, alpha: float) -> None:
    lists, popularity = case
    rows = exposed(lists, popularity)
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


@given(catalogues(), st.data(), st.sampled_from([1, 3, 6]), st.sampled_from([1, 2, 100]))
def test_lift_equals_plain_loops(case: tuple, data: st.DataObject, k: int, chunk: int) -> None:
    """Whatever the number of users taken at once; histories repeat items and may be empty."""
    lists, popularity = case
    event = st.integers(0, len(popularity) - 1)
    histories = [data.draw(st.lists(event, max_size=5)) for _ in lists]
    chosen = history_popularity(Jagged.from_lists(histories, np.int32), np.array(popularity), chunk)
    found = lift(replace(exposed(lists, popularity), history=chosen), k)
    wanted = [loop_lift(row, h, popularity, k) for row, h in zip(lists, histories, strict=True)]
    assert found.tolist() == pytest.approx(wanted)


def test_each_row_of_exposures_is_a_set_of_lists_of_its_own() -> None:
    rows = np.array([[3, 0, 1], [0, 0, 8], [2, 2, 2]])
    assert gini(rows).tolist() == pytest.approx([loop_gini(row) for row in rows.tolist()])
    assert coverage(rows).tolist() == pytest.approx([2 / 3, 1 / 3, 1])


@pytest.mark.parametrize("lacks", ["ids", "popularity"])
def test_what_reads_full_lists_says_so_where_there_are_places_alone(lacks: str) -> None:
    with pytest.raises(AssertionError, match="full lists"):
        arp(replace(exposed([[0, 1]], [3, 4]), **{lacks: None}), 2)


def test_unpopular_items_by_hand() -> None:
    """Ties of popularity go to the smaller id; the share is taken as written, not as its binary fraction."""
    assert np.flatnonzero(niche(np.array([5, 1, 1, 1, 9]), 0.4)).tolist() == [1, 2]
    assert niche(np.zeros(100, dtype=np.int64), 0.29).sum() == 29
    assert niche(np.zeros(3, dtype=np.int64), 0.1).sum() == 1


def test_repeat_is_the_share_of_places_with_items_of_the_own_history() -> None:
    lists, histories = np.array([[3, 1, 2], [0, 4, -1], [2, 2, 5]]), Jagged.from_lists([[1, 3, 3], [], [5]])
    rows = replace(exposed(lists.tolist(), [1] * 6, 3), repeats=match(lists, histories))
    assert repeat(rows, 1).tolist() == [1, 0, 0]
    assert repeat(rows, 3).tolist() == pytest.approx([2 / 3, 0, 1 / 3])


ITEMS = 40
RNG = np.random.default_rng(0)
BRANDS = [None if v == 0 else f"b{v}" for v in RNG.integers(0, 5, ITEMS)]
TAGS = [[f"t{v}" for v in RNG.permutation(6)[: RNG.integers(0, 4)]] for _ in range(ITEMS)]


def kept() -> Any:
    store = Kept.random(50, ITEMS, longest=12)
    count = store.catalog.popularity
    frame = pl.DataFrame({"item": np.arange(ITEMS), "item_id": np.arange(ITEMS), "train_count": count,
                          "brand": BRANDS, "tags": TAGS})  # fmt: skip
    return Kept(store.items, store.offsets, store.bounds, Catalog(frame))  # type: ignore[arg-type]


def measured(*settings: str) -> EvaluationResult:
    return evaluate(Whole(ITEMS), kept(), "test", Evaluation(bootstrap=0, ks=(1, 4, 10)).override(*settings))


def looped(items: list, values: list) -> float:
    """The slow twin: sets of every pair."""
    known = [values[item] for item in items if item >= 0 and values[item]]
    pairs = [1 - len(a & b) / len(a | b) for a, b in combinations(known, 2)]
    return float(np.mean(pairs)) if pairs else 0.0


@pytest.mark.parametrize(
    ("column", "values"), [("brand", [{v} - {None} for v in BRANDS]), ("tags", list(map(set, TAGS)))]
)
def test_equals_loops_over_sets(column: str, values: list) -> None:
    found = measured(f"diversity_by={column}")
    assert found.protocol["diversity_by"] == column
    for k in (1, 4, 10):
        expected = [looped(row[:k].tolist(), values) for row in found.per_user.lists]
        assert found.per_user.values[f"ild@{k}"] == pytest.approx(expected)
    assert 0 < found.metrics["ild@10"] < 1 and found.metrics["ild@1"] == 0


def test_empty_places_and_equal_items() -> None:
    codes = np.array([[1, 2], [1, -1], [0, -1], [3, -1]])
    ids = np.array([[0, 1, -1], [1, 3, -1], [1, 2, -1], [-1, -1, -1], [3, 3, 3]])
    table = MetricInputs(ids == 9, np.ones(5, int), ids, np.ones(4, int), categories=codes)
    assert ild(table, 3).tolist() == [0.5, 1.0, 0.0, 0.0, 0.0]


def test_it_is_measured_where_it_is_said_by_what() -> None:
    assert "ild@10" in measured("diversity_by=brand").metrics and "ndcg@10" in measured("diversity_by=brand").metrics
    assert "ild@10" not in measured().metrics and "diversity_by" not in measured().protocol
    assert list(measured("diversity_by=tags", "metrics=[ild@5]").metrics) == ["ild@5"]
    with refused("metric-without-column", "diversity_by"):
        Evaluation().override("metrics=[ild]")
    with refused("setting-without-effect", "diversity_by"):
        Evaluation().override("metrics=[ndcg]", "diversity_by=brand")
    with refused("unknown-column", "brand"):
        measured("diversity_by=brnd")


def test_lists_by_different_columns_are_not_compared() -> None:
    with refused("protocols-differ", "diversity_by"):
        compare(measured("diversity_by=brand"), measured("diversity_by=tags"), "ild@10")


def test_training_chooses_without_it() -> None:
    assert [str(n) for n in Evaluation(diversity_by="brand").for_selection().names()] == ["ndcg@10"]
