"""The trie of the tuples of codes that exist: which codes may follow which, level by level, without tables of pairs.

Nodes of a level are the distinct beginnings of tuples, in lexical order, so that the children of a node, and the items
below it, are one stretch of the next level's nodes, and of all items. A level of N nodes takes four numbers for each: a
million items with four codes take some 40 MB, whatever the size of the codebooks.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from fullrank.semantic_ids.reader import Tuples


@dataclass(frozen=True)
class TrieLevel:
    """The nodes of one level."""

    codes: Int[Tensor, "N"]
    """The last code of each node's beginning."""
    parents: Int[Tensor, "N"]
    """Its node of the level before; 0, the root, on the first level."""
    children: Int[Tensor, "n"]
    """Node j of the level before has the nodes children[j] .. children[j + 1] - 1 of this one."""
    below: Int[Tensor, "m"]
    """Below node j are the items at the places below[j] .. below[j + 1] - 1 of `Trie.items`."""

    @property
    def size(self) -> int:
        return len(self.codes)


class Trie:
    """All levels, and what lies below each node. Node t of the last level is tuple t."""

    def __init__(self, tuples: Tuples):
        codes, offsets = tuples.tuples, tuples.offsets
        self.levels: list[TrieLevel] = []
        new = torch.zeros(len(codes), dtype=torch.bool)
        new[:1] = True
        before = torch.zeros(len(codes), dtype=torch.long)  # the node of the level before that each tuple lies below
        for level in range(codes.shape[1]):
            new[1:] |= codes[1:, level] != codes[:-1, level]
            first = new.nonzero()[:, 0]
            parents = before[first]
            nodes = self.levels[-1].size if self.levels else 1
            self.levels.append(
                TrieLevel(
                    codes[first, level].to(torch.int32),
                    parents.to(torch.int32),
                    _starts(parents, nodes),
                    torch.cat([offsets[first], offsets[-1:]]).to(torch.int32),
                )
            )
            before = new.long().cumsum(0) - 1
        self.items = tuples.items.to(torch.int32)
        """Items, tuple after tuple."""
        self.place = torch.empty_like(self.items)
        """Where each item stands among them."""
        self.place[tuples.items] = torch.arange(len(self.items), dtype=torch.int32)

    def __len__(self) -> int:
        return self.levels[-1].size

    @property
    def nbytes(self) -> int:
        """Bytes of all of it."""
        of_levels = [x for level in self.levels for x in vars(level).values()]
        return sum(x.nbytes for x in (self.items, self.place, *of_levels))

    def to(self, device: torch.device) -> Trie:
        """The same on a device."""
        moved = copy.copy(self)
        moved.items, moved.place = self.items.to(device), self.place.to(device)
        moved.levels = [TrieLevel(*(x.to(device) for x in vars(level).values())) for level in self.levels]
        return moved

    def nodes_of(self, places: Int[Tensor, "p"], level: int) -> Int[Tensor, "p"]:
        """The node of a level that the item at each place lies below."""
        return torch.searchsorted(self.levels[level].below, places.to(torch.int32), right=True) - 1

    def kept_before(self, kept: Bool[Tensor, "V"]) -> Int[Tensor, "V1"]:
        """How many of the items before each place, and of all, are kept: below node j x[below[j + 1]] - x[below[j]]."""
        return torch.nn.functional.pad(kept[self.items.long()].cumsum(0, dtype=torch.int32), (1, 0))


def _starts(parents: Int[Tensor, "N"], nodes: int) -> Int[Tensor, "n"]:
    """Where each parent's children begin, of rising parents; and their number at the end."""
    counts = torch.bincount(parents, minlength=nodes)
    return torch.nn.functional.pad(counts.cumsum(0), (1, 0)).to(torch.int32)
