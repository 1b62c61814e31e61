"""Hard search: of a long history keep the events of the target's category (SIM: Pi et al., arXiv:2006.05639).

Claim: what a user did in the target's category says most of what all of it says, and costs a fraction (Sec. 3.2).

    kept_j = [category_j = category of the target],  of these the newest `most`

Nothing is looked up or attended before. A target whose category is missing or unknown finds nothing, and an event of an
unknown category is never found. Ids alone are compared and moved, padded as they come, so that a graph can hold it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Int
from torch import Tensor

from fullrank.data.batch import Bag, Impressions
from fullrank.data.impressions.fields import FieldInfo
from fullrank.data.impressions.vocabulary import FIRST
from fullrank.models.ranking.sequences import SequenceSpec, require_targets
from fullrank.models.ranking.sequences.parallel import Member, aligned, members


class SequenceReader:
    """What a model reads of a batch: parallel sequences aligned, and the events that the hard search keeps.

    Before anything is looked up, so that penalties and updates are of these events alone. Twice is as once.
    """

    def __init__(self, fields: Sequence[FieldInfo], spec: SequenceSpec, together: Sequence[Sequence[Member]]):
        require_targets("search", [name for group in spec.search for name in group], fields)
        self.searched: list[list[Member]] = [members(group, fields) for group in spec.search]
        self.together = [list(group) for group in together]
        self.most, self.uneven = spec.most, spec.uneven

    def __call__(self, batch: Impressions) -> Impressions:
        bags = list(batch.bags)
        for group in (*self.searched, *self.together):
            found = aligned([bags[one.bag] for one in group], [one.name for one in group], self.uneven)
            if group in self.searched:
                found = matching(found, batch.categorical[:, group[0].column], self.most)
            for one, bag in zip(group, found, strict=True):
                bags[one.bag] = bag
        return replace(batch, bags=tuple(bags))


def matching(bags: Sequence[Bag], target: Int[Tensor, "B"], most: int | None) -> list[Bag]:
    """The newest `most` events whose id in the first of some parallel bags is the target's, in every bag."""
    keys, length = bags[0].ids, bags[0].ids.shape[1]
    inside = torch.arange(length, device=keys.device) < bags[0].lengths[:, None]
    kept = inside & (keys == target[:, None]) & (target[:, None] >= FIRST)
    if most is not None:
        kept = kept & (kept.flip(1).long().cumsum(1).flip(1) <= most)  # counted from the newest
    lengths = kept.long().sum(1)
    place = torch.where(kept, kept.long().cumsum(1) - 1, length)  # what is not kept goes into one that is cut off
    wide = [bag.ids.new_zeros(target.shape[0], length + 1).scatter(1, place, bag.ids) for bag in bags]
    return [Bag(ids[:, :length], lengths.to(bags[0].lengths.dtype)) for ids in wide]


def matching_reference(bags: Sequence[Bag], target: Int[Tensor, "B"], most: int | None) -> list[list[list[int]]]:
    """The kept ids of each bag, row after row."""
    found: list[list[list[int]]] = [[] for _ in bags]
    for row, wanted in enumerate(target.tolist()):
        length = int(bags[0].lengths[row])
        places = [j for j in range(length) if wanted >= FIRST and int(bags[0].ids[row, j]) == wanted]
        places = places if most is None else places[-most:]
        for one, bag in zip(found, bags, strict=True):
            one.append([int(bag.ids[row, j]) for j in places])
    return found
