"""Beam search over the trie of existing tuples, for models that generate semantic ids code by code.

All users of a batch go down the trie together: a level costs one token a beam. A beam is a node of
the trie, so what is generated exists; its children are gathered from the trie, scored by log p of
their codes, and the `beams` best of all children of a user are kept. A child without an item that
the user may be shown is left out while searching, so lists stay full: where a level has more open
nodes than `beams`, that many are kept, and each has an item below it. A search for k items keeps k
beams at least.

Items of one tuple have one score; they stand in order of their ids, like equal scores everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fullrank.inference.code_search import Candidates
from fullrank.inference.exact import TopK
from fullrank.inference.filters import BatchFilter
from fullrank.models.sequential.items.semantic import SemanticItems
from fullrank.models.sequential.objectives.tasks.generate import GeneratedScorer
from fullrank.semantic_ids.reader import Trie, Tuples


class TrieBeam:
    """The `beams` best beginnings of tuples of each user, level by level; then their items."""

    def __init__(self, items: SemanticItems, *, beams: int):
        self.trie = trie_of(items).to(items.codes.device)
        self.beams, self.counts = beams, MaskCounts()

    @torch.inference_mode()
    def __call__(self, scorer: GeneratedScorer, k: int, filters: BatchFilter | None) -> TopK:
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
        opened = OpenNodes.of(self.trie, filters, users, self.counts)
        nodes = torch.zeros(users, 1, dtype=torch.long, device=device)
        sums, cache = scorer.start.new_zeros(users, 1, dtype=torch.float32), scorer.cache
        log_p = scorer.first()[:, None]
        for number, level in enumerate(self.trie.levels):
            if number:
                codes = self.trie.levels[number - 1].codes[nodes.clamp_min(0)].long()
                log_p, cache = scorer.after(codes, number - 1, cache)
            # [B, P m]: every child of every kept node
            first, children, valid = _stretches(level.children, nodes)
            scores = sums[..., None] + log_p.gather(2, level.codes[children].long())
            scores = opened.close(scores.masked_fill_(~valid, -torch.inf), nodes, first, number).flatten(1)
            sums, at = scores.topk(min(width, scores.shape[1]), dim=1)
            nodes = children.flatten(1).gather(1, at).masked_fill(sums == -torch.inf, -1)
            yield nodes, sums
            if 0 < number < len(self.trie.levels) - 1:
                cache = scorer.encoder.branch(cache, at // valid.shape[2])

    def _items(
        self, tuples: Int[Tensor, "B P"], sums: Float[Tensor, "B P"], k: int, filters: BatchFilter | None
    ) -> TopK:
        _, positions, filled = _stretches(self.trie.levels[-1].below, tuples)
        scores = sums[..., None].expand(positions.shape).masked_fill(~filled, -torch.inf).flatten(1)
        items, order = self.trie.items[positions].long().flatten(1).sort(1)
        return Candidates(items, scores.gather(1, order)).best(k, filters)


def trie_of(items: SemanticItems) -> Trie:
    """The trie of the tuples that a model's items have, on the CPU."""
    return Trie(Tuples(items.codes.cpu(), items.popularity.long().cpu().numpy()))


def _stretches(
    starts: Int[Tensor, "n"], nodes: Int[Tensor, "B P"]
) -> tuple[Int[Tensor, "B P"], Int[Tensor, "B P m"], Bool[Tensor, "B P m"]]:
    """The stretch of each node: where it begins, its positions, and a mask of those that it really has.

    m is the length of the longest.
    """
    first = starts[nodes.clamp_min(0)].long()
    count = (starts[nodes.clamp_min(0) + 1] - first).masked_fill(nodes < 0, 0)
    steps = torch.arange(max(int(count.max()), 1), device=nodes.device)
    valid = steps < count[..., None]
    return first, torch.where(valid, first[..., None] + steps, 0), valid


class MaskCounts:
    """`Trie.kept_before` of the masks of one batch, kept for the next.

    A service has few masks and many batches, and comparing a mask costs a fraction of counting it
    anew.
    """

    def __init__(self) -> None:
        self.known: tuple[tuple[Tensor, Tensor], ...] = ()

    def of(self, trie: Trie, refused: tuple[Bool[Tensor, "V"], ...]) -> tuple[Int[Tensor, "V1"], ...]:
        """The counts of what each mask leaves."""
        pairs = []
        for mask in refused:
            known = (count for earlier, count in self.known if torch.equal(earlier, mask))
            pairs.append((mask, next(known, None)))
        self.known = tuple((mask, trie.kept_before(~mask) if earlier is None else earlier) for mask, earlier in pairs)
        return tuple(count for _, count in self.known)


