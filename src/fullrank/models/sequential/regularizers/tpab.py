"""TPAB's bootstrapping: the loss once more, with the popularity of other items (Yoo et al., KDD 2025).

Every query is asked a second time, and its target and negatives get the popularity of another
query's target and negatives, by a permutation of the batch. What popularity explained is then
wrong, and the intrinsic vectors have to find the target alone. The term is weight times that loss.
For items of the kind `tpab`.

Differs: the second loss draws negatives of its own. The permutation is of this process's
micro-batch: nothing is gathered, so shards give the mean of their own terms. The code of SPRINT's
authors has the weight and no such term.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch

from fullrank.core.constraints import PositiveFactor
from fullrank.models import Queries, QueryGroups, Requirement, States
from fullrank.models.sequential.items import ItemIndex
from fullrank.models.sequential.regularizers import PenaltySpec, QueryPenalty


class TPABBootstrap(PenaltySpec):
    """The loss under exchanged popularity, for items of the kind tpab."""

    kind: Literal["tpab"] = "tpab"
    weight: PositiveFactor = 1.0
    """Factor of the term (lambda)."""

    def build(self) -> TPABBootstrapPenalty:
        return TPABBootstrapPenalty(self)


class TPABBootstrapPenalty(QueryPenalty[TPABBootstrap]):
    requires = (
        Requirement(
            lambda model: model.items.needs_times,
            "the penalty tpab exchanges the popularity of items, and these have no part for it: set model.items=tpab, "
            "or drop the penalty",
            code="penalty-needs-popularity",
        ),
    )

    def extra_queries(self, queries: QueryGroups, states: States) -> QueryGroups:
        return tuple(self._bootstrapped(q) for q in queries)

    def _bootstrapped(self, q: Queries) -> Queries:
        """The queries again, each with the popularity of another one's items."""
        assert isinstance(q.table, ItemIndex)
        table = q.table.exchanging(torch.randperm(len(q.targets), device=q.targets.device))
        weight = self.spec.weight * q.weight
        return replace(q, name=f"{q.name}_bootstrapped", table=table, weight=weight, counted_as=q.name)
