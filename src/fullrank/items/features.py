"""Items from what is known of them: id vector + categorical vectors + a linear map of numbers, summed.

Numbers are standardised, a missing one is 0 with an indicator of its own. Without the id vector, an item is known by
its features alone, so a new item has a useful vector on its first day.
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float, Int
from pydantic import Field, model_validator
from torch import Tensor, nn

from fullrank.data.catalog import Catalog
from fullrank.ops.initial import start_small
from fullrank.spec import Spec


class Features(Spec):
    """Item vectors from features."""

    kind: Literal["features"] = "features"
    categorical: tuple[str, ...] = ()
    """Columns of the item table with a vector for each value."""
    numeric: tuple[str, ...] = ()
    """Columns of the item table that are numbers."""
    ids: bool = True
    """Add a vector of the item's own."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout on the summed vector."""

    @model_validator(mode="after")
    def _some_source(self) -> Features:
        if not (self.categorical or self.numeric):
            raise ValueError("features needs columns in categorical or numeric; without any, use items kind 'table'")
        return self

    def build(self, dim: int, catalog: Catalog) -> FeatureItems:
        return FeatureItems(dim, catalog, self)


class FeatureItems(nn.Module):
    codes: Tensor
    numbers: Tensor
    popularity: Tensor

    def __init__(self, dim: int, catalog: Catalog, spec: Features):
        super().__init__()
        self.size = catalog.size
        columns = [catalog.categorical(name) for name in spec.categorical]
        codes = [torch.as_tensor(c.codes) for c in columns]
        self.register_buffer("codes", torch.stack(codes, 1) if codes else torch.zeros(self.size, 0, dtype=torch.long))
        self.register_buffer("popularity", torch.as_tensor(catalog.popularity, dtype=torch.float32))
        self.tables = nn.ModuleList(nn.Embedding(c.cardinality, dim) for c in columns)
        self.embedding = nn.Embedding(self.size, dim) if spec.ids else None
        self.linear: nn.Linear | None = None
        if spec.numeric:
            numbers = torch.as_tensor(catalog.numeric(spec.numeric).matrix)
            self.register_buffer("numbers", numbers)
            self.linear = nn.Linear(numbers.shape[1], dim)
        self.drop = nn.Dropout(spec.dropout)
        start_small(self)
        start_small(self.tables)

    def embed(self, ids: Int[Tensor, "*n"]) -> Float[Tensor, "*n D"]:
        parts = [table(self.codes[ids][..., i]) for i, table in enumerate(self.tables)]
        if self.embedding is not None:
            parts.append(self.embedding(ids))
        if self.linear is not None:
            parts.append(self.linear(self.numbers[ids]))
        return self.drop(torch.stack(parts).sum(0))

    def all(self) -> Float[Tensor, "V D"]:
        return self.embed(torch.arange(self.size, device=self.codes.device))
