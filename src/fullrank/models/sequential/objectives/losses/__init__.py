"""Scores -> one number per query.

The room's contract: a Spec whose ``build()`` gives a `Loss`, which never makes the full [M, V] scores.
"""

from __future__ import annotations

from typing import Protocol

from jaxtyping import Float
from torch import Tensor

from fullrank.data.batch import Batch, Queries, Record


class Loss(Protocol):
    sampled: bool
    """Whether its records hold the scores of sampled negatives."""

    def __call__(self, queries: Queries, batch: Batch) -> Record:
        """One loss per query. `batch` gives the place (seed, step, rows) that drawn negatives are a function of."""
        ...


def positive_scores(q: Queries) -> Float[Tensor, "M"]:
    """Score of each query's own target, in fp32."""
    return (q.vectors * q.catalogue.embed(q.targets)).sum(-1).float() / q.temperature
