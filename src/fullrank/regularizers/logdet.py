"""LogDet: keeps the item Gram matrix from losing rank (dimensional collapse, NeurIPS 2023).

weight (tr C - log det C) with C = Z^T Z + ridge I and Z the item table: neither centred nor divided by its size.
The term is least where every eigenvalue of C is 1.
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from fullrank.batch import Step
from fullrank.spec import Spec


class LogDet(Spec):
    """Log-determinant penalty on the item vectors."""

    kind: Literal["logdet"] = "logdet"
    weight: float = Field(1e-3, gt=0)
    """Factor of the term."""
    ridge: float = Field(1e-6, gt=0)
    """Added to the diagonal."""

    def build(self) -> LogDetPenalty:
        return LogDetPenalty(self)


class LogDetPenalty(nn.Module):
    def __init__(self, spec: LogDet):
        super().__init__()
        self.weight, self.ridge = spec.weight, spec.ridge

    def forward(self, step: Step) -> Float[Tensor, ""]:
        table = step.queries[0].catalogue.all().float()
        with torch.autocast(table.device.type, enabled=False):  # bf16 products would drown the small eigenvalues
            gram = table.T @ table + self.ridge * torch.eye(table.shape[1], device=table.device)
            return self.weight * (gram.trace() - torch.linalg.slogdet(gram).logabsdet)
