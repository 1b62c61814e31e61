"""Short-term intent and long-term preference, trained and scored side by side (MOJITO, SIGIR 2023, arXiv:2304.08158).

The state h_t of a position is the short-term part; the item x_t with what the history makes of
it is the long-term one,

    g_t = (1 - b) x_t + b x_t * sum_(j <= t) softmax_j(x_t / |x_t| . x_j) x_j      (* element by element)

an item similarity with attention (FISM). Both predict the next item with a loss of their own, L(h)
+ weight L(g), and an item's score is (h + weight g) . e. x are the vectors that enter the encoder.

Differs: the form that SPRINT's authors ran, with the last item where MOJITO has the candidate, so
that a score is an inner product and the catalogue is searched exactly; they answer with h alone.
The attention reads all events up to t and none behind it, where both codes draw 20 of the whole
history, in which the target stands too; there is no vector for each user. Under cosine scores h +
weight g is normalised as one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from fullrank.core.constraints import PositiveFactor, Share
from fullrank.data.batch import Batch
from fullrank.models import ItemVectors, QueryGroups, States, last
from fullrank.models.sequential.items import Items, unit
from fullrank.models.sequential.objectives.tasks import HistoryTask, Segments, TaskSpec
from fullrank.models.sequential.objectives.tasks.next_item import NextItem, NextItemTask


class MojitoNextItem(TaskSpec):
    """Next-item prediction by short-term and long-term parts."""

    kind: Literal["mojito"] = "mojito"
    weight: PositiveFactor = 0.1
    """Factor of the long-term part, in the loss and in the scores (lambda)."""
    blend: Share = 0.5
    """Share of the long-term part that the history has in it (b); 0 is the last item alone."""
    window: Literal["last", "random"] = "last"
    """Stretch of a history longer than max_length that an epoch reads."""

    def build(self, dim: int, max_length: int, items: Items | None = None) -> MojitoTask:
        return MojitoTask(dim, max_length, self)


class MojitoTask(HistoryTask):
    """Rows of `NextItem`, with two groups of queries."""

    causal = True
    featureless = "it compares the item vectors that its encoder reads with each other"
    adds_groups = True

    def __init__(self, dim: int, max_length: int, spec: MojitoNextItem):
        super().__init__()
        self.rows = NextItemTask(dim, max_length, NextItem(window=spec.window))
        self.weight, self.blend = spec.weight, spec.blend

    def segments(self, lengths: np.ndarray, draw: np.random.Generator) -> Segments:
        return self.rows.segments(lengths, draw)

    def counts(self, batch: Batch) -> dict[str, int]:
        short = self.rows.counts(batch)
        return short | {"long_term": short["ahead_1"]}

    def queries(self, states: States, inputs: Batch, batch: Batch, table: ItemVectors) -> QueryGroups:
        (short,) = self.rows.queries(states, inputs, batch, table)
        vectors = self.long_term(states)[short.rows, short.positions]
        return short, replace(short, name="long_term", vectors=vectors, weight=self.weight)

    def readout(self, states: States, inputs: Batch) -> Float[Tensor, "B D"]:
        return last(states.tokens + self.weight * self.long_term(states), inputs)

    def long_term(self, states: States) -> Float[Tensor, "B T D"]:
        """g of every position; those behind a row's end are unspecified."""
        x = states.layers[0]
        one_head = x[:, None]
        history = F.scaled_dot_product_attention(unit(one_head), one_head, one_head, is_causal=True, scale=1.0)
        return x * (1 - self.blend + self.blend * history[:, 0])
