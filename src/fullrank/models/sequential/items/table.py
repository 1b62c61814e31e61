"""One learned vector per item, shared by input and output (tied).

The table lies in one process, or each process has a slice of it (`training.shard_items`), whose
values are those that one process would draw from the same seed, bit for bit. All processes embed
and score together, in the same order: training does so, and validation ranks the same users
everywhere (`inference/search.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch.distributed as dist
from jaxtyping import Float, Int
from torch import Tensor, nn

from fullrank.core.errors import UserError
from fullrank.data.events.catalog import Catalog
from fullrank.models import DenseScorer
from fullrank.models.sequential.items import ItemsSpec, LookedUpItems
from fullrank.ops.picked_rows import distinct_and_places
from fullrank.ops.sharded_rows import RowShard, sharded_rows
from fullrank.ops.starting_values import MARK, STD, normal_rows, start_small


class ShardedItemTable(LookedUpItems):
    def __init__(self, dim: int, catalog: Catalog, shard: RowShard):
        super().__init__()
        self.shard = shard
        normal_rows(shard.size, dim, shard.low, shard.high, 1.0)  # the draws that `nn.Embedding` makes first
        drawn = normal_rows(shard.size, dim, shard.low, shard.high, STD)
        self.embedding = nn.Embedding.from_pretrained(drawn, freeze=False)
        setattr(self.embedding.weight, MARK, True)
        self.count_items(catalog.popularity)

    def embed(self, ids: Int[Tensor, "*n"]) -> Float[Tensor, "*n D"]:
        assert self.shard is not None
        unique, inverse = distinct_and_places(ids, self.size)
        return sharded_rows(self.embedding.weight, unique, self.shard)[inverse]

    def own(self) -> Float[Tensor, "v D"]:
        """The rows of this process."""
        return self.embedding.weight

    def all(self) -> Float[Tensor, "V D"]:
        raise UserError(
            "the item table is shared out to processes and something reads it whole: set training.shard_items=false",
            code="table-is-sharded",
        )


@dataclass(frozen=True)
class ShardedScorer:
    """An answer by inner product with a table that is shared out: every process has the scores of its own rows."""

    local: DenseScorer
    shard: RowShard

    @property
    def size(self) -> int:
        return self.shard.size

    def block(self, low: int, high: int) -> Float[Tensor, "B n"]:
        """The scores of items low .. high - 1 on every process; all ask for the same block together."""
        scores = self.local.vectors.new_zeros(len(self.local.vectors), high - low)
        first, last = max(low, self.shard.low), min(high, self.shard.high)
        if first < last:
            scores[:, first - low : last - low] = self.local.block(first - self.shard.low, last - self.shard.low)
        dist.all_reduce(scores, group=self.shard.group)
        return scores


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
