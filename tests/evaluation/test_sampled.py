"""The sampled protocol: draws are allowed ones, repeat, and place the target as the rule says."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes import Kept, Whole
from fullrank.evaluation import Evaluation, evaluate
from fullrank.evaluation.sampled import negatives, target_places
from fullrank.metrics.names import DEFAULT_SAMPLED
from refusals import refused

EVEN = np.ones(30, dtype=np.int64)
NONE = np.zeros(0, dtype=np.int64)


def test_draws_depend_on_seed_and_user_alone() -> None:
    users = np.arange(50)
    all_at_once = negatives(users, 20, EVEN, NONE, seed=1)
    assert np.array_equal(negatives(users[[41, 3]], 20, EVEN, NONE, seed=1), all_at_once[[41, 3]])
    assert np.array_equal(negatives(users, 5, EVEN, NONE, seed=1), all_at_once[:, :5])
    assert not np.array_equal(negatives(users, 20, EVEN, NONE, seed=2), all_at_once)


def test_forbidden_items_are_never_drawn() -> None:
    forbidden = np.concatenate([np.arange(0, 28), 30 + np.arange(2, 30)])
    drawn = negatives(np.array([7, 8]), 200, EVEN, forbidden, seed=0)
    assert set(drawn[0]) == {28, 29} and set(drawn[1]) == {0, 1}


def test_draws_follow_their_weights() -> None:
    """100 thousand draws: each share within four standard deviations."""
    for weights in (EVEN, np.arange(30)):
        drawn = np.bincount(negatives(np.arange(1000), 100, weights, NONE, seed=0).ravel(), minlength=30) / 1e5
        share = weights / weights.sum()
        assert np.all(np.abs(drawn - share) <= 4 * np.sqrt(share * (1 - share) / 1e5))


def test_a_user_who_knows_everything_is_refused() -> None:
    with refused("too-few-negatives", "1"):
        negatives(np.arange(2), 5, EVEN, np.arange(30), seed=0)


@given(st.integers(1, 4), st.integers(1, 6), st.integers(0, 1000))
def test_places_equal_sorting_all_candidates(targets: int, count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = np.repeat([0, 1], [targets, 1])
    scores, others = rng.integers(0, 4, len(rows)).astype(float), rng.integers(0, 4, (2, count)).astype(float)
    found = target_places(scores, rows, others)
    for user in (0, 1):
        mine = [(-s, 0, i) for i, s in enumerate(scores) if rows[i] == user]
        order = sorted(mine + [(-s, 1, i) for i, s in enumerate(others[user])])
        for place, (_, negative, i) in enumerate(order):
            if not negative:
                assert found[i] == place


@pytest.mark.parametrize("source", [None, "uniform", "popularity"])
@pytest.mark.parametrize("seen", ["exclude", "keep"])
def test_metrics_equal_plain_loops(source: str | None, seen: str) -> None:
    store, model = Kept.random(25, 60), Whole(60, max_length=4)
    spec = Evaluation(
        protocol="sampled", negatives=9, negatives_from=source, seen=seen, ks=(3,), bootstrap=0, seed=5, block=17
    )
    found = evaluate(model, store, "test", spec)
    weights = store.catalog.popularity if source == "popularity" else np.ones(60, dtype=np.int64)
    asked = store.eval_set("test")
    for user, history, target in zip(asked.users, asked.histories.items, asked.next_items, strict=True):
        known = np.unique([target, *(history if seen == "exclude" else [])]).astype(np.int64)
        scores = model.scores(history)
        place = 1 + sum(scores[negatives(np.array([user]), 9, weights, known, 5)[0]] > scores[target])
        assert found.per_user.values["mrr@3"][user] == pytest.approx(1 / place if place <= 3 else 0)
    assert set(found.metrics) == {f"{base}@3" for base in DEFAULT_SAMPLED}
    assert found.protocol["candidates"] == f"9 {source or 'uniform'} negatives"
    assert found.per_user.lists is None
