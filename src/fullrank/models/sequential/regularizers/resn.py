"""ReSN: keeps the spectral norm of the score matrix small (Lin et al., WSDM 2025, arXiv:2404.12008).

With U the users' vectors, V the items' and Y = U V^T the batch's scores, weight ||Y r||^2 /
(||r||^2 + 1e-8) at r = Y^T 1, the items' summed scores: the squared Rayleigh quotient of Y at the
direction of popularity, at most sigma_1(Y)^2. Y itself is never made.

Differs: the form that SPRINT's authors ran for sequences. Y is linear (the original squashes scores
by a sigmoid) and gradients flow through r (the original stops them). A user is the sum of its
queries' vectors over the longest history (`user_vectors`); vectors are those that are scored, over
the temperature. The value grows with the rows of the batch and the catalogue. It is that of this
process's micro-batch: nothing is gathered, so shards give the mean of theirs.
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.core.constraints import PositiveFactor
from fullrank.models import Step
from fullrank.models.sequential.regularizers import ITEM_VECTORS, PenaltySpec, SpecPenalty, user_vectors

EPS = 1e-8
"""Added to ||r||^2."""


class ReSN(PenaltySpec):
    """Spectral-norm penalty on the score matrix."""

    kind: Literal["resn"] = "resn"
    weight: PositiveFactor = 1e-4
    """Factor of the term."""

    def build(self) -> ReSNPenalty:
        return ReSNPenalty(self)


class ReSNPenalty(SpecPenalty[ReSN]):
    requires = (ITEM_VECTORS,)

    def forward(self, step: Step) -> Float[Tensor, ""]:
        q = step.queries[0]
        return self.spec.weight * quotient(user_vectors(step) / q.temperature, q.table.all())


def quotient(u: Float[Tensor, "B D"], v: Float[Tensor, "V D"]) -> Float[Tensor, ""]:
    """||Y r||^2 / ||r||^2 for Y = U V^T and r = Y^T 1, in fp32."""
    u, v = u.float(), v.float()
    with torch.autocast(u.device.type, enabled=False):
        r = v @ u.sum(0)
        return (u @ (v.T @ r)).square().sum() / (r.square().sum() + EPS)
