"""Histories as a model reads them: in parallel, searched, and pooled by their targets.

Sequences such as the items and the categories of the same events run in parallel: value
i of each is of event i.

Hard search keeps of a long history the events of the target's category (SIM: Pi et al.,
arXiv:2006.05639). Claim: what a user did in the target's category says most of what all of it says,
and costs a fraction (Sec. 3.2).

    kept_j = [category_j = category of the target],  of these the newest `most`

The search comes before anything is looked up or attended. A target whose category is missing or
unknown finds nothing, and an event of an unknown category is never found. Ids alone are compared
and moved, padded as they come, so that a graph can hold it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from jaxtyping import Int
from torch import Tensor, nn

from fullrank.core.errors import UserError
from fullrank.data.batch import Bag, Impressions
from fullrank.data.impressions.vocabulary import FIRST, MISSING
from fullrank.models.ranking import Fields
from fullrank.models.ranking.fused import PlacedVectors, flattened, inside_of, places_of
from fullrank.models.ranking.sequences import SequenceSpec, TargetPooling, require_targets


@dataclass(frozen=True)
class Member:
    """A sequence and its target, by their positions in the schema and in a batch."""

    name: str
    position: int
    """Position of the sequence among all fields."""
    target: int | None
    """Position of the field whose table it shares; None where it has a table of its own."""
    bag: int
    """Number of the sequence among the bags of `Impressions`."""
    column: int | None
    """Column of the target in `Impressions.categorical`."""


def members(names: Iterable[str], fields: Fields) -> list[Member]:
    """The positions of these sequences and of their targets."""
    positions = {field.name: position for position, field in enumerate(fields)}
    bags, categorical = places_of(fields, "bag", "sequence"), places_of(fields, "categorical")
    listed = []
    for name in names:
        position = positions[name]
        shares = fields[position].shares
        target = None if shares is None else positions[shares]
        column = None if target is None else categorical.index(target)
        listed.append(Member(name, position, target, bags.index(position), column))
    return listed


def aligned(bags: Sequence[Bag], names: Sequence[str], uneven: Literal["error", "newest"] = "error") -> list[Bag]:
    """Parallel bags made equally wide and long, or `UserError`, as `uneven` says (`SequenceSpec.uneven`).

    While a graph is exported, sizes have no values to compare: parallel bags share one
    symbol there, so they agree.
    """
    if len(bags) == 1:
        return list(bags)
    if uneven == "newest":
        return [bags[0], *(_at_the_newest(bag, bags[0]) for bag in bags[1:])]
    if torch.compiler.is_exporting():
        return list(bags)
    for name, bag in zip(names[1:], bags[1:], strict=True):
        differ = bag.lengths != bags[0].lengths
        if bool(differ.any()):
            row = int(differ.nonzero()[0])
            raise UserError(
                f"{names[0]!r} has {int(bags[0].lengths[row])} events where {name!r} has {int(bag.lengths[row])} (row "
                f"{row} of the batch), and the two are read event by event: give them the same max_length, and a value "
                "for every event (missing ones are left out of a sequence without keep_missing), or set uneven=newest",
                code="lengths-differ",
                public=True,
            )
    wide = min(bag.ids.shape[1] for bag in bags)  # padding alone can be wider
    return [Bag(bag.ids[:, :wide], bag.lengths) for bag in bags]


def _at_the_newest(bag: Bag, first: Bag) -> Bag:
    """As many events as `first` has, the newest beside the newest; those that
    `bag` lacks are missing values."""
    at = torch.arange(first.ids.shape[1], device=bag.ids.device) + (bag.lengths - first.lengths)[:, None]
    inside = (at >= 0) & (at < bag.lengths[:, None])
    ids = nn.functional.pad(bag.ids, (0, 1))  # a bag may have no column
    return Bag(torch.where(inside, ids.gather(1, torch.where(inside, at, 0)), MISSING), first.lengths)


def in_parallel(groups: Iterable[Iterable[int]]) -> list[list[int]]:
    """Groups of what runs in parallel; those that have a member in common are joined."""
    joined: list[set[int]] = []
    for group in map(set, groups):
        meeting = [other for other in joined if other & group]
        joined = [other for other in joined if not other & group] + [group.union(*meeting)]
    return [sorted(group) for group in joined]


class SequenceReader:
    """Prepares the histories of a batch: parallel sequences aligned, and the events that the hard search keeps.

    It runs before anything is looked up, so that penalties and updates are of these events alone.
    To prepare a batch twice is as good as once.
    """

    def __init__(self, fields: Fields, spec: SequenceSpec, together: Sequence[Sequence[Member]]):
        require_targets("search", spec.search, fields)
        self.searched: list[list[Member]] = [members(group, fields) for group in spec.search]
        self.together = [list(group) for group in together]
        self.most, self.uneven = spec.most, spec.uneven

    def __call__(self, batch: Impressions) -> Impressions:
        bags = list(batch.bags)
        for group in (*self.searched, *self.together):
            read = aligned([bags[m.bag] for m in group], [m.name for m in group], self.uneven)
            if group in self.searched:
                column = group[0].column
                assert column is not None
                read = matching(read, batch.categorical[:, column], self.most)
            for member, bag in zip(group, read, strict=True):
                bags[member.bag] = bag
        return replace(batch, bags=tuple(bags))


def matching(bags: Sequence[Bag], target: Int[Tensor, "B"], most: int | None) -> list[Bag]:
    """The newest `most` events whose id in the first of some parallel bags is the target's, in every bag."""
    keys, length = bags[0].ids, bags[0].ids.shape[1]
    inside = torch.arange(length, device=keys.device) < bags[0].lengths[:, None]
    matches = inside & (keys == target[:, None]) & (target[:, None] >= FIRST)
    if most is not None:
        # the newest `most`: matches are counted from the end
        matches = matches & (matches.flip(1).long().cumsum(1).flip(1) <= most)
    lengths = matches.long().sum(1)
    # matching events close up at the front; all others are written to one more
    # column, which is cut off
    at = torch.where(matches, matches.long().cumsum(1) - 1, length)
    wide = [bag.ids.new_zeros(target.shape[0], length + 1).scatter(1, at, bag.ids) for bag in bags]
    return [Bag(ids[:, :length], lengths.to(bags[0].lengths.dtype)) for ids in wide]


