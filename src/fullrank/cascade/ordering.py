"""The scores by which candidates are ordered, in one context."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
import torch
from jaxtyping import Float, Int

from fullrank.cascade import order
from fullrank.cascade.features import EncodedFields, PairFeatures, encode_fields
from fullrank.cascade.plan import FieldPlan
from fullrank.cascade.stages import RankingStage
from fullrank.cascade.tables import Context, KeyedTable


@dataclass(frozen=True)
class Reranker:
    """A ranker, where it reads users, and the catalogue as it reads items."""

    ranker: RankingStage
    users: KeyedTable | None
    user: str
    """The schema's column of user ids."""
    plan: FieldPlan
    context: Context
    items: EncodedFields
    device: torch.device

    def __call__(
        self, users: pl.Series, ids: Int[np.ndarray, "B C"], scores: Float[np.ndarray, "B C"], blend: float
    ) -> Float[np.ndarray, "B C"]:
        """Of each user's candidates (internal ids, -1 in empty places), to which the retriever gave `scores`.

        `users` are external ids, null where nobody is named.
        """
        found = order.probabilities(self.ranker.model, self.pairs(users), ids, self.device)
        return order.blend_scores(found, scores, blend)

    def require_some(self, users: pl.Series) -> None:
        """Raise `UserError` where a table that is read knows none of these users: asked once, for all of them."""
        self.context.require_some(users)
        if self.users is not None and self._names:
            self.users.require_some(users, "users")

    def pairs(self, users: pl.Series) -> PairFeatures:
        """The features of these users with every item."""
        columns = self.context.gather(users)
        if self._names:
            assert self.users is not None
            columns += self.users.gather(self._names, users)
        if self.user in self.plan.users:
            columns.append(users.alias(self.user))
        encoder = self.ranker.encoder
        return PairFeatures(encoder, encode_fields(encoder, columns, len(users), "the users"), self.items)

    @property
    def _names(self) -> list[str]:
        """The columns read of the users' table."""
        return [name for name in self.plan.users if name != self.user]
