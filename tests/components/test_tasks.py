"""Every task passes the checks of `fullrank.testing.tasks`, which catch planted faults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from discover import Pair
from fullrank.data.batch import Batch, Queries, States
from fullrank.models.sequential.objectives.tasks.cloze import Cloze, ClozeTask
from fullrank.models.sequential.objectives.tasks.last_item import LastItem, LastItemTask
from fullrank.models.sequential.objectives.tasks.next_item import NextItem, NextItemTask
from fullrank.testing.tasks import (
    DIM,
    LONGEST,
    check_counts,
    check_inference,
    check_leak,
    check_segments,
    check_targets,
)
from tests.components.cases import every_kind, run_checks


@every_kind("objectives.tasks")
def test_tasks(pair: Pair) -> None:
    run_checks(pair)


class Ahead(NextItemTask):
    """Planted: shows the whole row, so that a position's own input is its target's."""

    def training_inputs(self, items: Any, batch: Batch) -> tuple[Tensor, Batch]:
        x, inputs = super().training_inputs(items, batch)
        return x + items.embed(batch.items[:, 1:]), inputs


class Behind(NextItemTask):
    """Planted: the target is the event at the position itself."""

    def queries(self, states: States, inputs: Batch, batch: Batch, table: Any) -> tuple[Queries, ...]:
        found = super().queries(states, inputs, batch, table)
        return tuple(replace(q, targets=batch.items[q.rows, q.positions]) for q in found)


class Uncovered(ClozeTask):
    """Planted: the cover is thin."""

    def _view(self, items: Any, inputs: Batch) -> Tensor:
        return super()._view(items, inputs) + 0.01 * items.embed(inputs.items)


class Dated(ClozeTask):
    """Planted: a covered event keeps its time."""

    def training_inputs(self, items: Any, batch: Batch) -> tuple[Tensor, Batch]:
        x, inputs = super().training_inputs(items, batch)
        return x, replace(inputs, times=batch.times)


class Timeless(ClozeTask):
    """Planted: inference takes the covered place as long past."""

    def inference_inputs(self, items: Any, batch: Batch) -> tuple[Tensor, Batch]:
        x, inputs = super().inference_inputs(items, batch)
        assert inputs.times is not None and inputs.hidden is not None
        return x, replace(inputs, times=torch.where(inputs.hidden, 0, inputs.times))


class Greedy(LastItemTask):
    """Planted: the prefix holds its target."""

    def training_inputs(self, items: Any, batch: Batch) -> tuple[Tensor, Batch]:
        return items.embed(batch.items), batch


class Overlong(NextItemTask):
    """Planted: cuts nothing."""

    def segments(self, lengths: np.ndarray, draw: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        users = np.flatnonzero(lengths >= 2)
        return users, np.zeros_like(users), lengths[users]


class Generous(NextItemTask):
    """Planted: counts events instead of queries."""

    def counts(self, batch: Batch) -> dict[str, int]:
        return {"ahead_1": int(batch.lengths.sum())}


class Shifted(LastItemTask):
    """Planted: inference forgets the last event."""

    def inference_inputs(self, items: Any, batch: Batch) -> tuple[Tensor, Batch]:
        shorter = replace(batch, lengths=(batch.lengths - 1).clamp_min(1))
        return items.embed(batch.items), shorter


@pytest.mark.parametrize(
    ("fault", "check"),
    [
        (Ahead, check_leak),
        (Behind, check_targets),
        (Uncovered, check_leak),
        (Dated, check_leak),
        (Timeless, check_inference),
        (Greedy, check_targets),
        (Overlong, check_segments),
        (Generous, check_counts),
        (Shifted, check_inference),
    ],
)
def test_planted_faults_are_caught(fault: type, check: Callable[[Any], None]) -> None:
    sound = next(s for s in (NextItemTask, ClozeTask, LastItemTask) if issubclass(fault, s))
    sizes = (DIM, LONGEST)
    given = {NextItemTask: (*sizes, NextItem()), ClozeTask: (*sizes, Cloze()), LastItemTask: (LONGEST, LastItem())}[
        sound
    ]
    check(sound(*given))
    with pytest.raises(AssertionError):
        check(fault(*given))
