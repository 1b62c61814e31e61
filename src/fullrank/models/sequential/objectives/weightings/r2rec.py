"""R2Rec: tail items' queries count more (Li et al., WWW 2025), here the reweighting alone.

gamma = softmax over the batch's M queries of eta / temperature, with eta 1 where the target is a
tail item and 0 where it is not. A query weighs M gamma, so that the mean of the weighted losses is
sum gamma loss: a tail query counts e^(1/temperature) times as much as a head query.

A reconstruction (low confidence): no code of the paper's authors was found. SPRINT's authors, who
compare with it, ran these constant eta but divided by M once more, which only shrinks the loss. The
tail is the least popular share of the catalogue by training events; items with as many events as
its most popular one belong to it, and an item without events counts as one. Left out: the Gaussian
re-embedding of tail items, which redraws item vectors between epochs and is no weighting (SPRINT's
authors left it out too). The softmax runs over this process's micro-batch: nothing is gathered, so
shards give the mean, by number of queries, of their own sums.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Literal

import torch
from jaxtyping import Bool, Float
from pydantic import Field
from torch import Tensor

from fullrank.core.constraints import Temperature
from fullrank.models import ItemVectors, Queries, Step
from fullrank.models.sequential.objectives.weightings import Weighting, WeightingSpec


class R2Rec(WeightingSpec):
    """Softmax of a reward for tail targets."""

    kind: Literal["r2rec"] = "r2rec"
    temperature: Temperature = 0.5
    """tau of the paper (SPRINT searches 0.05 to 1): the smaller, the less head targets count."""
    tail: float = Field(0.8, gt=0, lt=1)
    """Share of the catalogue that is tail."""

    def build(self) -> R2RecWeighting:
        return R2RecWeighting(self)


class R2RecWeighting(Weighting):
    couples = True

    def __init__(self, spec: R2Rec):
        self.temperature, self.tail = spec.temperature, spec.tail

    def __call__(self, queries: Queries, step: Step) -> Float[Tensor, "M"]:
        eta = tail_items(queries.table, self.tail, queries.targets.device)[queries.targets].float()
        return len(eta) * torch.softmax(eta / self.temperature, 0)


def tail_items(table: ItemVectors, share: float, device: torch.device) -> Bool[Tensor, "V"]:
    """The floor(share V) least popular items, at least one, and all others with no more
    training events than these."""
    size = max(int(Fraction(str(share)) * table.size), 1)  # 0.29 * 100 is 28.99... in binary
    log_q = table.log_q(torch.arange(table.size, device=device))
    return log_q <= log_q.sort().values[size - 1]
