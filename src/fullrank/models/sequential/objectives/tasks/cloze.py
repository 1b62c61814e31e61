"""Cover random positions and recover them from both sides (BERT4Rec, arXiv:1904.06690, Sec. 3.6).

At inference one covered position is put behind the history. A reasoner goes on behind a row's
last position, as it does at inference: with `covers_end` that one is always covered, and its
query is the reasoner's output (PLR, Table 2). Differs: which positions are covered is a function
of (seed, step, row), so that resumed and sharded runs cover the same ones; the time of a covered
event is covered with it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor

from fullrank.core.constraints import Share
from fullrank.core.random import uniform_draws
from fullrank.core.spec import later
from fullrank.data.batch import Batch
from fullrank.models import ItemVectors, Queries, QueryGroups, States, last
from fullrank.models.sequential.items import Items
from fullrank.models.sequential.objectives.tasks import Inputs, Segments, Task, TaskSpec
from fullrank.ops.starting_values import small


class Cloze(TaskSpec):
    """Masked-item prediction."""

    kind: Literal["cloze"] = "cloze"
    share: float = Field(0.2, gt=0, lt=1)
    """Chance that a position is covered; a row without any covers its last."""
    last: Share = 0.1
    """Share of rows that cover their last position alone, as inference does."""
    covers_end: bool = later(False)
    """Whether the others cover their last position too, beside what is drawn; a reasoner needs it."""

    def build(self, dim: int, max_length: int, items: Items | None = None) -> ClozeTask:
        return ClozeTask(dim, max_length, self)


class ClozeTask(Task):
    causal = False
    featureless = "its covered events would show what is known with them alone"

    def __init__(self, dim: int, max_length: int, spec: Cloze):
        super().__init__()
        self.max_length, self.share, self.last_share = max_length, spec.share, spec.last
        self.reads_outputs = self.covers_end = spec.covers_end
        self.cover = small(dim)

    def segments(self, lengths: np.ndarray, draw: np.random.Generator) -> Segments:
        users = np.flatnonzero(lengths >= 2)
        return users, np.maximum(lengths[users] - self.max_length, 0), lengths[users]

    def covered(self, batch: Batch) -> Bool[Tensor, "B T"]:
        """Whether each position is covered in a training view."""
        t = batch.items.shape[1]
        draw = uniform_draws(batch.seed, batch.step, batch.row_ids, t + 1)
        end = torch.arange(t, device=draw.device) == batch.lengths[:, None] - 1
        hidden = batch.valid & (draw[:, 1:] < self.share)
        alone = (draw[:, :1] < self.last_share) | ~hidden.any(1, keepdim=True)
        return torch.where(alone, end, hidden | end if self.covers_end else hidden)

    def counts(self, batch: Batch) -> dict[str, int]:
        return {"cloze": int(self.covered(batch).sum())}

    def training_inputs(self, items: Items, batch: Batch) -> Inputs:
        return self.covered_inputs(items, batch, self.covered(batch))

    def covered_inputs(self, items: Items, batch: Batch, hidden: Bool[Tensor, "B T"]) -> Inputs:
        """Encoder inputs for rows with these positions covered."""
        times = None if batch.times is None else known_times(batch.times, hidden)
        inputs = replace(batch, hidden=hidden, times=times)
        return self._view(items, inputs), inputs

    def queries(self, states: States, inputs: Batch, batch: Batch, table: ItemVectors) -> QueryGroups:
        assert inputs.hidden is not None
        rows, positions = inputs.hidden.nonzero(as_tuple=True)
        targets = batch.items[rows, positions]
        times = None if batch.times is None else batch.times[rows, positions]
        vectors = states.tokens[rows, positions]
        if "trained" in states.outputs:
            at_end = positions == inputs.lengths[rows] - 1
            vectors = torch.where(at_end[:, None], states.outputs["trained"][rows], vectors)
        return (Queries("cloze", vectors, targets, table, rows, positions, times=times),)

    def inference_inputs(self, items: Items, batch: Batch) -> Inputs:
        # the history's oldest event makes way for the covered place where the row is full
        full = batch.lengths[:, None] == self.max_length
        lengths = batch.lengths.clamp_max(self.max_length - 1) + 1

        def grown(row: Tensor) -> Tensor:
            return F.pad(torch.where(full, row.roll(-1, 1), row), (0, 1))[:, : self.max_length]

        events = grown(batch.items)
        end = torch.arange(events.shape[1], device=events.device) == lengths[:, None] - 1
        times = None if batch.times is None else known_times(grown(batch.times), end)
        inputs = replace(batch, items=events, lengths=lengths, hidden=end, times=times)
        return self._view(items, inputs), inputs

    def readout(self, states: States, inputs: Batch) -> Float[Tensor, "B D"]:
        return states.outputs.get("answer", last(states.tokens, inputs))

    def _view(self, items: Items, inputs: Batch) -> Tensor:
        """The item vectors, with the cover in the hidden places."""
        assert inputs.hidden is not None
        return torch.where(inputs.hidden[..., None], self.cover, items.read(inputs.items))


def known_times(times: Int[Tensor, "B T"], hidden: Bool[Tensor, "B T"]) -> Int[Tensor, "B T"]:
    """Each covered event at the time of the last one before it that is not covered (where there is none: of the first).

    What follows a history has no time yet, so a model may not learn from the times
    of covered events either.
    """
    # the running maximum of positions that are not covered is the last one known so far
    at = torch.arange(times.shape[1], device=times.device).expand_as(times)
    last = torch.where(hidden, -1, at).cummax(1).values
    first = hidden.long().argmin(1, keepdim=True)
    return times.gather(1, torch.where(last < 0, first, last))
