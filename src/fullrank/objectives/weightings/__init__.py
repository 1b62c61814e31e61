"""How much each query counts.

The room's contract: a Spec whose ``build()`` gives a `Weighting`. A loss is the weighted sum over the query count.
"""

from __future__ import annotations

from typing import Protocol

from jaxtyping import Float
from torch import Tensor

from fullrank.batch import Queries, Step


class Weighting(Protocol):
    def __call__(self, queries: Queries, step: Step) -> Float[Tensor, "M"]: ...
