"""Ranking many histories: order given, whole history seen, last events read, results free of batch and block.

Adaptive stopping against a plain loop over users, and a planted user whose list never rests.
"""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fakes import Whole, listed, ragged
from fullrank.core.jagged import Jagged
from fullrank.data.batch import Batch
from fullrank.data.histories import Histories
from fullrank.inference.batches import TOKENS, Batching
from fullrank.inference.recommend import rank
from fullrank.models import Budget, DenseScorer, Model, check_budget, described
from refusals import refused
from thinker import Thinker

Lists = list[list[int]]


@given(
    st.lists(st.lists(st.integers(0, 29), min_size=1, max_size=9), min_size=1, max_size=12),
    st.integers(1, 35),
    st.sampled_from([None, 1, 3]),
    st.sampled_from([None, 1, 7, 64]),
    st.sampled_from(["exclude", "keep"]),
)
def test_equals_ranking_one_history_at_a_time(
    histories: Lists, k: int, batch_size: int | None, block: int | None, seen: str
) -> None:
    model = Whole(30, max_length=4)
    ranking = rank(model, ragged(histories), k=k, seen=seen, how=Batching(batch_size, block))
    for history, ids in zip(histories, ranking.ids.tolist(), strict=True):
        hidden = set(history) if seen == "exclude" else set()
        assert ids == listed(model.scores(np.array(history)), k, hidden)
    assert ranking.seen == seen


def test_batches_hold_rows_of_like_length_and_what_the_model_needs() -> None:
    histories = [[1] * n for n in (1, 9, 2, 8)]
    items = ragged(histories).items
    model = Whole(20, reads_times=True)
    rank(model, Histories(items, items.values * 0 + 7, np.array([10, 11, 12, 13])), k=1, how=Batching(2))
    first, second = model.asked
    assert (first.lengths.tolist(), second.lengths.tolist()) == ([9, 8], [2, 1])
    assert first.rows is not None and first.rows.tolist() == [11, 13]
    assert second.times is not None and second.times.tolist() == [[7, 7], [7, 0]]
    assert second.items.tolist() == [[1, 1], [1, 0]]


def test_long_histories_make_small_batches() -> None:
    model = Whole(10, max_length=TOKENS // 2)
    rank(model, ragged([[1] * (TOKENS // 2)] * 3 + [[2]] * 50), k=1)
    assert [len(b.items) for b in model.asked] == [2, 2, 49]


def test_an_empty_history_is_refused_unless_the_model_takes_it() -> None:
    with refused("empty-history", "1", "2"):
        rank(Whole(5), ragged([[1], []]), k=1)
    ranking = rank(Whole(5, allows_empty=True), ragged([[1], []]), k=2)
    assert ranking.ids[1].tolist() == [0, 1]


def test_no_histories_give_no_lists() -> None:
    assert rank(Whole(5), ragged([]), k=3).ids.shape == (0, 3)


def test_items_outside_the_catalogue_and_bad_settings_are_refused() -> None:
    bad: dict[str, Any]
    for item, bad, *said in (
        (5, {}, "item-out-of-range", "5"),
        (-1, {}, "item-out-of-range", "1"),
        (2, {"seen": "hide"}, "unknown-seen-policy", "hide"),
    ):
        with refused(*said):
            rank(Whole(5), ragged([[1, item]]), k=1, **bad)


def test_a_model_that_answers_for_other_items_is_refused() -> None:
    class Short(Whole):
        def answer(self, batch: Batch) -> DenseScorer:
            return DenseScorer(torch.zeros(len(batch.items), 4), self.table[:-1])

    with refused("scorer-size-differs", "5", "4"):
        rank(Short(5), ragged([[1]]), k=1)


class Dropping(torch.nn.Module, Model):
    """Without evaluation mode its lists are noise."""

    num_items, max_length = 50, 5

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Parameter(torch.randn(50, 8, generator=torch.Generator().manual_seed(0)))

    def answer(self, batch: Batch) -> DenseScorer:
        return DenseScorer(torch.nn.functional.dropout(self.table[batch.items[:, 0]], 0.5, self.training), self.table)


def test_dropout_is_off_while_ranking_and_the_mode_is_given_back() -> None:
    model = Dropping().train()
    first, second = (rank(model, ragged([[3], [4]]), k=5).scores for _ in range(2))
    assert np.array_equal(first, second)
    assert model.training and not torch.is_inference_mode_enabled()
    model.table.sum().backward()  # the parameters are still trainable


def test_mode_is_given_back_after_an_error() -> None:
    model = Dropping().train()
    with torch.no_grad():
        model.table[7] = torch.nan
    with refused("nan-scores"):
        rank(model, ragged([[3]]), k=5)
    assert model.training


def test_progress_counts_users() -> None:
    told: list[tuple[int, int]] = []
    rank(Whole(5), ragged([[1], [2], [3]]), k=1, how=Batching(2, progress=lambda done, of: told.append((done, of))))
    assert told == [(2, 3), (3, 3)]


def test_lists_that_no_memory_holds_are_refused_before_they_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fullrank.core.memory.available_bytes", lambda: 10**9)
    with refused("too-large-for-memory", "3 lists of 1,000,000,000 items"):
        rank(Whole(3), ragged([[0], [1], [2]]), k=10**9)


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
        found = rank(model, h, k=5, budget=budget, seen=seen, how=Batching(batch_size, 6))
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
