"""Checks of every baseline: fitted to training events alone, whole in its state dict."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fullrank.core.device import device_of
from fullrank.core.spec import Spec
from fullrank.data.batch import Batch
from fullrank.data.events.store import Store
from fullrank.models import Model
from fullrank.models.sequential.baselines import Baseline, BaselineSpec
from fullrank.testing.inputs import (
    ITEMS,
    Device,
    close,
    histories,
    of_specs,
    padded,
    reachable,
    store,
)

LENGTHS = (5, 9, 3, 4, 12, 7)


def data(*, held_out: int = 0) -> Store:
    """The same training events whatever `held_out`; validation and test events move with it."""
    rows = histories(LENGTHS, seed=4)
    moved = [[*row[:-2], *[(item + held_out) % ITEMS for item in row[-2:]]] for row in rows]
    times = [[86_400 * (10 * u + t) for t in range(len(row))] for u, row in enumerate(rows)]
    late = [[*row[:-2], row[-2] + 10**7 * held_out, row[-1] + 10**7 * held_out] for row in times]
    return store(moved, times=late)


def small(spec: Spec) -> Spec:
    """The kind with few epochs where it has some: checks fit it again and again."""
    return spec.override("epochs=3", "dim=8") if "epochs" in type(spec).model_fields else spec


def fitted(spec: Spec, on: Store, device: Device = "cpu") -> Any:
    """The baseline of a spec, fitted to a store."""
    assert isinstance(spec, BaselineSpec)
    model = spec.build(on.catalog)
    model.fit(on)
    return model.eval().to(device)


def some_histories(model: Any) -> Batch:
    return padded([row[-model.max_length :] for row in histories((1, 6, 2, 30))]).to(device_of(model))


def scores_of(model: Any) -> Tensor:
    return model.answer(some_histories(model)).block(0, ITEMS)


def check_contract(build: Callable[[Store], Any]) -> None:
    model = build(data())
    assert isinstance(model, Model) and isinstance(model, Baseline)
    assert model.num_items == ITEMS and model.allows_empty
    answer = model.answer(some_histories(model))
    scores = answer.block(0, ITEMS)
    assert answer.size == ITEMS and scores.shape == (4, ITEMS) and scores.isfinite().all()
    parts = [answer.block(low, min(low + 5, ITEMS)) for low in range(0, ITEMS, 5)]
    # a product of other shapes rounds otherwise, as in a trained model
    assert close(torch.cat(parts, 1), scores), "blocks are no parts of the whole"
    empty = model.answer(padded([[], [3]]).to(device_of(model))).block(0, ITEMS)
    assert empty.isfinite().all()


def check_training_alone(build: Callable[[Store], Any]) -> None:
    """Held-out events do not change the scores."""
    assert torch.equal(scores_of(build(data())), scores_of(build(data(held_out=5))))


def check_rows(build: Callable[[Store], Any]) -> None:
    """Neither padding nor company changes a row's scores."""
    model = build(data())
    batch = some_histories(model)
    together = model.answer(batch).block(0, ITEMS)
    for i, n in enumerate(batch.lengths.tolist()):
        row = batch.items[i, :n].tolist()
        assert close(model.answer(padded([row], extra=2, fill=1).to(device_of(model))).block(0, ITEMS)[0], together[i])


def check_state_dict(spec: Spec, device: torch.device) -> None:
    """All that is learned is in the state dict: an unfitted model that loads it answers alike."""
    spec = small(spec)
    model = fitted(spec, data(), device)
    assert isinstance(spec, BaselineSpec)
    again = spec.build(data().catalog).to(device)
    assert not torch.equal(scores_of(again), scores_of(model))
    again.load_state_dict(model.state_dict())
    assert torch.equal(scores_of(again), scores_of(model))


def _fits(spec: Spec, device: torch.device) -> Iterator[tuple[Spec, Callable[[Store], Any]]]:
    for other in reachable(small(spec), 1):
        yield other, partial(fitted, other, device=device)


BASE = BaselineSpec
OF_MODELS = (check_contract, check_training_alone, check_rows)
CHECKS = (*of_specs(OF_MODELS, _fits), check_state_dict)
