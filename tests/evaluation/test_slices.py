"""Slices: who belongs where, by hand, and their means against the rows they are made of."""

import numpy as np
import pytest

from fakes import Kept, Whole
from fullrank.core.jagged import Jagged
from fullrank.evaluation import Evaluation, evaluate
from fullrank.evaluation.slices import LABELS, popularity_bands, slice_codes, slice_means


def test_popularity_bands_hold_a_third_of_the_events_each() -> None:
    assert popularity_bands(np.array([1, 6, 3, 2, 0])).tolist() == [2, 0, 1, 2, 2]
    assert popularity_bands(np.array([100, 1, 0])).tolist() == [0, 2, 2], (
        "the most popular item is head however much it holds"
    )
    assert popularity_bands(np.zeros(3, dtype=np.int64)).tolist() == [2, 2, 2]


def test_groups_by_hand() -> None:
    truth = Jagged.from_lists([[0], [1], [0, 2]])
    found = slice_codes(np.array([0, 4, 50]), np.array([True, False, False]), truth, np.array([2, 5, 3]))
    labels = {name: [LABELS[name][code] for code in codes] for name, codes in found.items()}
    assert labels["users"] == ["new", "known", "known"]
    assert labels["history"] == ["0", "1-4", "50+"]
    assert labels["target"] == ["tail", "head", "mid"], "of several targets the most popular one counts"


def test_means_and_counts() -> None:
    found = slice_means({"hit@1": np.array([1.0, 0.0, 1.0])}, {"users": np.array([0, 0, 1])})
    assert found == {"users": {"known": {"count": 2, "hit@1": 0.5}, "new": {"count": 1, "hit@1": 1.0}}}


def test_every_slice_divides_all_users() -> None:
    found = evaluate(Whole(40), Kept.random(60, 40), "test", Evaluation(bootstrap=0, ks=(5,)))
    assert set(found.slices) == set(LABELS)
    for parts in found.slices.values():
        assert sum(p["count"] for p in parts.values()) == 60
        mean = sum(p["count"] * p["ndcg@5"] for p in parts.values()) / 60
        assert mean == pytest.approx(found.metrics["ndcg@5"])


def test_the_target_slice_holds_recall_per_band() -> None:
    """With one target per user: of the targets in a band, the share that was found."""
    store = Kept.random(80, 40)
    found = evaluate(Whole(40), store, "test", Evaluation(bootstrap=0, ks=(5,)))
    targets = store.items[store.bounds[:, 1]]
    assert found.per_user.lists is not None
    hits = (found.per_user.lists[:, :5] == targets[:, None]).any(1)
    band = popularity_bands(store.catalog.popularity)[targets]
    for code, label in enumerate(LABELS["target"]):
        assert found.slices["target"][label]["recall@5"] == pytest.approx(hits[band == code].mean())


def test_new_users_have_no_training_event() -> None:
    store = Kept.of([[0, 1], [1, 2, 3]], 8)
    found = evaluate(Whole(8), store, "test", Evaluation(bootstrap=0))
    assert {k: v["count"] for k, v in found.slices["users"].items()} == {"new": 1, "known": 1}


def test_slices_can_be_left_out() -> None:
    assert evaluate(Whole(40), Kept.random(9, 40), "test", Evaluation(bootstrap=0, slices=False)).slices == {}