@dataclass(frozen=True)
class OpenNodes:
    """The nodes of the trie that have an item below them that a user may be shown.

    What many users share (masks) is counted item by item, whatever nodes are asked for. What is
    hidden from single users, or allowed to them alone, is a few items each: only the nodes above
    these are looked up among the children of the user's beams.
    """

    trie: Trie
    left: Int[Tensor, "G V1"] | None = None
    """Number of items before each place that the mask of each group leaves; None where there are no masks."""
    group: Int[Tensor, "B"] | None = None
    """The mask of each user."""
    rows: Int[Tensor, "p"] | None = None
    """User of each single item, rising."""
    places: Int[Tensor, "p"] | None = None
    """Place of each single item in the trie, rising for each user.

    Single items are those hidden from one user, or the only ones that the user may be shown
    (`only`); those that a mask refuses are left out.
    """
    only: bool = False
    """Whether the single items are the only ones that their users may be shown."""

    @staticmethod
    def of(trie: Trie, filters: BatchFilter | None, users: int, counts: MaskCounts) -> OpenNodes:
        """The filters of a batch of `users` rows, item by item once and for all levels."""
        if filters is None:
            return OpenNodes(trie)
        size = len(trie.items)
        group, refused = _groups(filters, users, size)
        pairs = filters.hidden if filters.allowed is None else filters.allowed
        rows, items = pairs.rows, pairs.items
        if filters.allowed is not None:  # of these, what nothing else refuses
            left = ~filters.hidden.has_pairs(rows, items, users)
        else:
            left = torch.ones_like(rows, dtype=torch.bool)
        if group is not None:
            left &= ~torch.stack(refused)[group[rows], items]
        keys = (rows * size + trie.place[items])[left].unique()
        counted = None if group is None else torch.stack(counts.of(trie, refused))
        return OpenNodes(trie, counted, group, keys // size, keys % size, filters.allowed is not None)

    def close(
        self, scores: Float[Tensor, "B P m"], nodes: Int[Tensor, "B P"], first: Int[Tensor, "B P"], level: int
    ) -> Float[Tensor, "B P m"]:
        """The scores of the children of some nodes, -inf where nothing is open; changed in place.

        `first` is the first child of each node.
        """
        if self.rows is None or self.places is None:
            return scores
        below = self.trie.levels[level].below
        user, node, number = self._nodes(level)
        if self.only:
            allowed = torch.full_like(scores, -torch.inf)
            at = self._places(user, node, nodes, first, level)
            allowed[at] = scores[at]
            return allowed
        if self.group is not None:
            ends = first[..., None] + torch.arange(scores.shape[2] + 1, device=scores.device)
            left = self._items_left(self.group[:, None, None], below[ends.clamp_max(len(below) - 1)]).diff()
            scores.masked_fill_(left == 0, -torch.inf)
        group = None if self.group is None else self.group[user]
        # Where as many hidden items lie below a node as the masks leave there, none of them may be
        # shown.
        left_below = self._items_left(group, below[node + 1]) - self._items_left(group, below[node])
        hidden = number == left_below
        scores[self._places(user[hidden], node[hidden], nodes, first, level)] = -torch.inf
        return scores

    def _items_left(self, group: Int[Tensor, "*#n"] | None, places: Int[Tensor, "*n"]) -> Int[Tensor, "*n"]:
        """Number of items before these places that a group's mask leaves."""
        return places if self.left is None or group is None else self.left[group, places.long()]

    def _nodes(self, level: int) -> tuple[Int[Tensor, "n"], Int[Tensor, "n"], Int[Tensor, "n"]]:
        """The nodes of the single items, each once a user: user, node, and how
        many of the items are below it."""
        assert self.rows is not None and self.places is not None
        size = self.trie.levels[level].size
        keys = self.rows * size + self.trie.nodes_of(self.places, level)  # rising, as rows and places are
        keys, number = keys.unique_consecutive(return_counts=True)
        return keys // size, keys % size, number

    def _places(
        self,
        user: Int[Tensor, "n"],
        node: Int[Tensor, "n"],
        nodes: Int[Tensor, "B P"],
        first: Int[Tensor, "B P"],
        level: int,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Positions of these nodes among the children of their users' beams; nodes without such a parent are left out.

        A beam is one number, user * size + node + 1 (an empty one is node -1): sorted, a binary
        search finds the beam of each node's parent.
        """
        parents = self.trie.levels[level].parents[node]
        size = len(self.trie.levels[level].children)  # parents, and one for the beams that are none
        users = torch.arange(len(nodes), device=nodes.device)
        keys, beams = (users[:, None] * size + nodes + 1).flatten().sort()
        wanted = user * size + parents + 1
        at = torch.searchsorted(keys, wanted).clamp_max(len(keys) - 1)
        has_parent = keys[at] == wanted
        user, node, beam = user[has_parent], node[has_parent], beams[at[has_parent]] % nodes.shape[1]
        return user, beam, node - first[user, beam]


def _groups(filters: BatchFilter, users: int, size: int) -> tuple[Tensor | None, tuple[Tensor, ...]]:
    """The masks of each user joined into one: its number for each user, and the joined masks."""
    if not filters.masks and filters.barred is None:
        return None, ()
    device = filters.hidden.rows.device
    barred = torch.zeros(size, dtype=torch.bool, device=device) if filters.barred is None else filters.barred
    has_mask = torch.zeros(users, max(len(filters.masks), 1), dtype=torch.bool, device=device)
    for number, (rows, _) in enumerate(filters.masks):
        has_mask[rows, number] = True
    kinds, group = has_mask.unique(dim=0, return_inverse=True)
    masks = []
    for kind in kinds:
        mask = barred.clone()
        for number in kind.nonzero()[:, 0].tolist():
            mask |= filters.masks[number][1]
        masks.append(mask)
    return group, tuple(masks)
