"""The table that is printed of an evaluation: five rows, and what is the same said once."""

from typing import Any

import numpy as np

from fakes import Kept, Whole
from fullrank.evaluation import Evaluation, EvaluationResult, evaluate
from fullrank.evaluation.summary import MetricTable, metric_table

KEPT = Kept.random(60, 40, longest=20)


def several(store: Kept) -> Kept:
    """The same users with two targets each."""
    bounds = np.stack([store.bounds[:, 0] - 1, store.bounds[:, 0]], 1)
    return Kept(store.items, store.offsets, np.maximum(bounds, store.offsets[:-1, None]), store.catalog)


def measured(store: Kept, *settings: str) -> EvaluationResult:
    return evaluate(Whole(40), store, "test", Evaluation(bootstrap=0).override(*settings))


def tabled(found: EvaluationResult, **how: Any) -> MetricTable:
    return metric_table(found.metrics, found.per_user.values, **how)


def test_five_rows_and_one_of_each_that_coincide() -> None:
    found = tabled(measured(KEPT))
    assert [row[0] for row in found.rows] == ["ndcg", "recall", "mrr", "fair0.8", "coverage"]
    assert found.note == "with one target a user hit = recall, map = mrr" and found.main == "ndcg@10"
    assert found.headers == ["metric", "@1", "@5", "@10", "@20"]


def test_all_shows_what_was_computed() -> None:
    result = measured(KEPT)
    found = tabled(result, whole=True)
    assert [row[0] for row in found.rows] == list(dict.fromkeys(name.split("@")[0] for name in result.metrics))


def test_several_targets_have_numbers_of_their_own() -> None:
    assert tabled(measured(several(KEPT))).note == ""


def test_few_metrics_are_all_shown_and_the_selected_one_leads() -> None:
    found = tabled(measured(KEPT, "metrics=[gini, novelty, recall@7]"))
    assert [row[0] for row in found.rows] == ["gini", "novelty", "recall"] and found.main == "recall@7"
    chosen = tabled(measured(KEPT), selection="map@20")
    assert "map" in [row[0] for row in chosen.rows] and chosen.main == "map@20"


def test_a_result_prints_as_its_table() -> None:
    text = str(measured(KEPT))
    lines = text.splitlines()
    assert lines[0].split() == ["metric", "@1", "@5", "@10", "@20"] and len(lines) == 8
    assert "60 users of the test split, 40 items" in text and "hit = recall" in text
