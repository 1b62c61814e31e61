"""Laws of every baseline: fitted to training events alone, whole in its state, its blocks parts of one answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from discover import Pair, everything, name
from fullrank.core.spec import Spec
from fullrank.data.batch import Batch, DenseScorer, Model
from fullrank.data.events.store import Store
from fullrank.models.sequential.baselines.popularity import PopularityModel
from tiny import ITEMS, close, histories, padded, plain, reachable, store

ALL = pytest.mark.parametrize("pair", everything("baselines"), ids=name)
LENGTHS = (5, 9, 3, 4, 12, 7)


def data(*, held_out: int = 0) -> Store:
    """The same training events whatever `held_out`; validation and test events move with it."""
    rows = histories(LENGTHS, seed=4)
    moved = [[*row[:-2], *[(item + held_out) % ITEMS for item in row[-2:]]] for row in rows]
    times = [[86_400 * (10 * u + t) for t in range(len(row))] for u, row in enumerate(rows)]
    late = [[*row[:-2], row[-2] + 10**7 * held_out, row[-1] + 10**7 * held_out] for row in times]
    return store(moved, times=late)


def fitted(spec: Spec, on: Store) -> Any:
    model = spec.build(on.catalog)  # type: ignore[attr-defined]
    model.fit(on)
    return model.eval()


def asked(model: Any) -> Batch:
    return padded([row[-model.max_length :] for row in histories((1, 6, 2, 30))])


def whole(model: Any) -> Tensor:
    return model.answer(asked(model)).block(0, ITEMS)


def check_contract(build: Callable[[Store], Any]) -> None:
    model = build(data())
    assert isinstance(model, Model) and model.num_items == ITEMS and model.allows_empty
    answer = model.answer(asked(model))
    scores = answer.block(0, ITEMS)
    assert answer.size == ITEMS and scores.shape == (4, ITEMS) and scores.isfinite().all()
    parts = [answer.block(low, min(low + 5, ITEMS)) for low in range(0, ITEMS, 5)]
    assert torch.equal(torch.cat(parts, 1), scores), "blocks are no parts of the whole"
    empty = model.answer(padded([[], [3]])).block(0, ITEMS)
    assert empty.isfinite().all()


def check_training_alone(build: Callable[[Store], Any]) -> None:
    """What was held out does not change the scores."""
    assert torch.equal(whole(build(data())), whole(build(data(held_out=5))))


def check_rows(build: Callable[[Store], Any]) -> None:
    """Neither padding nor company changes a row's scores."""
    model = build(data())
    batch = asked(model)
    together = model.answer(batch).block(0, ITEMS)
    for i, n in enumerate(batch.lengths.tolist()):
        row = batch.items[i, :n].tolist()
        assert close(model.answer(padded([row], extra=2, fill=1)).block(0, ITEMS)[0], together[i])


@ALL
@pytest.mark.parametrize("check", [check_contract, check_training_alone, check_rows])
def test_laws(pair: Pair, check: Callable[[Callable[[Store], Any]], None]) -> None:
    for spec in reachable(plain(pair), 1):
        check(lambda on, spec=spec: fitted(spec, on))  # type: ignore[misc]


@ALL
def test_what_is_learned_is_in_the_state(pair: Pair) -> None:
    model = fitted(plain(pair), data())
    again = plain(pair).build(data().catalog)  # type: ignore[attr-defined]
    assert not torch.equal(whole(again), whole(model))
    again.load_state_dict(model.state_dict())
    assert torch.equal(whole(again), whole(model))


class Peeking(PopularityModel):
    """Planted: counts what was held out, too."""

    def fit(self, store: Store) -> None:
        self.counts = torch.bincount(torch.as_tensor(store.items).long(), minlength=self.num_items).float()


class Padded(PopularityModel):
    """Planted: favours what stands in the padding."""

    max_length = 50

    def answer(self, batch: Batch) -> DenseScorer:
        bonus = torch.nn.functional.one_hot(batch.items, self.num_items).sum(1).float()
        return DenseScorer(bonus, torch.eye(self.num_items))


@pytest.mark.parametrize(("fault", "check"), [(Peeking, check_training_alone), (Padded, check_rows)])
def test_planted_faults_are_caught(fault: type[PopularityModel], check: Callable[[Any], None]) -> None:
    def build(on: Store) -> Any:
        model = fault(on.num_items)
        model.fit(on)
        return model

    with pytest.raises(AssertionError):
        check(build)
