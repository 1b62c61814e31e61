"""Sequences that run in parallel, such as the items and the categories of the same events: value i is of event i."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from fullrank.core.errors import UserError
from fullrank.data.batch import Bag
from fullrank.data.impressions.fields import FieldInfo
from fullrank.data.impressions.vocabulary import MISSING


@dataclass(frozen=True)
class Member:
    """A sequence with a target."""

    name: str
    place: int
    """Among all fields, and `target` that of the field whose table it shares."""
    target: int
    bag: int
    """Among the bags of `Impressions`."""
    column: int
    """That of the target in `Impressions.categorical`."""


def members(names: Iterable[str], fields: Sequence[FieldInfo]) -> list[Member]:
    """Where these sequences and their targets stand; each has a target."""
    all_names = [field.name for field in fields]
    several = [field.name for field in fields if field.kind in ("bag", "sequence")]
    categorical = [field.name for field in fields if field.kind == "categorical"]
    found = []
    for name in names:
        place = all_names.index(name)
        target = fields[place].shares
        assert target is not None
        found.append(
            Member(name, place, all_names.index(target), several.index(name), categorical.index(target))
        )  # fmt: skip
    return found


def aligned(bags: Sequence[Bag], names: Sequence[str], uneven: Literal["error", "newest"] = "error") -> list[Bag]:
    """Parallel bags, equally wide and long (`SequenceSpec.uneven`). Raises `UserError` where it says so.

    A graph that is being exported has sizes without values: there they are of one letter, so they agree.
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
                "for every event (missing ones are left out of a sequence), or set uneven=newest",
                code="lengths-differ",
            )
    wide = min(bag.ids.shape[1] for bag in bags)  # padding alone can be wider
    return [Bag(bag.ids[:, :wide], bag.lengths) for bag in bags]


def _at_the_newest(bag: Bag, first: Bag) -> Bag:
    """As many events as `first` has, the newest beside the newest; what is not there is missing."""
    at = torch.arange(first.ids.shape[1], device=bag.ids.device) + (bag.lengths - first.lengths)[:, None]
    inside = (at >= 0) & (at < bag.lengths[:, None])
    ids = nn.functional.pad(bag.ids, (0, 1))  # a bag may have no column
    return Bag(torch.where(inside, ids.gather(1, torch.where(inside, at, 0)), MISSING), first.lengths)


def in_parallel(groups: Iterable[Iterable[int]]) -> list[list[int]]:
    """Groups that have a member in common, as one: what runs in parallel to what, in all."""
    found: list[set[int]] = []
    for group in map(set, groups):
        meets = [one for one in found if one & group]
        found = [one for one in found if not one & group] + [group.union(*meets)]
    return [sorted(one) for one in found]
