"""Losses: scores -> one number per query.

The room's contract: a `LossSpec` whose ``build()`` gives a `Loss`, which never makes the full [M, V] scores.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from jaxtyping import Float
from torch import Tensor

from fullrank.core.spec import Spec
from fullrank.data.batch import Batch
from fullrank.models import Queries, Record
from fullrank.models.sequential.objectives.negatives import added_scores


class Loss(ABC):
    """A function of queries and their batch."""

    sampled: bool = True
    """Whether its records hold the scores of sampled negatives."""
    couples: bool = False
    """Whether a query is always compared with the targets of the batch's other queries."""
    reads_every_item: bool = False
    """Whether it reads the vectors of all items otherwise than by the exact softmax, so that one
    process must hold them."""

    @abstractmethod
    def __call__(self, queries: Queries, batch: Batch) -> Record:
        """One loss per query. `batch` gives the place (seed, step, rows) that drawn
        negatives are a function of."""


class LossSpec(Spec):
    """Base of every loss."""

    @abstractmethod
    def build(self) -> Loss: ...


def positive_scores(q: Queries) -> Float[Tensor, "M"]:
    """Score of each query's own target, in fp32."""
    products = (q.vectors * q.table.embed(q.targets)).sum(-1).float()
    term = added_scores(q, q.targets[:, None])
    return (products if term is None else products + term[:, 0]) / q.temperature
