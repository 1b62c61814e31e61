"""Query weights: how much each query counts in the loss.

The room's contract: a `WeightingSpec` whose ``build()`` gives a `Weighting`. A loss is the weighted
sum over the query count.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from jaxtyping import Float
from torch import Tensor

from fullrank.core.spec import Spec
from fullrank.models import Queries, Step


class Weighting(ABC):
    """A factor for each query."""

    couples: bool = False
    """Whether a query's weight depends on the other queries at hand.

    Where it does not, weights have mean one under the training distribution, and shards and
    accumulation do not change them. Where it does, they have mean one over the queries of one
    process's micro-batch: nothing is gathered.
    """

    @abstractmethod
    def __call__(self, queries: Queries, step: Step) -> Float[Tensor, "M"]:
        """The weight of each query."""


class WeightingSpec(Spec):
    """Base of every weighting."""

    @abstractmethod
    def build(self) -> Weighting: ...
