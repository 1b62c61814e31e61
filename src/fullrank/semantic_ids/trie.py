"""The trie of the tuples of codes that exist: which codes may follow which, level by level, without tables of pairs.

Nodes of a level are the distinct beginnings of tuples, in lexical order, so that the children of a node, and the tuples
below it, are one stretch of the next level's nodes, and of all tuples. A level of N nodes takes N codes and N + 1
places: a million items with four codes take some 40 MB, whatever the size of the codebooks.
"""

from __future__ import annotations

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
    tuples: Int[Tensor, "m"]
    """Below node j are the tuples tuples[j] .. tuples[j + 1] - 1."""


class Trie:
    """All levels, and what lies below each node. Node t of the last level is tuple t."""

    def __init__(self, tuples: Tuples):
        codes = tuples.tuples
        self.levels: list[TrieLevel] = []
        new = torch.zeros(len(codes), dtype=torch.bool)
        new[:1] = True
        before = torch.zeros(len(codes), dtype=torch.long)  # the node of the level before that each tuple lies below
        for level in range(codes.shape[1]):
            new = new | _changed(codes[:, level])
            first = new.nonzero()[:, 0]
            parents = before[first]
            nodes = len(self.levels[-1].codes) if self.levels else 1
            self.levels.append(
                TrieLevel(
                    codes[first, level].to(torch.int32),
                    parents.to(torch.int32),
                    _starts(parents, nodes),
                    torch.cat([first, first.new_tensor([len(codes)])]).to(torch.int32),
                )
            )
            before = new.long().cumsum(0) - 1
        self.items = tuples.items
        """Items, tuple after tuple."""
        self.offsets = tuples.offsets
        self.of_item = tuples.of_item

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def nbytes(self) -> int:
        """Bytes of all levels."""
        return sum(x.nbytes for level in self.levels for x in vars(level).values())

    def nodes_of(self, items: Int[Tensor, "p"], level: int) -> Int[Tensor, "p"]:
        """The node of a level that each item lies below."""
        return torch.searchsorted(self.levels[level].tuples, self.of_item[items].to(torch.int32), right=True) - 1

    def items_below(self, level: int) -> Int[Tensor, "N"]:
        """Items below each node of a level."""
        return self.offsets[self.levels[level].tuples.long()].diff()

    def kept_below(self, level: int, kept: Bool[Tensor, "V"]) -> Int[Tensor, "N"]:
        """How many of the items below each node are kept."""
        running = torch.nn.functional.pad(kept[self.items].long().cumsum(0), (1, 0))
        return running[self.offsets[self.levels[level].tuples.long()]].diff()


def _changed(column: Int[Tensor, "T"]) -> Bool[Tensor, "T"]:
    changed = torch.ones(len(column), dtype=torch.bool)
    changed[1:] = column[1:] != column[:-1]
    return changed


def _starts(parents: Int[Tensor, "N"], nodes: int) -> Int[Tensor, "n"]:
    """Where each parent's children begin, of rising parents; and their number at the end."""
    counts = torch.bincount(parents, minlength=nodes)
    return torch.nn.functional.pad(counts.cumsum(0), (1, 0)).to(torch.int32)
