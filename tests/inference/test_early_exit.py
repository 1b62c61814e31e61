"""Adaptive stopping against a plain loop over users, and a planted user whose list never rests."""

import numpy as np
import pytest
import torch

from fakes import Whole, listed
from fullrank.core.jagged import Jagged
from fullrank.data.histories import Histories
from fullrank.inference.rank import rank
from fullrank.models.sequential.reasoning.budget import Budget, check_budget, described
from refusals import refused
from thinker import Thinker

USERS, ITEMS = 23, 17


def histories() -> Histories:
    draw = np.random.default_rng(1)
    lengths = draw.integers(1, 6, USERS)
    return Histories(Jagged.from_lengths(draw.integers(0, ITEMS, lengths.sum()), lengths))


@pytest.mark.parametrize("patience", [1, 2])
@pytest.mark.parametrize("length", [1, 3, 9])
@pytest.mark.parametrize("seen", ["exclude", "keep"])
def test_equals_a_loop_over_users(length: int, patience: int, seen: str) -> None:
    h = histories()
    read = list(h.items)
    for batch_size in (None, 4):
        model = Thinker.random(USERS, ITEMS)
        budget = Budget(steps=5, adaptive=length, patience=patience)
        found = rank(model, h, k=5, budget=budget, seen=seen, batch_size=batch_size, block=6)
        assert found.steps is not None
        taken = []
        for user in range(USERS):
            hidden = set(read[user].tolist()) if seen == "exclude" else set()
            lists = [listed(model.scores(user, step), ITEMS, hidden) for step in range(6)]
            calm, stop = 0, 5
            for step in range(1, 6):
                calm = calm + 1 if lists[step][:length] == lists[step - 1][:length] else 0
                if calm >= patience:
                    stop = step
                    break
            assert found.steps[user] == stop and found.ids[user].tolist() == lists[stop][:5]
            taken.append(stop)
        assert 1 < np.mean(taken) < 5, "users must differ, or nothing is shown"
        assert sum(model.advanced) == sum(taken), "who has stopped leaves the batch"


def test_without_rest_every_step_is_taken() -> None:
    model = Thinker.random(USERS, ITEMS)
    model.script = torch.randn(USERS, 6, 4, generator=torch.Generator().manual_seed(2))
    found = rank(model, histories(), k=5, budget=Budget(steps=4, adaptive=9, patience=4))
    assert found.steps is not None and (found.steps == 4).all()


def test_a_model_that_does_not_reason_is_refused() -> None:
    with refused("no-reasoner", "reasoning.steps=2", "adaptive=5"):
        rank(Whole(ITEMS), histories(), k=5, budget=Budget(steps=2, adaptive=5))
    with refused("no-reasoner", "reasoning.steps=3"):
        check_budget(Whole(ITEMS), Budget(steps=3))
    check_budget(Whole(ITEMS), Budget())
    assert described(Whole(ITEMS), Budget()) is None


def test_a_budget_says_what_an_answer_depends_on() -> None:
    model = Thinker.random(USERS, ITEMS)
    assert described(model, Budget()) == {"steps": 5, "streams": 2}
    rank(model, histories(), k=5, budget=Budget(steps=0, streams=1))
    assert model.spent == [Budget(steps=0, streams=1)]
    assert described(model, Budget(adaptive=7)) == {"steps": 5, "streams": 2, "adaptive": 7, "patience": 1}
    with refused("too-many-streams", "2 streams", 3):
        rank(model, histories(), k=5, budget=Budget(streams=3))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"patience": 2}, ("setting-without-effect", "patience", "adaptive")),
        ({"steps": 0, "adaptive": 3}, ("setting-without-effect", "adaptive", "steps=0")),
        ({"steps": -1}, ("invalid-setting", "0")),
        ({"streams": 0}, ("invalid-setting", "1")),
        ({"adaptive": 0}, ("invalid-setting", "1")),
        ({"depth": 2}, ("unknown-setting", "depth")),
    ],
)
def test_bad_budgets_are_refused(given: dict[str, int], said: tuple[str, ...]) -> None:
    with refused(*said):
        Budget.parse(given)
