"""Means, errors and bootstrap intervals: equal to a plain resampling, the right width, repeatable."""

from __future__ import annotations

import numpy as np
import pytest

from fullrank.metrics import summary
from fullrank.metrics.coverage import coverage, exposures
from fullrank.metrics.fairness import gini
from fullrank.metrics.names import expand
from fullrank.metrics.summary import resample, summarise

NAMES = expand(["ndcg@5", "gini", "coverage"], [1, 3])


def made(users: int = 40, items: int = 9, seed: int = 0) -> tuple[dict[str, np.ndarray], np.ndarray]:
    rng = np.random.default_rng(seed)
    lists = np.stack([rng.permutation(items)[:3] for _ in range(users)])
    lists[rng.random(lists.shape) < 0.1] = -1
    return {"ndcg@5": rng.random(users)}, lists


def test_equals_resampling_users_one_sample_at_a_time() -> None:
    values, lists = made()
    drawn = resample(values, lists, NAMES, items=9, samples=25, seed=3)
    for sample in range(25):
        users = np.random.default_rng([3, sample]).integers(40, size=40)
        assert drawn["ndcg@5"][sample] == pytest.approx(values["ndcg@5"][users].mean())
        for k in (1, 3):
            shown = exposures(lists[users, :k], 9)
            assert drawn[f"gini@{k}"][sample] == pytest.approx(float(gini(shown[None])[0]))
            assert drawn[f"coverage@{k}"][sample] == pytest.approx(float(coverage(shown[None])[0]))


def test_free_of_how_many_samples_are_held_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    values, lists = made()
    whole = resample(values, lists, NAMES, items=9, samples=17, seed=0)
    monkeypatch.setattr(summary, "CELLS", 200)
    parts = resample(values, lists, NAMES, items=9, samples=17, seed=0)
    for name, column in whole.items():
        assert parts[name] == pytest.approx(column, abs=1e-12) and len(column) == 17


def test_mean_and_error_by_hand() -> None:
    found = summarise({"ndcg@5": np.array([0.0, 1.0, 0.5])}, None, NAMES[:1], items=0, samples=0, seed=0)
    assert found.mean["ndcg@5"] == 0.5
    assert found.stderr["ndcg@5"] == pytest.approx(0.5 / 3**0.5)
    assert np.isnan(found.interval["ndcg@5"]).all()


def test_one_user_has_no_error() -> None:
    found = summarise({"ndcg@5": np.array([1.0])}, None, NAMES[:1], items=0, samples=5, seed=0)
    assert np.isnan(found.stderr["ndcg@5"]) and found.interval["ndcg@5"] == (1.0, 1.0)


def test_the_interval_covers_about_as_often_as_it_says() -> None:
    """90 % intervals of the mean of 60 uniform values, 200 times: 168 to 192 is about three standard deviations."""
    rng = np.random.default_rng(0)
    covered = 0
    for trial in range(200):
        found = summarise(
            {"ndcg@5": rng.random(60)}, None, NAMES[:1], items=0, samples=200, seed=trial, level=0.9
        ).interval["ndcg@5"]
        covered += found[0] <= 0.5 <= found[1]
    assert 168 <= covered <= 192


def test_the_bootstrap_error_agrees_with_the_formula() -> None:
    values, lists = made(users=500)
    found = summarise(values, lists, NAMES, items=9, samples=400, seed=0)
    drawn = resample(values, lists, NAMES, items=9, samples=400, seed=0)["ndcg@5"]
    assert drawn.std() == pytest.approx(found.stderr["ndcg@5"], rel=0.15)


def test_seeds_repeat_and_differ() -> None:
    values, lists = made()
    first, again, other = (resample(values, lists, NAMES, items=9, samples=5, seed=s)["gini@3"] for s in (1, 1, 2))
    assert np.array_equal(first, again) and not np.array_equal(first, other)
