"""The sampled protocol: draws are allowed ones, repeat, and place the target as the rule says."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes import Kept, Whole
from fullrank.evaluation import Evaluation, EvaluationResult, evaluate, measure, merge
from fullrank.evaluation.sampled import SHARED_BY, negatives, shared_negatives, target_places
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


ITEMS = 40
MODEL, STORE = Whole(ITEMS), Kept.random(300, ITEMS)


def asked(**settings: object) -> Evaluation:
    return Evaluation.parse({"ks": (1, 5), "sampled": 12, "bootstrap": 0, **settings})


def measured(**settings: object) -> EvaluationResult:
    return evaluate(MODEL, STORE, "test", asked(**settings))


def test_by_hand() -> None:
    """Each target against its group's draws, one user at a time."""
    found = measured(seed=4)
    assert found.protocol["sampled"]["negatives"] == 12 and found.protocol["candidates"] == "full"
    own = STORE.eval_set("test")
    row = {int(u): i for i, u in enumerate(found.per_user.users)}
    checked = 0
    for user, history, targets in zip(own.users, own.histories.items, own.targets, strict=True):
        if not len(history) or len(targets) != 1:
            continue
        scores = MODEL.scores(history)
        drawn = shared_negatives(np.array([user // SHARED_BY]), 12, ITEMS, 4)[0]
        place = int((scores[drawn] > scores[targets[0]]).sum())
        wanted = 1 / np.log2(place + 2) if place < 5 else 0.0
        assert found.per_user.sampled["ndcg@5"][row[int(user)]] == pytest.approx(wanted)
        checked += 1
    assert checked > 20
    assert found.sampled["ndcg@5"]["gap"] == pytest.approx(
        found.per_user.sampled["ndcg@5"].mean() - found.metrics["ndcg@5"]
    )


def test_draws_are_shared_by_neighbours_and_even() -> None:
    drawn = shared_negatives(np.arange(50), 2000, ITEMS, 0)
    assert np.array_equal(shared_negatives(np.array([7]), 2000, ITEMS, 0)[0], drawn[7])
    assert not np.array_equal(drawn[0], drawn[1]) and not np.array_equal(
        shared_negatives(np.array([0]), 2000, ITEMS, 1)[0], drawn[0]
    )
    share, even = np.bincount(drawn.ravel(), minlength=ITEMS) / drawn.size, 1 / ITEMS
    assert np.all(np.abs(share - even) <= 4.5 * np.sqrt(even * (1 - even) / drawn.size))


def test_alike_however_the_work_is_cut() -> None:
    whole = measured()
    for settings in ({"batch_size": 7}, {"block": 9}):
        again = measured(**settings)
        assert all(np.array_equal(again.per_user.sampled[n], v) for n, v in whole.per_user.sampled.items())
    parts = [measure(MODEL, STORE, "test", asked(), shard=(rank, 3)) for rank in range(3)]
    assert merge(parts).sampled == whole.sampled
    assert set(whole.sampled) == {f"{name}@{k}" for name in DEFAULT_SAMPLED for k in (1, 5)}


def test_on_disk_and_never_unasked(tmp_path: Path) -> None:
    found = measured()
    found.save(tmp_path)
    again = EvaluationResult.load(tmp_path)
    assert again.sampled == found.sampled and again.dump()["sampled"] == found.dump()["sampled"]
    plain = measured(sampled=None)
    assert plain.metrics == found.metrics and not plain.sampled
    assert "sampled" not in plain.dump() and "sampled" not in plain.protocol
    assert asked().for_selection().sampled is None


def test_as_many_negatives_as_items_are_noted() -> None:
    for count in (ITEMS, 1000):
        note = measured(sampled=count).protocol["sampled"]["note"]
        assert f"{count:,} negatives were drawn with replacement from {ITEMS} items" in note
    assert "note" not in measured(sampled=ITEMS - 1).protocol["sampled"]


def test_refusals() -> None:
    for settings, said in (
        ({"protocol": "sampled"}, ("setting-without-effect", "sampled")),
        ({"metrics": ("gini",)}, ("no-accuracy-metric",)),
        ({"sampled": 0}, ("invalid-setting",)),
    ):
        with refused(*said):
            asked(**settings)
