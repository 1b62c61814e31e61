"""Inverse propensity by training popularity (Schnabel et al., arXiv:1602.05352, Eq. 3), tempered by a power.

w_i = n_i^-power over its mean under the training distribution: the weights have mean one without looking at the batch,
so shards and accumulation do not change them.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from fullrank.core.errors import UserError
from fullrank.core.spec import Spec
from fullrank.data.batch import Queries, Step


class Uniform(Spec):
    """Weight one."""

    kind: Literal["uniform"] = "uniform"

    def build(self) -> UniformWeighting:
        return UniformWeighting()


class UniformWeighting:
    couples = False

    def __call__(self, queries: Queries, step: Step) -> Float[Tensor, "M"]:
        return torch.ones(len(queries.targets), device=queries.targets.device)


class InversePopularity(Spec):
    """Inverse popularity."""

    kind: Literal["inverse_popularity"] = "inverse_popularity"
    power: float = Field(0.5, gt=0)
    """Exponent on the popularity; 1 is the full inverse propensity."""

    def build(self) -> InversePopularityWeighting:
        return InversePopularityWeighting(self)


class InversePopularityWeighting:
    couples = False

    def __init__(self, spec: InversePopularity):
        self.power = spec.power

    def __call__(self, queries: Queries, step: Step) -> Float[Tensor, "M"]:
        every = torch.arange(queries.catalogue.size, device=queries.targets.device)
        log_q = queries.catalogue.log_q(every)
        raw = (-self.power * log_q).exp()
        return raw[queries.targets] / (log_q.exp() * raw).sum()


class D2LR(Spec):
    """Inverse training share over the batch's mean."""

    kind: Literal["d2lr"] = "d2lr"
    power: float = Field(0.1, gt=0)
    """alpha of the paper: exponent on the inverted share."""
    floor: float = Field(0.0, ge=0, lt=1)
    """Shares of the training events below this one count as it."""

    def build(self) -> D2LRWeighting:
        return D2LRWeighting(self)


class D2LRWeighting:
    couples = True

    def __init__(self, spec: D2LR):
        self.power, self.floor = spec.power, spec.floor

    def __call__(self, queries: Queries, step: Step) -> Float[Tensor, "M"]:
        log_q = queries.catalogue.log_q(queries.targets)
        if self.floor:
            log_q = self._clipped(log_q, queries)
        raw = (-self.power * log_q).exp()
        return raw / raw.mean()

    def _clipped(self, log_q: Float[Tensor, "M"], queries: Queries) -> Float[Tensor, "M"]:
        every = torch.arange(queries.catalogue.size, device=log_q.device)
        most = float(queries.catalogue.log_q(every).max().exp())
        if most <= self.floor:
            raise UserError(
                f"the weighting d2lr with floor={self.floor:g} would weigh every item alike: the most popular one has "
                f"{most:.3g} of the training events; give a smaller floor"
            )
        return log_q.clamp_min(math.log(self.floor))
