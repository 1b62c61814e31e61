"""Adjusted models against loops: dropped events are nested from share to share, never everything; discounted scores."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fakes import Kept, Whole, listed
from fullrank.core.random import uniform_draws
from fullrank.data.batch import Batch
from fullrank.evaluation import Evaluation, evaluate
from fullrank.evaluation.adjusted import STEP, drop_events, keep_mask
from fullrank.evaluation.compare import compare
from refusals import refused
from thinker import Thinker
from tiny import padded

STORE = Kept.random(80, 40, longest=20)
SMALL = Evaluation(bootstrap=0, ks=(5,))


def left(user: int, history: np.ndarray, share: float, seed: int = 0) -> np.ndarray:
    """The plain twin: what remains of one history."""
    draws = uniform_draws(seed, STEP, torch.tensor([user]), len(history))[0].numpy()
    stays = draws >= share
    if not stays.any():
        stays[draws.argmax()] = True
    return history[stays]


@pytest.mark.parametrize("share", [0.2, 0.7, 0.99])
@pytest.mark.parametrize("batch_size", [None, 7])
def test_lists_are_those_of_the_thinned_histories(share: float, batch_size: int | None) -> None:
    model = Whole(40, max_length=4)
    found = evaluate(model, STORE, "test", SMALL.override(f"drop={share}", f"batch_size={batch_size or 'null'}"))
    assert found.per_user.lists is not None
    lost = 0
    asked = STORE.eval_set("test")
    for user, history, ids in zip(asked.users, asked.histories.items, found.per_user.lists, strict=True):
        read = left(user, history, share)
        lost += len(history) - len(read)
        assert len(read) and ids.tolist() == listed(model.scores(read), 5, set(history.tolist())), "candidates stay"
    assert lost > 0 and max(batch.items.shape[1] for batch in model.asked) <= 4
    assert found.protocol["dropped"] == {"share": share, "seed": 0}


def test_a_share_is_dropped_and_smaller_shares_are_part_of_larger() -> None:
    draws = uniform_draws(5, STEP, torch.arange(3000), 30)
    valid = torch.ones(3000, 30, dtype=torch.bool)
    few, many = (keep_mask(draws, valid, share) for share in (0.1, 0.3))
    assert (~few).double().mean() == pytest.approx(0.1, abs=0.005)
    assert (~many).double().mean() == pytest.approx(0.3, abs=0.005)
    assert bool((few | ~many).all()), "what 30 % keeps, 10 % keeps"


def test_times_move_with_their_events_and_padding_stays_padding() -> None:
    batch = padded([[3, 4, 5, 6], [7, 8]])
    stays = torch.tensor([[True, False, True, True], [False, True, False, False]])
    found = drop_events(batch, stays, longest=2)
    assert found.items.tolist() == [[5, 6], [8, 0]] and found.lengths.tolist() == [2, 1]
    assert batch.times is not None and found.times is not None
    assert found.times.tolist() == [batch.times[0, 2:].tolist(), [int(batch.times[1, 1]), 0]]
    assert drop_events(replace(batch, times=None), stays, longest=2).times is None


def test_an_empty_history_stays_empty() -> None:
    batch = Batch(torch.zeros(1, 3, dtype=torch.long), torch.tensor([0]), rows=torch.tensor([4]))
    stays = keep_mask(torch.rand(1, 3), batch.valid, 0.5)
    assert not stays.any() and drop_events(batch, stays, 3).lengths.tolist() == [0]


@pytest.mark.parametrize("share", [-0.1, 1.0, 1.5])
def test_other_shares_are_refused(share: float) -> None:
    with refused("invalid-setting"):
        Evaluation().override(f"drop={share}")


def test_the_dial_is_in_the_protocol_and_may_differ_between_two_results() -> None:
    model = Thinker.random(80, 40)
    full, short = (evaluate(model, STORE, "test", SMALL.override(*s)) for s in ((), ("reasoning.steps=1",)))
    assert full.protocol["reasoning"] == {"steps": 5, "streams": 2} and "dropped" not in full.protocol
    assert short.protocol["reasoning"] == {"steps": 1, "streams": 2} and full.mean_steps is None
    assert full.metrics != short.metrics and compare(full, short, "ndcg@5").users == 80
    with refused("no-reasoner", "reasoning.steps=1"):
        evaluate(Whole(40), STORE, "test", SMALL.override("reasoning.steps=1"))


def test_adaptive_stopping_keeps_each_users_steps(tmp_path: Path) -> None:
    model = Thinker.random(80, 40)
    found = evaluate(model, STORE, "test", SMALL.override("reasoning.adaptive=3"))
    assert found.mean_steps is not None and 1 < found.mean_steps < 5
    found.save(tmp_path)
    again = type(found).load(tmp_path)
    assert again.mean_steps == found.mean_steps == again.dump()["mean_steps"]
    assert again.per_user.steps is not None and again.per_user.steps.max() <= 5


@pytest.mark.parametrize("settings", [("drop=0.1",), ("protocol=sampled",)])
def test_adaptive_stopping_refuses_what_it_cannot_do(settings: tuple[str, ...]) -> None:
    with refused("adaptive-needs-full-lists", "reasoning.adaptive"):
        Evaluation().override(*settings, "reasoning.adaptive=5")


@pytest.mark.parametrize("weight", [0.3, 5.0])
@pytest.mark.parametrize("block", [7, None])
def test_lists_are_those_of_the_discounted_scores(weight: float, block: int | None) -> None:
    model, counts = Whole(40, max_length=4), STORE.catalog.popularity
    spec = SMALL.override(f"popularity_discount={weight}", f"block={block or 'null'}")
    found, plain = evaluate(model, STORE, "test", spec), evaluate(model, STORE, "test", SMALL)
    assert found.per_user.lists is not None and plain.per_user.lists is not None
    asked = STORE.eval_set("test")
    for history, ids in zip(asked.histories.items, found.per_user.lists, strict=True):
        scores = model.scores(history[-4:]) - weight * np.log1p(counts)
        assert ids.tolist() == listed(scores, 5, set(history.tolist()))
    assert (found.per_user.lists != plain.per_user.lists).any()
    assert counts[found.per_user.lists].mean() < counts[plain.per_user.lists].mean()
    assert found.protocol["popularity_discount"] == weight and "popularity_discount" not in plain.protocol


def test_lists_with_and_without_it_are_compared() -> None:
    """Among the ways to answer, as a budget of reasoning is: the same users, the same candidates."""
    model = Whole(40, max_length=4)
    plain, discounted = (evaluate(model, STORE, "test", SMALL.override(f"popularity_discount={w}")) for w in (0, 5))
    found = compare(plain, discounted, "arp@5")
    assert found.difference < 0


@pytest.mark.parametrize(
    "setting", ["protocol=sampled", "sampled=10", "decoding={kind: pruned}", "reasoning.adaptive=5"]
)
def test_what_does_not_score_every_item_is_refused(setting: str) -> None:
    with refused("discount-needs-all-scores", "popularity_discount"):
        Evaluation().override("popularity_discount=1", setting)
