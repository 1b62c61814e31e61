"""Generalised binary cross-entropy (gSASRec, arXiv:2308.07192, Eq. 14): undoes the overconfidence of few negatives.

    loss = -(beta log sigma(s+) + sum_j log(1 - sigma(s_j))) / (N + 1)
    beta = alpha (t (1 - 1/alpha) + 1/alpha),  alpha = N / (V - 1)

t = 0 is plain binary cross-entropy, t = 1 full calibration.
"""

from __future__ import annotations

from typing import Literal

import torch.nn.functional as F

from fullrank.core.constraints import Share
from fullrank.data.batch import Batch
from fullrank.models import Queries, Record
from fullrank.models.sequential.objectives.losses import Loss, LossSpec, positive_scores
from fullrank.models.sequential.objectives.negatives import Negatives, counted_negatives, draw, per_query, scores


class GBCE(LossSpec):
    """Generalised binary cross-entropy."""

    kind: Literal["gbce"] = "gbce"
    negatives: Negatives = Negatives(count=256, share="row")
    """How negatives are drawn."""
    calibration: Share = 0.75
    """t of the paper."""

    def build(self) -> GBCELoss:
        return GBCELoss(self)


class GBCELoss(Loss):
    def __init__(self, spec: GBCE):
        self.spec = spec

    def __call__(self, queries: Queries, batch: Batch) -> Record:
        how = self.spec.negatives
        alpha = min(1.0, how.count / max(1, queries.table.size - 1))
        beta = alpha * (self.spec.calibration * (1 - 1 / alpha) + 1 / alpha)
        drawn = draw(how, queries, batch)
        ids = per_query(how, drawn, queries)
        positive, negative = positive_scores(queries), scores(how, drawn, queries)
        good = counted_negatives(how, ids, queries, batch)
        against = (F.softplus(negative) * good).sum(1)
        return Record((beta * F.softplus(-positive) + against) / (how.count + 1), positive, negative, ids, good)
