"""Means, errors and intervals equal plain resampling and leaving out; slices equal the rows that they are made of."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes import Kept, Whole
from fullrank.core.jagged import Jagged
from fullrank.evaluation import Evaluation, evaluate, statistics
from fullrank.evaluation.statistics import (
    LABELS,
    metric_values,
    popularity_bands,
    resample,
    slice_codes,
    slice_means,
    summarise,
)
from fullrank.metrics.lists import exposures
from fullrank.metrics.names import PER_LIST, WITHOUT, parse_metric

NDCG = [parse_metric("ndcg@5")]


def made(users: int = 40, items: int = 9, width: int = 3, seed: int = 0) -> np.ndarray:
    """Lists of distinct items with some empty places."""
    rng = np.random.default_rng(seed)
    lists = np.stack([rng.permutation(items)[:width] for _ in range(users)])
    lists[rng.random(lists.shape) < 0.1] = -1
    return lists


def lone(metric: str, lists: np.ndarray, items: int) -> float:
    return float(PER_LIST[metric](exposures(lists, items)[None])[0])


def test_equals_resampling_users_one_sample_at_a_time() -> None:
    table = np.random.default_rng(0).random((40, 3))
    drawn = resample(table, samples=25, seed=3)
    for sample in range(25):
        users = np.random.default_rng([3, sample]).integers(40, size=40)
        assert drawn[sample] == pytest.approx(table[users].mean(0))


def test_free_of_how_many_samples_are_held_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    table = np.random.default_rng(0).random((40, 3))
    at_once = resample(table, samples=17, seed=0)
    monkeypatch.setattr(statistics, "CELLS", 200)
    parts = resample(table, samples=17, seed=0)
    assert parts == pytest.approx(at_once, abs=1e-12) and len(parts) == 17


@pytest.mark.parametrize("metric", WITHOUT)
@given(st.integers(1, 12), st.integers(3, 12), st.integers(1, 3), st.integers(0, 1000))
def test_leaving_out_one_user_equals_recomputing(metric: str, users: int, items: int, width: int, seed: int) -> None:
    lists = made(users, items, width, seed)
    found = WITHOUT[metric](lists, exposures(lists, items))
    assert found.tolist() == pytest.approx([lone(metric, np.delete(lists, u, 0), items) for u in range(users)])


@pytest.mark.parametrize("metric", WITHOUT)
def test_influences_average_to_the_metric(metric: str) -> None:
    lists = made()
    assert metric_values(parse_metric(f"{metric}@2"), {}, lists, 9).mean() == pytest.approx(
        lone(metric, lists[:, :2], 9)
    )


@pytest.mark.parametrize("metric", WITHOUT)
def test_the_error_of_lists_is_that_of_new_users(metric: str) -> None:
    """Against the spread over 100 fresh sets of users; resampling the lists would be off by more than its own."""
    rng = np.random.default_rng(0)
    chances = 1 / np.arange(1, 301)
    fresh = [rng.choice(300, (200, 5), p=chances / chances.sum()) for _ in range(100)]
    spread = np.std([lone(metric, lists, 300) for lists in fresh])
    name = f"{metric}@5"
    found = summarise({}, fresh[0], [parse_metric(name)], items=300, samples=200, seed=0)
    assert 0.8 * spread < found.stderr[name] < 2 * spread
    assert found.interval[name][0] < found.mean[name] < found.interval[name][1]
    again = fresh[0][rng.integers(200, size=200)]
    assert abs(lone(metric, again, 300) - found.mean[name]) > 2 * spread, "the planted fault"


def test_mean_and_error_by_hand() -> None:
    found = summarise({"ndcg@5": np.array([0.0, 1.0, 0.5])}, None, NDCG, items=0, samples=0, seed=0)
    assert found.mean["ndcg@5"] == 0.5
    assert found.stderr["ndcg@5"] == pytest.approx(0.5 / 3**0.5)
    assert np.isnan(found.interval["ndcg@5"]).all()


def test_one_user_has_no_error() -> None:
    found = summarise({"ndcg@5": np.array([1.0])}, None, NDCG, items=0, samples=5, seed=0)
    assert np.isnan(found.stderr["ndcg@5"]) and found.interval["ndcg@5"] == (1.0, 1.0)


def test_the_interval_covers_about_as_often_as_it_says() -> None:
    """90 % intervals of the mean of 60 uniform values, 200 times: 168 to 192 is about three standard deviations."""
    rng = np.random.default_rng(0)
    covered = 0
    for trial in range(200):
        values = {"ndcg@5": rng.random(60)}
        found = summarise(values, None, NDCG, items=0, samples=200, seed=trial, level=0.9).interval["ndcg@5"]
        covered += found[0] <= 0.5 <= found[1]
    assert 168 <= covered <= 192


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
