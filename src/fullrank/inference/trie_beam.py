"""Beam search over the trie of existing tuples, for models that generate semantic ids code by code.

All users of a batch go down the trie together: a level costs one token a beam. A beam is a node of the trie, so what is
generated exists; its children are gathered from the trie, scored by log p of their codes, and the `beams` best of all
children of a user are kept. A child without an item that the user may be shown is left out while searching, so lists
stay full: where a level has more open nodes than `beams`, that many are kept, and each has an item below it. A search
for k items keeps k beams at least.

Items of one tuple have one score; they stand in order of their ids, like equal scores everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fullrank.inference.exact import select
from fullrank.inference.filters import BatchFilter
from fullrank.models.sequential.codes import GeneratedScorer
from fullrank.models.sequential.items.semantic import SemanticItems
from fullrank.semantic_ids.reader import Tuples
from fullrank.semantic_ids.trie import Trie


class TrieBeam:
    """The `beams` best beginnings of tuples of each user, level by level; then their items."""

    def __init__(self, items: SemanticItems, *, beams: int):
        self.trie = Trie(Tuples(items.codes.cpu(), items.popularity.long().cpu().numpy()))
        self.beams = beams
        self.largest = int(self.trie.offsets.diff().max())

    @torch.inference_mode()
    def __call__(
        self, scorer: GeneratedScorer, k: int, filters: BatchFilter | None
    ) -> tuple[Float[Tensor, "B k"], Int[Tensor, "B k"]]:
        """The k best items of the tuples that the beam ends with."""
        *_, (nodes, sums) = self.walk(scorer, max(self.beams, k), filters)
        return self._items(nodes, sums, k, filters)

    def walk(
        self, scorer: GeneratedScorer, width: int, filters: BatchFilter | None
    ) -> Iterator[tuple[Int[Tensor, "B P"], Float[Tensor, "B P"]]]:
        """The `width` best beginnings of each user after each level, best first: nodes of the trie and their log p.

        Empty places hold -1 and -inf. Call it in inference mode.
        """
        users, device = len(scorer.start), scorer.start.device
        opened = OpenNodes.of(self.trie, filters, users)
        nodes = torch.zeros(users, 1, dtype=torch.long, device=device)
        sums, cache = scorer.start.new_zeros(users, 1, dtype=torch.float32), scorer.cache
        log_p = scorer.first()[:, None]
        for level in range(len(self.trie.levels)):
            if level:
                codes = self.trie.levels[level - 1].codes.to(device)[nodes.clamp_min(0)].long()
                log_p, cache = scorer.after(codes, level - 1, cache)
            children, scores = self._children(nodes, sums, log_p, level, opened)
            sums, at = scores.topk(min(width, scores.shape[1]), dim=1)
            nodes = children.gather(1, at).masked_fill(sums == -torch.inf, -1)
            yield nodes, sums
            if 0 < level < len(self.trie.levels) - 1:
                cache = scorer.encoder.branch(cache, at // (scores.shape[1] // log_p.shape[1]))

    def _children(
        self, nodes: Int[Tensor, "B P"], sums: Float[Tensor, "B P"], log_p: Tensor, level: int, opened: OpenNodes
    ) -> tuple[Int[Tensor, "B m"], Float[Tensor, "B m"]]:
        """The children of all beams and their scores; places without an open child are -inf."""
        this = self.trie.levels[level]
        at, device = nodes.clamp_min(0), nodes.device
        first = this.children.to(device)[at].long()
        count = this.children.to(device)[at + 1].long() - first
        count = count.masked_fill(nodes < 0, 0)
        places = torch.arange(max(int(count.max()), 1), device=device)
        there = places < count[..., None]
        children = torch.where(there, first[..., None] + places, 0)
        scores = sums[..., None] + log_p.gather(2, this.codes.to(device)[children].long())
        scores = scores.masked_fill(~there, -torch.inf)
        return children.flatten(1), opened.close(scores, nodes, first, level).flatten(1)

    def _items(
        self, tuples: Int[Tensor, "B P"], sums: Float[Tensor, "B P"], k: int, filters: BatchFilter | None
    ) -> tuple[Float[Tensor, "B k"], Int[Tensor, "B k"]]:
        offsets, at = self.trie.offsets.to(tuples.device), tuples.clamp_min(0)
        place = offsets[at][..., None] + torch.arange(self.largest, device=tuples.device)
        there = (tuples >= 0)[..., None] & (place < offsets[at + 1][..., None])
        items = self.trie.items.to(tuples.device)[place.clamp_max(len(self.trie.items) - 1)]
        scores = sums[..., None].expand(items.shape).masked_fill(~there, -torch.inf).flatten(1)
        items, order = items.flatten(1).sort(1)
        scores = scores.gather(1, order)
        if filters is not None:
            scores = scores.masked_fill(filters.refuses(items), -torch.inf)
        values, found = select(scores, min(k, scores.shape[1]))  # of equal scores the smaller id: items rise
        ids = items.gather(1, found).masked_fill(values == -torch.inf, -1)
        missing = k - values.shape[1]
        return F.pad(values, (0, missing), value=-torch.inf), F.pad(ids, (0, missing), value=-1)


@dataclass(frozen=True)
class OpenNodes:
    """Which nodes have an item below them that a user may be shown.

    What many users share (masks) is looked up by node; what is hidden from single users, or allowed to them alone, are
    a few items each: their nodes, and the places of these among the children of the user's beams.
    """

    trie: Trie
    refused: tuple[Bool[Tensor, "V"], ...] = ()
    """Masks of refused items, each for the users of one group."""
    group: Int[Tensor, "B"] | None = None
    """The mask of each user; None where there are no masks."""
    rows: Int[Tensor, "p"] | None = None
    """Users of single items ..."""
    items: Int[Tensor, "p"] | None = None
    """... that are hidden from them, or the only ones that they may be shown, without what a mask refuses."""
    only: bool = False
    """Whether single items are the only ones allowed."""

    @staticmethod
    def of(trie: Trie, filters: BatchFilter | None, users: int) -> OpenNodes:
        """The filters of a batch of `users` rows, item by item once and for all levels."""
        if filters is None:
            return OpenNodes(trie)
        group, refused = _groups(filters, users, len(trie.items))
        pairs = filters.hidden if filters.allowed is None else filters.allowed
        rows, items = pairs.rows, pairs.items
        if filters.allowed is not None:  # of these, what nothing else refuses
            kept = ~filters.hidden.has_pairs(rows, items, users)
        else:
            kept = torch.ones_like(rows, dtype=torch.bool)
        if group is not None:
            kept &= ~torch.stack(refused)[group[rows], items]
        keys = (rows * len(trie.items) + items)[kept].unique()
        rows, items = keys // len(trie.items), keys % len(trie.items)
        return OpenNodes(trie, refused, group, rows, items, filters.allowed is not None)

    def close(
        self, scores: Float[Tensor, "B P m"], nodes: Int[Tensor, "B P"], first: Int[Tensor, "B P"], level: int
    ) -> Float[Tensor, "B P m"]:
        """The scores of the children of some nodes (the first child of each is `first`), -inf where nothing is open."""
        if self.rows is None or self.items is None:
            return scores
        own, number = self._nodes(level)
        if self.only:
            kept = torch.full_like(scores, -torch.inf)
            at = self._places(own, nodes, first, level)
            kept[at] = scores[at]
            return kept
        if self.group is None:
            below = self.trie.items_below(level).to(scores.device)[own[1]]
        else:
            kept_below = torch.stack([self.trie.kept_below(level, ~mask) for mask in self.refused])
            last = torch.arange(scores.shape[2], device=scores.device)
            children = (first[..., None] + last).clamp_max(kept_below.shape[1] - 1)
            scores = scores.masked_fill(kept_below[self.group[:, None, None], children] == 0, -torch.inf)
            below = kept_below[self.group[own[0]], own[1]]
        whole = number == below  # all that is below is hidden
        at = self._places((own[0][whole], own[1][whole]), nodes, first, level)
        scores = scores.clone()
        scores[at] = -torch.inf
        return scores

    def _nodes(self, level: int) -> tuple[tuple[Tensor, Tensor], Tensor]:
        """The nodes of the single items, each once a user, as (user, node); and how many of the items each has."""
        assert self.rows is not None and self.items is not None
        size = len(self.trie.levels[level].codes)
        keys, number = (self.rows * size + self.trie.nodes_of(self.items, level)).unique(return_counts=True)
        return (keys // size, keys % size), number

    def _places(
        self, own: tuple[Tensor, Tensor], nodes: Int[Tensor, "B P"], first: Int[Tensor, "B P"], level: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Where these (user, node) stand among the children of the users' beams, without those that are none."""
        rows, node = own
        parents = self.trie.levels[level].parents.to(nodes.device)[node].long()
        same = nodes[rows] == parents[:, None]
        there = same.any(1)
        rows, node, beam = rows[there], node[there], same[there].long().argmax(1)
        return rows, beam, node - first[rows, beam]


def _groups(filters: BatchFilter, users: int, size: int) -> tuple[Tensor | None, tuple[Tensor, ...]]:
    """The mask that each user's masks make together: its number per user, and the masks."""
    if not filters.masks and filters.barred is None:
        return None, ()
    barred = torch.zeros(size, dtype=torch.bool) if filters.barred is None else filters.barred
    has = torch.zeros(users, max(len(filters.masks), 1), dtype=torch.bool, device=barred.device)
    for number, (rows, _) in enumerate(filters.masks):
        has[rows, number] = True
    kinds, group = has.unique(dim=0, return_inverse=True)
    made = []
    for kind in kinds:
        mask = barred.clone()
        for number in kind.nonzero()[:, 0].tolist():
            mask |= filters.masks[number][1]
        made.append(mask)
    return group, tuple(made)
