"""Sampled metrics beside the full ones: by hand, alike however the work is cut, on disk, and never unasked."""

from pathlib import Path

import numpy as np
import pytest

from fakes import Kept, Whole
from fullrank.evaluation import Evaluation, EvaluationResult, evaluate, measure, merge
from fullrank.evaluation.sampled import SHARED_BY, shared_negatives
from fullrank.metrics.names import DEFAULT_SAMPLED
from refusals import refused

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
