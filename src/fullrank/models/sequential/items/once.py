"""Items as one training step reads them: an item's vector is computed once, however often the step asks for it.

For items whose vectors cost something (text). Histories and targets are asked for first, then negatives: only what was
not asked for before is computed, and memory and time grow with the distinct items of the step, not with the catalogue.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fullrank.models.sequential.items import Items
from fullrank.ops.distinct import distinct_and_places


class Once:
    """Satisfies `Items`. To be thrown away after the step: weights must not change while it lives."""

    def __init__(self, items: Items):
        self.items, self.size, self.popularity = items, items.size, items.popularity
        self._ids: Int[Tensor, "m"] | None = None
        self._rows: Int[Tensor, "m"] | None = None
        self._vectors: Float[Tensor, "m D"] | None = None

    def embed(self, ids: Int[Tensor, "*n"]) -> Float[Tensor, "*n D"]:
        wanted, place = distinct_and_places(ids, self.size)
        rows, vectors = self._held(wanted)
        return vectors[rows[place]]

    def all(self) -> Float[Tensor, "V D"]:
        return self.items.all()

    def _held(self, wanted: Int[Tensor, "w"]) -> tuple[Int[Tensor, "w"], Float[Tensor, "m D"]]:
        """The rows of these distinct, rising ids among the vectors so far; what lacks is computed."""
        if self._ids is None or self._rows is None or self._vectors is None:
            self._ids, self._rows = wanted, torch.arange(len(wanted), device=wanted.device)
            self._vectors = self.items.embed(wanted)
            return self._rows, self._vectors
        fresh = wanted[~torch.isin(wanted, self._ids, assume_unique=True)]
        if len(fresh):
            more = torch.arange(len(fresh), device=wanted.device) + len(self._vectors)
            self._ids, order = torch.cat([self._ids, fresh]).sort()
            self._rows = torch.cat([self._rows, more])[order]
            self._vectors = torch.cat([self._vectors, self.items.embed(fresh)])
        return self._rows[torch.searchsorted(self._ids, wanted)], self._vectors
