"""Binary cross-entropy against sampled negatives (SASRec, arXiv:1808.09781, Eq. 7).

softplus(-s+) plus the mean over the negatives of softplus(s-); with several
negatives as in SPRINT, Sec. 5.1.
"""

from __future__ import annotations

from typing import Literal

import torch.nn.functional as F

from fullrank.data.batch import Batch
from fullrank.models import Queries, Record
from fullrank.models.sequential.objectives.losses import Loss, LossSpec, positive_scores
from fullrank.models.sequential.objectives.negatives import Negatives, counted_negatives, draw, per_query, scores


class BCE(LossSpec):
    """Binary cross-entropy."""

    kind: Literal["bce"] = "bce"
    negatives: Negatives = Negatives(count=1, share="query", exclude="history")
    """How negatives are drawn."""

    def build(self) -> BCELoss:
        return BCELoss(self)


class BCELoss(Loss):
    def __init__(self, spec: BCE):
        self.spec = spec

    def __call__(self, queries: Queries, batch: Batch) -> Record:
        how = self.spec.negatives
        drawn = draw(how, queries, batch)
        ids = per_query(how, drawn, queries)
        positive, negative = positive_scores(queries), scores(how, drawn, queries)
        good = counted_negatives(how, ids, queries, batch)
        against = (F.softplus(negative) * good).sum(1) / good.sum(1).clamp_min(1)
        return Record(F.softplus(-positive) + against, positive, negative, ids, good)
