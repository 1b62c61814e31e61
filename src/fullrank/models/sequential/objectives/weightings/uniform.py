"""Every query counts the same."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

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
