"""Adaptive stopping against a plain loop over users, and a planted user whose list never rests."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fakes import Whole, listed
from fullrank.errors import UserError
from fullrank.retrieval.dial import Reasoning, dialled, used
from fullrank.retrieval.rank import Histories
from fullrank.retrieval.settle import rank_settled
from thinker import Thinker

USERS, ITEMS = 23, 17


def histories() -> Histories:
    draw = np.random.default_rng(1)
    lengths = draw.integers(1, 6, USERS)
    ends = np.cumsum(lengths)
    return Histories(draw.integers(0, ITEMS, ends[-1]), ends - lengths, ends)


@pytest.mark.parametrize("patience", [1, 2])
@pytest.mark.parametrize("length", [1, 3, 9])
@pytest.mark.parametrize("seen", ["exclude", "keep"])
def test_equals_a_loop_over_users(length: int, patience: int, seen: str) -> None:
    h = histories()
    for batch_size in (None, 4):
        model = Thinker.random(USERS, ITEMS)
        found, steps = rank_settled(
            model, h, k=5, length=length, most=5, patience=patience, seen=seen, batch_size=batch_size, block=6
        )
        taken = []
        for user in range(USERS):
            hidden = set(h.items[h.starts[user] : h.ends[user]].tolist()) if seen == "exclude" else set()
            lists = [listed(model.scores(user, step), ITEMS, hidden) for step in range(6)]
            calm, stop = 0, 5
            for step in range(1, 6):
                calm = calm + 1 if lists[step][:length] == lists[step - 1][:length] else 0
                if calm >= patience:
                    stop = step
                    break
            assert steps[user] == stop and found.ids[user].tolist() == lists[stop][:5]
            taken.append(stop)
        assert 1 < np.mean(taken) < 5, "users must differ, or nothing is shown"
        assert sum(model.advanced) == sum(taken), "who has stopped leaves the batch"


def test_without_rest_every_step_is_taken() -> None:
    model = Thinker.random(USERS, ITEMS)
    model.script = torch.randn(USERS, 6, 4, generator=torch.Generator().manual_seed(2))
    _, steps = rank_settled(model, histories(), k=5, length=9, most=4, patience=4)
    assert (steps == 4).all()


def test_a_model_that_does_not_reason_is_refused() -> None:
    with pytest.raises(UserError, match="does not reason"):
        rank_settled(Whole(ITEMS), histories(), k=5, length=5, most=2)
    with pytest.raises(UserError, match=r"reasoning\.steps=3 has no effect"), dialled(Whole(ITEMS), Reasoning(steps=3)):
        pass
    with dialled(Whole(ITEMS), Reasoning()):
        assert used(Whole(ITEMS), Reasoning()) is None


def test_the_dial_says_what_it_stands_on() -> None:
    model = Thinker.random(USERS, ITEMS)
    assert used(model, Reasoning()) == {"steps": 5, "streams": 2}
    with dialled(model, Reasoning(steps=0, streams=1)):
        assert model.limits == (0, 1)
    assert model.limits is None
    assert used(model, Reasoning(adaptive=7)) == {"steps": 5, "streams": 2, "adaptive": 7, "patience": 1}
    with pytest.raises(UserError, match="trained with 2 streams"), dialled(model, Reasoning(streams=3)):
        pass


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"patience": 2}, "patience has no effect"),
        ({"steps": 0, "adaptive": 3}, "adaptive has no effect with steps=0"),
        ({"steps": -1}, "greater than or equal to 0"),
        ({"streams": 0}, "greater than or equal to 1"),
        ({"adaptive": 0}, "greater than or equal to 1"),
        ({"depth": 2}, "no setting 'depth'"),
    ],
)
def test_bad_dials_are_refused(given: dict[str, int], said: str) -> None:
    with pytest.raises(UserError, match=said):
        Reasoning.parse(given)
