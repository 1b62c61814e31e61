"""The checks of `fullrank.testing.tasks` catch planted faults."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fullrank.models.sequential.objectives.tasks.cloze import ClozeTask
from fullrank.models.sequential.objectives.tasks.last_item import LastItemTask
from fullrank.models.sequential.objectives.tasks.next_item import NextItemTask
from fullrank.testing import tasks
from fullrank.testing.tasks import DIM, LONGEST
from parts import Cloze, LastItem, NextItem


class Ahead(NextItemTask):
    """Planted: shows the whole row, so that a position's own input is its target's."""

    def training_inputs(self, items, batch):
        x, inputs = super().training_inputs(items, batch)
        return x + items.embed(batch.items[:, 1:]), inputs


class Behind(NextItemTask):
    """Planted: the target is the event at the position itself."""

    def queries(self, states, inputs, batch, table):
        found = super().queries(states, inputs, batch, table)
        return tuple(replace(q, targets=batch.items[q.rows, q.positions]) for q in found)


class Uncovered(ClozeTask):
    """Planted: the cover is thin."""

    def _view(self, items, inputs):
        return super()._view(items, inputs) + 0.01 * items.embed(inputs.items)


class Dated(ClozeTask):
    """Planted: a covered event keeps its time."""

    def training_inputs(self, items, batch):
        x, inputs = super().training_inputs(items, batch)
        return x, replace(inputs, times=batch.times)


class Timeless(ClozeTask):
    """Planted: inference takes the covered place as long past."""

    def inference_inputs(self, items, batch):
        x, inputs = super().inference_inputs(items, batch)
        return x, replace(inputs, times=torch.where(inputs.hidden, 0, inputs.times))


class Greedy(LastItemTask):
    """Planted: the prefix holds its target."""

    def training_inputs(self, items, batch):
        return items.embed(batch.items), batch


class Overlong(NextItemTask):
    """Planted: cuts nothing."""

    def segments(self, lengths, draw):
        users = np.flatnonzero(lengths >= 2)
        return users, np.zeros_like(users), lengths[users]


class Generous(NextItemTask):
    """Planted: counts events instead of queries."""

    def counts(self, batch):
        return {"ahead_1": int(batch.lengths.sum())}


class Shifted(LastItemTask):
    """Planted: inference forgets the last event."""

    def inference_inputs(self, items, batch):
        shorter = replace(batch, lengths=(batch.lengths - 1).clamp_min(1))
        return items.embed(batch.items), shorter


SPECS = {
    NextItemTask: (DIM, LONGEST, NextItem()), ClozeTask: (DIM, LONGEST, Cloze()), LastItemTask: (LONGEST, LastItem()),
}  # fmt: skip


@pytest.mark.parametrize(
    ("fault", "check"),
    [
        (Ahead, "leak"), (Behind, "targets"), (Uncovered, "leak"), (Dated, "leak"), (Timeless, "inference"),
        (Greedy, "targets"), (Overlong, "segments"), (Generous, "counts"), (Shifted, "inference"),
    ],
)  # fmt: skip
def test_planted_faults_are_caught(fault, check) -> None:
    run, sound = getattr(tasks, f"check_{check}"), fault.__base__
    run(sound(*SPECS[sound]))
    with pytest.raises(AssertionError):
        run(fault(*SPECS[sound]))
