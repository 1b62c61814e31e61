"""Exact softmax cross-entropy over the whole catalogue, in chunks (log s_target - log sum_v exp s_v, negated)."""

from __future__ import annotations

from typing import Literal

from fullrank.core.constraints import Count, DropoutRate
from fullrank.data.batch import Batch
from fullrank.models import Queries, Record
from fullrank.models.sequential.items import ItemIndex
from fullrank.models.sequential.objectives.losses import Loss, LossSpec, positive_scores
from fullrank.ops.log_sum_exp import CHUNK_ELEMENTS, log_sum_exp
from fullrank.ops.sharded_rows import sharded_log_sum_exp


class CrossEntropy(LossSpec):
    """Exact softmax."""

    kind: Literal["cross_entropy"] = "cross_entropy"
    label_smoothing: DropoutRate = 0.0
    """Share of the target's mass spread evenly over the catalogue."""
    chunk_elements: Count = CHUNK_ELEMENTS
    """Scores alive at once (4 bytes each); at least 16 queries are taken together."""

    def build(self) -> CrossEntropyLoss:
        return CrossEntropyLoss(self)


class CrossEntropyLoss(Loss):
    sampled = False

    def __init__(self, spec: CrossEntropy):
        self.spec, self.reads_every_item = spec, spec.label_smoothing > 0

    def __call__(self, queries: Queries, batch: Batch) -> Record:
        smooth, chunk = self.spec.label_smoothing, self.spec.chunk_elements
        shard = queries.table.shard if isinstance(queries.table, ItemIndex) else None
        scaled = queries.vectors / queries.temperature
        if isinstance(queries.table, ItemIndex) and shard is not None:
            whole = sharded_log_sum_exp(scaled, queries.table.own(), shard, chunk_elements=chunk)
            positive = positive_scores(queries)
            return Record(whole - positive, positive)
        table = queries.table.all()
        positive = positive_scores(queries)
        losses = log_sum_exp(scaled, table, chunk_elements=chunk) - (1 - smooth) * positive
        if smooth:
            losses = losses - smooth * (scaled @ table.mean(0)).float()
        return Record(losses, positive)
