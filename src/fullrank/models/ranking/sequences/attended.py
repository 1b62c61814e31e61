"""A group of sequences as the embedding reads it: tables in, one vector for each sequence out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fullrank.data.batch import Impressions
from fullrank.models.ranking.fused import Found, flattened, inside_of
from fullrank.models.ranking.sequences import TargetPooling
from fullrank.models.ranking.sequences.parallel import Member


class AttendedGroup(nn.Module):
    """Sequences of the same events, pooled together by their targets.

    Widths are those of the tables: a projection to the common width is linear and comes behind the sum.
    """

    def __init__(self, group: Sequence[Member], widths: Sequence[int], pooling: TargetPooling):
        super().__init__()
        self.members, self.widths, self.pooling = list(group), list(widths), pooling

    def forward(
        self, batch: Impressions, fields: Mapping[int, Tensor], tables: Sequence[Any], *, padded: bool = False
    ) -> Found:
        """Of a batch that a `SequenceReader` gave.

        `fields` are the vectors of the categorical fields by place, `tables` the `FusedTable` of each member.

        `padded` computes the reference, which a graph can hold.
        """
        bags = [batch.bags[one.bag] for one in self.members]
        pairs = list(zip(self.members, tables, strict=True))
        target = torch.cat([fields[one.target] for one in self.members], 1)
        if padded:
            inside, ids = zip(*(inside_of(bag) for bag in bags), strict=True)
            events = torch.cat([table.rows(one.name, at) for (one, table), at in zip(pairs, ids, strict=True)], -1)
            out = self.pooling.padded(target, events, inside[0])
        else:
            packed = [flattened(bag)[0] for bag in bags]
            events = torch.cat([table.rows(one.name, at) for (one, table), at in zip(pairs, packed, strict=True)], -1)
            counts = bags[0].lengths.clamp_min(1)
            rows = torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts)
            out = self.pooling(target, events, rows)
        found: Found = []
        for one, part in zip(self.members, out.split(self.widths, 1), strict=True):
            found.append(([one.place], part[:, None]))
        return found
