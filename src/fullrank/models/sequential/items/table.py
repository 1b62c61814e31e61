"""One learned vector per item, shared by input and output (tied)."""

from __future__ import annotations

from typing import Literal

from jaxtyping import Float, Int
from torch import Tensor, nn

from fullrank.data.events.catalog import Catalog
from fullrank.models.initial import start_small
from fullrank.models.sequential.items import ItemsSpec, LookedUpItems
from fullrank.models.sequential.items.sharded import ShardedItemTable
from fullrank.ops.sharded_rows import RowShard


class Table(ItemsSpec):
    """An embedding table."""

    kind: Literal["table"] = "table"

    def build(self, dim: int, catalog: Catalog) -> ItemTable:
        return ItemTable(dim, catalog)

    def build_shard(self, dim: int, catalog: Catalog, shard: RowShard) -> ShardedItemTable:
        return ShardedItemTable(dim, catalog, shard)


class ItemTable(LookedUpItems):
    def __init__(self, dim: int, catalog: Catalog):
        super().__init__()
        self.embedding = nn.Embedding(catalog.size, dim)
        self.count_items(catalog.popularity)
        start_small(self)

    def embed(self, ids: Int[Tensor, "*n"]) -> Float[Tensor, "*n D"]:
        return self.embedding(ids)

    def all(self) -> Float[Tensor, "V D"]:
        return self.embedding.weight
