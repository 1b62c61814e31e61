"""The shortcut diagnostic: branching and successors by hand, models that read the last events alone, the verdict."""

import math

import numpy as np
import polars as pl
import pytest
import torch
from scipy import sparse

from fullrank.analysis.activations import sample_users
from fullrank.analysis.diagnosis import Diagnosis
from fullrank.analysis.diagnostics.shortcut import LastEvents, Shortcut, branching, data_rows, reached_share, verdict
from fullrank.data.events.catalog import Catalog
from fullrank.evaluation import Evaluation, evaluate
from fullrank.models.sequential.baselines.transition_graph import TransitionGraph
from tests.analysis.conftest import STORE, context_of, everyone, model_of, shop
from tiny import padded, store


def test_branching_by_hand() -> None:
    """0 goes to 1 and 2 alike (2 successors), 1 always to 2 (1): weighted by 2 and 2 transitions."""
    counts = sparse.csr_matrix(np.array([[0, 1, 1], [0, 0, 2], [0, 0, 0]], float))
    assert branching(counts) == pytest.approx((2 * 2 + 2 * 1) / 4)
    skewed = sparse.csr_matrix(np.array([[0, 3, 1], [0, 0, 0], [0, 0, 0]], float))
    assert branching(skewed) == pytest.approx(math.exp(-0.75 * math.log(0.75) - 0.25 * math.log(0.25)))
    assert branching(sparse.csr_matrix((3, 3))) is None


def test_successors_of_the_last_one_and_two_items_by_hand() -> None:
    """Trained on 0 1 2, 0 1 3 and 4 0 (rows without their last two): 0>1 twice, 1>2, 1>3, 4>0."""
    rows = [[0, 1, 2, 4, 0], [0, 1, 3, 1, 3], [4, 0, 2, 1]]
    data = store(rows, 5)
    sample = sample_users(data, "test", 10)
    found = {one["index"]: one["value"] for one in data_rows(data, sample) if one["name"] == "target_is_successor"}
    # last > target: 4 > 0 yes, 1 > 3 yes, 2 > 1 no; of the third, the one before: 0 > 1 yes
    assert found == {1: pytest.approx(2 / 3), 2: 1.0}


def test_feature_similarity_compares_consecutive_and_random_pairs() -> None:
    rows = [[i, i + 1, i + 2, 0, 0] for i in range(0, 18, 3)]
    data = store(rows, 18)
    brand = [f"make{i // 3}" for i in range(18)]
    kept = data.catalog.frame.select("item", "item_id", "train_count").with_columns(brand=pl.Series(brand))
    data.catalog = Catalog(kept)
    sample = sample_users(data, "test", 10)
    found = {one["label"]: one["value"] for one in data_rows(data, sample) if one["name"] == "feature_similarity"}
    assert found["consecutive"] == pytest.approx(1.0) and found["random"] < 0.6
    data.catalog = Catalog(kept.drop("brand"))
    assert any(one["name"] == "left_out" for one in data_rows(data, sample))


def test_last_events_reads_them_alone() -> None:
    model = model_of()
    short = LastEvents(model, 2)
    spec = Evaluation(metrics=("ndcg@10",), slices=False, bootstrap=0)
    assert short.max_length == 2 and LastEvents(model, 10**6).max_length == model.max_length
    whole, cut = (evaluate(one, STORE, "test", spec).metrics["ndcg@10"] for one in (model, short))
    assert whole != cut
    with torch.inference_mode():
        asked = padded([[3, 5]])
        assert torch.equal(short.answer(asked).block(0, 5), model.answer(asked).block(0, 5))


def test_a_graph_reaches_all_of_a_graph() -> None:
    """The rows of the baseline itself: its share is 1, and its own last two events are all that it reads."""
    data = shop(users=60)
    model = model_of(TransitionGraph(), data)
    rows = Shortcut(context_of(model, everyone(data), data)).rows()
    found = Diagnosis(tuple(rows))
    share = {one["label"]: one["value"] for one in found.of("shortcut", "share_of_model")}
    assert share["graph"] == share["last_2"] == 1.0 and share["last_1"] != 1.0
    assert reached_share(found) == 1.0
    assert verdict(found) == "a graph of the last two items reaches 100% of this model's ndcg@10"
    assert verdict(Diagnosis(())) is None
    doubled = [{**one, "value": 2 * one["value"]} if one["name"] == "share_of_model" else one for one in rows]
    assert verdict(Diagnosis(tuple(doubled))) == "a graph of the last two items reaches 2.0 times this model's ndcg@10"
