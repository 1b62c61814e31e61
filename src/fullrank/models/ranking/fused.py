"""The tables of many fields as one: a field's ids begin at its offset, so that one gather serves all of them.

A field that shares another's table has that one's offset.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from fullrank.data.batch import Bag, Impressions
from fullrank.models.ranking import Fields
from fullrank.ops.picked_rows import distinct

PlacedVectors = list[tuple[list[int], Tensor]]
"""Vectors [B, n, E], each with the positions of their n fields in the schema."""


def places_of(fields: Fields, *kinds: str) -> list[int]:
    """Positions in the schema of the fields of these kinds."""
    return [position for position, field in enumerate(fields) if field.kind in kinds]


class FusedTable(nn.Module):
    """The fields of `names` in a table of one width."""

    offsets: Tensor
    """[C] first rows of the categorical fields in this table."""

    def __init__(
        self,
        fields: Fields,
        names: Collection[str],
        width: int,
        mode: Literal["mean", "sum"],
        sparse: bool,
        apart: Collection[str] = (),
    ):
        """`apart` are sequences whose rows lie here and whose vectors are made elsewhere."""
        super().__init__()
        self.fields, self.mode, self.sparse = tuple(fields), mode, sparse
        self.starts: dict[str, int] = {}
        """First row of each field in the table."""
        rows = 0
        for field in fields:
            if field.name in names and field.kind != "numeric" and field.shares is None:
                self.starts[field.name] = rows
                rows += field.size
        self.starts |= {f.name: self.starts[f.shares] for f in fields if f.name in names and f.shares is not None}
        categorical, several = places_of(fields, "categorical"), places_of(fields, "bag", "sequence")
        columns = [column for column, p in enumerate(categorical) if fields[p].name in self.starts]
        self.columns = None if len(columns) == len(categorical) else columns
        self.places = [categorical[column] for column in columns]
        # of each bag: its number among the bags of a batch, its position in the
        # schema, and its first row
        held = [(number, p) for number, p in enumerate(several) if fields[p].name in self.starts]
        self.bags = [(number, p, self.starts[fields[p].name]) for number, p in held]
        self.pooled = [bag for bag in self.bags if fields[bag[1]].name not in apart]
        offsets = [self.starts[fields[p].name] for p in self.places]
        self.register_buffer("offsets", torch.tensor(offsets, dtype=torch.long), persistent=False)
        self.table = nn.Parameter(torch.empty(rows, width))
        self.padded = False
        """Whether bags stay padded, as in a graph that is exported."""

    def forward(self, batch: Impressions) -> PlacedVectors:
        vectors: PlacedVectors = []
        if self.places:
            vectors.append((self.places, F.embedding(self.row_ids(batch), self.table, sparse=self.sparse)))
        pool = self.pool_padded if self.padded else self.pool
        for number, position, start in self.pooled:
            vectors.append(([position], pool(batch.bags[number], start)[:, None]))
        return vectors

    def pool(self, bag: Bag, start: int) -> Float[Tensor, "B E"]:
        """Sum or mean of each row's vectors, whose ids begin at `start`; a row without
        values has the missing one."""
        ids, offsets = flattened(bag)
        return F.embedding_bag(ids + start, self.table, offsets, mode=self.mode, sparse=self.sparse)

    def pool_padded(self, bag: Bag, start: int) -> Float[Tensor, "B E"]:
        """`pool` by a gather and a masked sum, which every runtime of graphs has."""
        inside, ids = inside_of(bag)
        vectors = F.embedding(ids + start, self.table)
        pooled = (vectors * inside[..., None].to(vectors.dtype)).sum(1)
        return pooled if self.mode == "sum" else pooled / bag.lengths.clamp_min(1)[:, None].to(pooled.dtype)

    def rows(self, name: str, ids: Int[Tensor, "*n"]) -> Float[Tensor, "*n E"]:
        """The vectors of some ids of a field."""
        return F.embedding(ids + self.starts[name], self.table, sparse=self.sparse)

    def squared(self, batch: Impressions) -> Float[Tensor, ""]:
        """The squared norm of the rows that occur in a batch, each once.

        Where the table is small beside the batch, all rows are squared and those that occur are
        added up: that is cheaper than to gather rows and to scatter their gradients.
        """
        if self.sparse or len(self.table) > self.offsets.numel() * len(batch):
            rows = distinct(self._every(batch), len(self.table))
            return F.embedding(rows, self.table, sparse=self.sparse).square().sum()
        occurs = torch.zeros(len(self.table), dtype=self.table.dtype, device=self.table.device)
        occurs[self._every(batch)] = 1.0
        return torch.mv(self.table.square().T, occurs).sum()

    def _every(self, batch: Impressions) -> Int[Tensor, "n"]:
        """The rows of all values in a batch, each as often as it occurs."""
        ids = [self.row_ids(batch).flatten()] if self.places else []
        return torch.cat([*ids, *(flattened(batch.bags[number])[0] + start for number, _, start in self.bags)])

    def row_ids(self, batch: Impressions) -> Int[Tensor, "B F"]:
        """The row of the table of each categorical value."""
        ids = batch.categorical if self.columns is None else batch.categorical[:, self.columns]
        return ids + self.offsets

    def reference(self, batch: Impressions) -> PlacedVectors:
        """`forward` by a table per field, one after the other."""
        placed: PlacedVectors = []
        categorical, bags = places_of(self.fields, "categorical"), places_of(self.fields, "bag", "sequence")
        pooled = [position for _, position, _ in self.pooled]
        for position, field in enumerate(self.fields):
            if field.name not in self.starts or (position in bags and position not in pooled):
                continue
            owner = next(f for f in self.fields if f.name == (field.shares or field.name))
            table = self.table[self.starts[field.name] :][: owner.size]
            if field.kind == "categorical":
                vectors = table[batch.categorical[:, categorical.index(position)].long()]
            else:
                bag = batch.bags[bags.index(position)]
                rows = [row[:n] if n else row.new_zeros(1) for row, n in zip(bag.ids, bag.lengths, strict=True)]
                vectors = torch.stack([getattr(table[row.long()], self.mode)(0) for row in rows])
            placed.append(([position], vectors[:, None]))
        return placed


def flattened(bag: Bag) -> tuple[Int[Tensor, "n"], Int[Tensor, "B"]]:
    """The values of all rows behind each other, and where each row begins; a row without
    values has the missing one."""
    lengths = bag.lengths.clamp_min(1)
    inside = torch.arange(max(1, bag.ids.shape[1]), device=lengths.device) < lengths[:, None]
    ids = bag.ids if bag.ids.shape[1] else bag.ids.new_zeros(len(lengths), 1)
    ids = torch.where(bag.lengths[:, None] > 0, ids, 0)
    return ids[inside].long(), (lengths.cumsum(0) - lengths).long()


def inside_of(bag: Bag) -> tuple[Bool[Tensor, "B L"], Int[Tensor, "B L"]]:
    """Whether each place of a padded bag holds a value, and the ids, 0 elsewhere: `flattened` for a graph.

    A row without values has the missing one.
    """
    inside = torch.arange(bag.ids.shape[1], device=bag.ids.device) < bag.lengths.clamp_min(1)[:, None]
    return inside, torch.where(inside & (bag.lengths[:, None] > 0), bag.ids, 0)


def in_order(placed: PlacedVectors, projections: Mapping[str, Tensor]) -> Float[Tensor, "B F E"]:
    """The vectors in the order of the schema; the field at position p is first multiplied by `projections[str(p)]`.

    Fields that stand side by side are copied together: one field at a time is slow.
    """
    pieces: dict[int, Tensor] = {}
    for places, vectors in placed:
        runs = _runs(places, projections)
        for run, piece in zip(runs, vectors.split([len(run) for run in runs], 1), strict=True):
            matrix = projections.get(str(run[0]))
            pieces[run[0]] = piece if matrix is None else piece @ matrix
    whole = [pieces[start] for start in sorted(pieces)]
    return torch.cat(whole, 1) if len(whole) > 1 else whole[0]


def _runs(places: Sequence[int], alone: Collection[str]) -> list[list[int]]:
    """Rising positions cut wherever one is missing, and around those that stand alone."""
    runs: list[list[int]] = []
    for position in places:
        if runs and runs[-1][-1] == position - 1 and not {str(position), str(position - 1)} & set(alone):
            runs[-1].append(position)
        else:
            runs.append([position])
    return runs
