"""Inverse propensity by training popularity (Schnabel et al., arXiv:1602.05352, Eq. 3), tempered by a power.

w_i = n_i^-power over its mean under the training distribution: the weights have mean one without looking at the batch,
so shards and accumulation do not change them.
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from fullrank.core.spec import Spec
from fullrank.data.batch import Queries, Step


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