def matching_reference(bags: Sequence[Bag], target: Int[Tensor, "B"], most: int | None) -> list[list[list[int]]]:
    """`matching` as lists: the ids of each bag that stay, row after row."""
    matches: list[list[list[int]]] = [[] for _ in bags]
    for row, wanted in enumerate(target.tolist()):
        length = int(bags[0].lengths[row])
        places = [j for j in range(length) if wanted >= FIRST and int(bags[0].ids[row, j]) == wanted]
        places = places if most is None else places[-most:]
        for rows, bag in zip(matches, bags, strict=True):
            rows.append([int(bag.ids[row, j]) for j in places])
    return matches


class AttendedGroup(nn.Module):
    """Sequences of the same events, pooled together by their targets.

    Widths are those of the tables: a projection to the common width is linear and comes behind the
    sum.
    """

    def __init__(self, group: Sequence[Member], widths: Sequence[int], pooling: TargetPooling):
        super().__init__()
        self.members, self.widths, self.pooling = list(group), list(widths), pooling

    def forward(
        self, batch: Impressions, fields: Mapping[int, Tensor], tables: Sequence[Any], *, padded: bool = False
    ) -> PlacedVectors:
        """A vector of each member, for a batch that a `SequenceReader` gave.

        `fields` are the vectors of the categorical fields by position, `tables` the `FusedTable` of
        each member. `padded` computes the reference, which a graph can hold.
        """
        bags = [batch.bags[member.bag] for member in self.members]

        def vectors(ids: Iterable[Tensor]) -> Tensor:
            each = zip(self.members, tables, ids, strict=True)
            return torch.cat([table.rows(member.name, rows) for member, table, rows in each], -1)

        targets = [
            batch.numeric.new_zeros(batch.numeric.shape[0], width) if m.target is None else fields[m.target]
            for m, width in zip(self.members, self.widths, strict=True)
        ]
        target = torch.cat(targets, 1)
        if padded:
            inside, ids = zip(*(inside_of(bag) for bag in bags), strict=True)
            out = self.pooling.padded(target, vectors(ids), inside[0])
        else:
            counts = bags[0].lengths.clamp_min(1)
            rows = torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts)
            out = self.pooling(target, vectors(flattened(bag)[0] for bag in bags), rows)
        parts = zip(self.members, out.split(self.widths, 1), strict=True)
        return [([member.position], part[:, None]) for member, part in parts]
