"""Every position predicts the item after it (SASRec, arXiv:1808.09781, Sec. III-E); more horizons, more items ahead."""

from __future__ import annotations

from typing import Literal

import numpy as np
from jaxtyping import Bool, Float
from torch import Tensor, nn

from fullrank.core.constraints import Parts
from fullrank.core.jagged import Jagged, offsets_of
from fullrank.data.batch import Batch
from fullrank.models import ItemVectors, Queries, QueryGroups, States, last
from fullrank.models.sequential.items import Items
from fullrank.models.sequential.objectives.tasks import HistoryTask, Segments, TaskSpec
from fullrank.ops.starting_values import start_small


class NextItem(TaskSpec):
    """Next-item prediction at all positions."""

    kind: Literal["next_item"] = "next_item"
    horizons: Parts = 1
    """Number of items ahead that each position predicts; one head and one named loss for each."""
    window: Literal["last", "random"] = "last"
    """Stretch of a history longer than max_length that an epoch reads."""

    def build(self, dim: int, max_length: int, items: Items | None = None) -> NextItemTask:
        return NextItemTask(dim, max_length, self)


class NextItemTask(HistoryTask):
    causal, chooses_targets, featureless = True, True, ""

    def __init__(self, dim: int, max_length: int, spec: NextItem):
        super().__init__()
        self.max_length, self.window, self.horizons = max_length, spec.window, spec.horizons
        self.heads = nn.ModuleList(nn.Linear(dim, dim, bias=False) for _ in range(spec.horizons - 1))
        start_small(self.heads)

    def segments(self, lengths: np.ndarray, draw: np.random.Generator, wanted: Jagged | None = None) -> Segments:
        users = np.flatnonzero(lengths >= 2)
        # max_length inputs and one event more: the last event is a target only
        surplus = np.maximum(lengths[users] - (self.max_length + 1), 0)
        starts = draw.integers(0, surplus + 1) if self.window == "random" else surplus
        ends = np.minimum(starts + self.max_length + 1, lengths[users])
        if wanted is not None:  # a stretch that is drawn may hold no target
            targets_before, first = offsets_of(wanted.values), wanted.starts[users]
            holds_target = targets_before[first + ends] > targets_before[first + starts + 1]
            users, starts, ends = users[holds_target], starts[holds_target], ends[holds_target]
        return users, starts, ends

    def counts(self, batch: Batch) -> dict[str, int]:
        return {f"ahead_{h}": int(_targets(batch, h).sum()) for h in range(1, self.horizons + 1)}

    def queries(self, states: States, inputs: Batch, batch: Batch, table: ItemVectors) -> QueryGroups:
        groups = []
        for h in range(1, self.horizons + 1):
            rows, positions = _targets(batch, h).nonzero(as_tuple=True)
            at = positions + self.tokens_before
            vectors = states.tokens[rows, at]
            if h > 1:
                vectors = self.heads[h - 2](vectors)
            targets = batch.items[rows, positions + h]
            times = None if batch.times is None else batch.times[rows, positions + h]
            groups.append(Queries(f"ahead_{h}", vectors, targets, table, rows, at, times=times))
        return tuple(groups)

    def readout(self, states: States, inputs: Batch) -> Float[Tensor, "B D"]:
        return last(states.tokens, inputs)


def _targets(batch: Batch, ahead: int) -> Bool[Tensor, "B n"]:
    """Whether each event is to be predicted, from position `ahead` on."""
    return (batch.valid if batch.wanted is None else batch.wanted)[:, ahead:]
