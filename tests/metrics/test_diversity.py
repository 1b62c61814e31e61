"""Intra-list diversity against loops over sets, through the evaluation of a store with categories."""

from itertools import combinations
from typing import Any

import numpy as np
import polars as pl
import pytest

from fakes import Kept, Whole
from fullrank.data.events.catalog import Catalog
from fullrank.evaluation import Evaluation, EvaluationResult, evaluate
from fullrank.evaluation.compare import compare
from fullrank.metrics import MetricInputs
from fullrank.metrics.diversity import ild
from refusals import refused

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
