"""Inverse propensity: the rarer a query's target in training, the more the query counts (and uniform, to compare).

`inverse_popularity` (Schnabel et al., arXiv:1602.05352, Eq. 3), tempered by a power: w_i =
n_i^-power over its mean under the training distribution. The weights have mean one without looking
at the batch, so shards and accumulation do not change them.

`d2lr` (Lu et al., SIGIR 2025), here the weights of its propensity part: w = max(training share of
the target, floor)^-power, divided by its mean over the batch. A reconstruction (low confidence):
the paper is about language models and no code of its authors was found. SPRINT's authors, who
compare with it, ran this with power 0.1 and without a floor. Their paper searches a second setting
beta from 0.05 to 0.4 without explaining it: `floor` is our reading, off by default, and no item of
a usual catalogue has such a share. Without a floor it is `inverse_popularity` with another divisor.
The mean runs over this process's micro-batch: nothing is gathered, so shards divide by their own.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from fullrank.core.constraints import DropoutRate
from fullrank.core.errors import UserError
from fullrank.models import Queries, Step
from fullrank.models.sequential.objectives.weightings import Weighting, WeightingSpec


class Uniform(WeightingSpec):
    """Every query counts the same."""

    kind: Literal["uniform"] = "uniform"

    def build(self) -> UniformWeighting:
        return UniformWeighting()


class UniformWeighting(Weighting):
    def __call__(self, queries: Queries, step: Step) -> Float[Tensor, "M"]:
        return torch.ones(len(queries.targets), device=queries.targets.device)


class InversePopularity(WeightingSpec):
    """Inverse popularity of the target to a power, mean one under the training distribution (Schnabel et al. 2016)."""

    kind: Literal["inverse_popularity"] = "inverse_popularity"
    power: float = Field(0.5, gt=0, le=100)
    """Exponent on the popularity; 1 is the full inverse propensity."""

    def build(self) -> InversePopularityWeighting:
        return InversePopularityWeighting(self)


class InversePopularityWeighting(Weighting):
    def __init__(self, spec: InversePopularity):
        self.power = spec.power

    def __call__(self, queries: Queries, step: Step) -> Float[Tensor, "M"]:
        every = torch.arange(queries.table.size, device=queries.targets.device)
        log_q = queries.table.log_q(every)
        raw = (-self.power * log_q).exp()
        return raw[queries.targets] / (log_q.exp() * raw).sum()


class D2LR(WeightingSpec):
    """Inverse training share of the target over the batch's mean (D2LR, SIGIR 2025)."""

    kind: Literal["d2lr"] = "d2lr"
    power: float = Field(0.1, gt=0, le=100)
    """alpha of the paper: exponent on the inverted share."""
    floor: DropoutRate = 0.0
    """Shares of the training events below this one count as it."""

    def build(self) -> D2LRWeighting:
        return D2LRWeighting(self)


class D2LRWeighting(Weighting):
    couples = True

    def __init__(self, spec: D2LR):
        self.power, self.floor = spec.power, spec.floor

    def __call__(self, queries: Queries, step: Step) -> Float[Tensor, "M"]:
        log_q = queries.table.log_q(queries.targets)
        if self.floor:
            every = torch.arange(queries.table.size, device=log_q.device)
            most = float(queries.table.log_q(every).max().exp())
            if most <= self.floor:
                raise UserError(
                    f"the weighting d2lr with floor={self.floor:g} would weigh every item alike: the most popular one "
                    f"has {most:.3g} of the training events; give a smaller floor",
                    code="floor-above-every-share",
                )
            log_q = log_q.clamp_min(math.log(self.floor))
        raw = (-self.power * log_q).exp()
        return raw / raw.mean()
