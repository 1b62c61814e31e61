"""LogDet: keeps the Gram matrix of item vectors from losing rank (Zhang et al., NeurIPS 2023).

weight (tr C - log det C) with C = Z^T Z + ridge I and Z the item table as it is scored: neither
centred nor divided by its size. The term is least where every eigenvalue of C is 1. `user_weight`
adds the same of the batch's users.

Differs: there is no user table, so a user is the sum of its queries' vectors over the longest
history (`user_vectors`). The users' term is that of this process's micro-batch: nothing is
gathered, so shards give the mean of their own terms.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.core.constraints import Factor, PositiveFactor
from fullrank.models import Step
from fullrank.models.sequential.regularizers import ITEM_VECTORS, PenaltySpec, SpecPenalty, user_vectors


class LogDet(PenaltySpec):
    """Log-determinant penalty on the item vectors, and on the users'."""

    kind: Literal["logdet"] = "logdet"
    weight: PositiveFactor = 1e-3
    """Factor of the items' term."""
    user_weight: Factor = 0.0
    """Factor of the users' term; 0 leaves it out."""
    ridge: PositiveFactor = 1e-6
    """Added to the diagonal."""

    def build(self) -> LogDetPenalty:
        return LogDetPenalty(self)


class LogDetPenalty(SpecPenalty[LogDet]):
    requires = (ITEM_VECTORS,)

    def forward(self, step: Step) -> Float[Tensor, ""]:
        spec = self.spec
        term = spec.weight * divergence(step.queries[0].table.all(), spec.ridge)
        if spec.user_weight:
            term = term + spec.user_weight * divergence(user_vectors(step), spec.ridge)
        return term


def divergence(z: Float[Tensor, "n D"], ridge: float) -> Float[Tensor, ""]:
    """tr C - log det C, in fp32: bf16 products would drown the small eigenvalues.

    Fewer vectors than dimensions leave eigenvalues that are the ridge alone. Those are counted
    instead of computed, by det(Z^T Z + ridge I) = det(Z Z^T + ridge I) ridge^(D - n): the
    determinant of a singular matrix is rounding.
    """
    z, missing = z.float(), max(0, z.shape[1] - len(z))
    with torch.autocast(z.device.type, enabled=False):
        gram = z @ z.T if missing else z.T @ z
        gram = gram + ridge * torch.eye(len(gram), device=z.device)
        return gram.trace() - torch.linalg.slogdet(gram).logabsdet + missing * (ridge - math.log(ridge))
