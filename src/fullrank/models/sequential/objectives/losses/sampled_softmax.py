"""Softmax over the target and sampled negatives with the logQ correction (Bengio & Senecal 2008; SRT, Sec. 3).

Each score is lowered by the log probability that a draw gives its item. The number of draws
cancels where the positive is corrected too; where it is not, negatives are lowered by the log of
their expected count instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from fullrank.data.batch import Batch
from fullrank.models import Queries, Record
from fullrank.models.sequential.objectives.losses import Loss, LossSpec, positive_scores
from fullrank.models.sequential.objectives.negatives import (
    Negatives,
    counted_negatives,
    draw,
    log_probability,
    per_query,
    scores,
)

Draw = Callable[[Negatives, Queries, Batch], Tensor]
"""Where negatives come from: `negatives.draw`, or the same ones everywhere."""


class SampledSoftmax(LossSpec):
    """Sampled softmax."""

    kind: Literal["sampled_softmax"] = "sampled_softmax"
    negatives: Negatives = Negatives()
    """How negatives are drawn."""
    log_q: Literal["all", "negatives", "none"] = "all"
    """Correct the positive and the negatives, the negatives alone (unbiased partition function), or nothing."""

    def build(self) -> SampledSoftmaxLoss:
        return SampledSoftmaxLoss(self)


class SampledSoftmaxLoss(Loss):
    def __init__(self, spec: SampledSoftmax, drawing: Draw | None = None):
        """`drawing`: where negatives come from, for measurements that
        need the same ones everywhere."""
        self.spec, self.drawing = spec, drawing

    def __call__(self, queries: Queries, batch: Batch) -> Record:
        how = self.spec.negatives
        drawn = (self.drawing or draw)(how, queries, batch)
        ids = per_query(how, drawn, queries)
        negative, positive = scores(how, drawn, queries), positive_scores(queries)
        low, high = negative, positive
        if self.spec.log_q != "none":
            expected = per_query(how, log_probability(how, queries, drawn), queries)
            low = negative - expected
            if self.spec.log_q == "all":
                high = positive - log_probability(how, queries, queries.targets)
            else:
                low = low - torch.tensor(float(how.count), device=low.device).log()
        good = counted_negatives(how, ids, queries, batch)
        low = low.masked_fill(~good, float("-inf"))
        losses = torch.logsumexp(torch.cat([high[:, None], low], 1), 1) - high
        return Record(losses, positive, negative, ids, good)
