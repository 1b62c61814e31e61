"""In-batch softmax: a query's target among the batch's targets (UniSRec's sequence-item contrast, arXiv:2206.05941).

loss = log sum_v exp s_v - s_target over the distinct targets v of the batch's queries. No item
outside the batch is looked at, so the items of several shops can be one catalogue, and the
cost does not grow with it.

Differs: an item that is the target of several rows counts once. The paper counts it for each of
them, and the authors' code gives a row with one's own target the score 0 in place of leaving it
out. Targets are those of this process's micro-batch.
"""

from __future__ import annotations

from typing import Literal

from fullrank.data.batch import Batch
from fullrank.models import Queries, Record
from fullrank.models.sequential.objectives.losses import Loss, LossSpec, positive_scores
from fullrank.ops.log_sum_exp import log_sum_exp
from fullrank.ops.picked_rows import distinct


class InBatch(LossSpec):
    """Softmax over the targets of the batch."""

    kind: Literal["in_batch"] = "in_batch"

    def build(self) -> InBatchLoss:
        return InBatchLoss()


class InBatchLoss(Loss):
    sampled = False
    couples = True

    def __call__(self, queries: Queries, batch: Batch) -> Record:
        table = queries.table.embed(distinct(queries.targets, queries.table.size))
        positive = positive_scores(queries)
        return Record(log_sum_exp(queries.vectors / queries.temperature, table) - positive, positive)
