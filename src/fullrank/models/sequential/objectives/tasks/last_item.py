"""A prefix predicts the item behind it: one query per row (the setting of ReaRec, arXiv:2503.22675, and PLR).

Every prefix of a history can be a row; at most `per_user` of them are drawn per user and epoch.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.core.constraints import Length
from fullrank.core.jagged import Jagged
from fullrank.data.batch import Batch
from fullrank.models import ItemVectors, Queries, QueryGroups, States, last
from fullrank.models.sequential.items import Items
from fullrank.models.sequential.objectives.tasks import HistoryTask, Segments, TaskSpec


class LastItem(TaskSpec):
    """Prediction of each prefix's next item."""

    kind: Literal["last_item"] = "last_item"
    per_user: Length | None = 4
    """Prefixes per user and epoch, drawn without replacement; null takes all of them."""

    def build(self, dim: int, max_length: int, items: Items | None = None) -> LastItemTask:
        return LastItemTask(max_length, self)


class LastItemTask(HistoryTask):
    reads_outputs, chooses_targets, featureless = True, True, ""

    def __init__(self, max_length: int, spec: LastItem):
        super().__init__()
        self.max_length, self.per_user = max_length, spec.per_user

    def segments(self, lengths: np.ndarray, draw: np.random.Generator, wanted: Jagged | None = None) -> Segments:
        # one row for each prefix of two events or more: a user of n events has ends 2, 3, .. n
        prefixes = np.maximum(lengths - 1, 0)
        users = np.repeat(np.arange(len(lengths)), prefixes)
        first = np.cumsum(prefixes) - prefixes
        ends = np.arange(len(users)) - np.repeat(first, prefixes) + 2
        if wanted is not None:
            is_target = wanted.values[wanted.starts[users] + ends - 1]
            users, ends = users[is_target], ends[is_target]
        if self.per_user is not None:
            # each user's prefixes in a random order, of which the first `per_user` stay
            order = np.lexsort((draw.random(len(users)), users))
            rank = np.arange(len(users)) - np.searchsorted(users, users)
            drawn = np.sort(order[rank < self.per_user])
            users, ends = users[drawn], ends[drawn]
        return users, np.maximum(ends - (self.max_length + 1), 0), ends

    def counts(self, batch: Batch) -> dict[str, int]:
        return {"last": len(batch.lengths)}

    def queries(self, states: States, inputs: Batch, batch: Batch, table: ItemVectors) -> QueryGroups:
        end = batch.lengths[:, None] - 1
        targets = batch.items.gather(1, end)[:, 0]
        times = None if batch.times is None else batch.times.gather(1, end)[:, 0]
        rows = torch.arange(len(targets), device=targets.device)
        vectors = states.outputs.get("trained", last(states.tokens, inputs))
        return (Queries("last", vectors, targets, table, rows, inputs.lengths - 1, times=times),)

    def readout(self, states: States, inputs: Batch) -> Float[Tensor, "B D"]:
        return states.outputs.get("answer", last(states.tokens, inputs))
