"""Approximate search among items made of semantic ids: a walk along a graph of similar items, or a beam of codes.

Both score some items only. What they find is put together as `Candidates`; a user for whom too few items were found
gets the rest from exact scores (`padded` counts these users).
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from functools import reduce

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from fullrank.inference.exact import of_length, select, top_k
from fullrank.inference.filters import BatchFilter
from fullrank.models.sequential.items.semantic import CodeScorer, SemanticItems
from fullrank.semantic_ids.reader import Tuples

ROWS = 256
"""Items whose neighbours in the graph are searched together."""


@dataclass(frozen=True)
class Candidates:
    """Item ids and scores per user, for searches that do not score every item.

    Items by rising id, each once; places without one hold the largest id of the row again, at score -inf.
    """

    items: Int[Tensor, "B m"]
    scores: Float[Tensor, "B m"]

    @staticmethod
    def of(scorer: CodeScorer, items: Int[Tensor, "B m"]) -> Candidates:
        """The scores of these items; an item that is there several times, or -1, counts once, or not at all."""
        items = items.sort(1).values
        scores = own_scores(scorer, items.clamp_min(0))
        again = F.pad(items[:, 1:] == items[:, :-1], (1, 0)) | (items < 0)
        return Candidates(items, scores.masked_fill(again, -torch.inf))

    def best(self, k: int, filters: BatchFilter | None) -> tuple[Float[Tensor, "B k"], Int[Tensor, "B k"]]:
        """The k best that filters let through, by score descending, then id ascending; empty places hold -1 / -inf."""
        scores = self.scores
        if filters is not None:
            scores = scores.masked_fill(filters.refuses(self.items.clamp_min(0)), -torch.inf)
        values, at = select(scores, min(k, scores.shape[1]))
        return of_length(k, values, self.items.gather(1, at))


class GraphSearch:
    """Search along a graph of items: only items near those that score well are ever scored (RPG, Sec. 3.4).

    Similarity of two items: mean over levels of (1 + cos(e_{c_k}, e_{c'_k})) / 2, with the trained vectors of their
    codes. Every item has edges to its `edges` most similar ones, itself among them. From `beams` items the search goes
    `steps` times to all neighbours of what it holds, scores these and keeps the best.

    Differs: the first items are the same for all users (every so-many-th of the catalogue), where RPG draws them for
    each. What filters refuse is walked through and left out of the list. A user for whom too few items were reached
    gets the exact list.
    """

    def __init__(self, items: SemanticItems, *, beams: int, edges: int, steps: int):
        self.steps, size = steps, items.size
        self.neighbours = nearest_items(items, min(edges, size))
        every = torch.linspace(0, size - 1, min(beams, size), dtype=torch.float64).round().long().unique()
        self.first, self.beams = every.to(self.neighbours.device), min(beams, size)
        self.padded = 0
        """Users so far who got exact lists."""

    @torch.inference_mode()
    def __call__(
        self, scorer: CodeScorer, k: int, filters: BatchFilter | None
    ) -> tuple[Float[Tensor, "B k"], Int[Tensor, "B k"]]:
        """The k best of the items reached."""
        users = scorer.levels.shape[1]
        held = self.first.expand(users, -1)
        for _ in range(self.steps):
            reached = Candidates.of(scorer, self.neighbours[held].flatten(1))
            _, at = select(reached.scores, min(self.beams, reached.scores.shape[1]))
            held = reached.items.gather(1, at)
        scores, ids = reached.best(k, filters)
        short = (ids[:, -1] < 0).nonzero()[:, 0]
        if len(short):
            self.padded += len(short)
            scores[short], ids[short] = exact_lists(scorer, short, k, filters)
        return scores, ids


class BeamSearch:
    """Search by a beam over levels: the best tuples of codes, level by level, then the items that have them.

    Levels are independent given the history, so the beam keeps `beams` best partial sums and adds one level after
    another. Most tuples of long codes belong to no item. Found items come first, in order of their scores; a user for
    whom too few were found gets the rest of the list from exact scores. Items of one tuple have one score: the more
    popular comes first, as in `Tuples` of `semantic_ids/reader.py`, up to the order of ids that all lists share.
    """

    def __init__(self, items: SemanticItems, *, beams: int):
        self.tuples, self.beams = Tuples(items.codes.cpu(), items.popularity.long().cpu().numpy()), beams
        self.largest = int((self.tuples.offsets[1:] - self.tuples.offsets[:-1]).max())
        self.padded = 0
        """Users so far whose lists were filled up from exact scores."""

    @torch.inference_mode()
    def __call__(
        self, scorer: CodeScorer, k: int, filters: BatchFilter | None
    ) -> tuple[Float[Tensor, "B k"], Int[Tensor, "B k"]]:
        codes = product_beam(scorer.levels.split(scorer.sizes), self.beams)
        scores, ids = Candidates.of(scorer, self._items(codes)).best(k, filters)
        scores, ids, padded = fill_from_exact(scorer, scores, ids, filters)
        self.padded += padded
        return scores, ids

    def _items(self, codes: Int[Tensor, "B n K"]) -> Int[Tensor, "B m"]:
        """The items of these tuples; -1 where there are none."""
        flat = self.tuples.find(codes.flatten(0, 1).cpu())
        first, steps = self.tuples.offsets[flat.clamp_min(0)], torch.arange(self.largest)
        place = first[:, None] + steps
        there = (flat[:, None] >= 0) & (place < self.tuples.offsets[flat.clamp_min(0) + 1][:, None])
        found = self.tuples.items[place.clamp_max(len(self.tuples.items) - 1)].masked_fill(~there, -1)
        return found.view(len(codes), -1).to(codes.device)


def nearest_items(items: SemanticItems, edges: int) -> Int[Tensor, "V E"]:
    """The most similar items of each, best first; an item itself is the first of them, or shares its codes."""
    table = F.normalize(items.table.detach().float(), dim=-1, eps=1e-12)
    similarity = [(1 + level @ level.T) / 2 / len(items.sizes) for level in table.split(items.sizes)]
    rows, found = items.codes + items.offsets, []
    for low in range(0, items.size, ROWS):
        own = items.codes[low : low + ROWS]
        levels = torch.cat([level[own[:, k]] for k, level in enumerate(similarity)], 1).T.contiguous()
        found.append(top_k(CodeScorer(levels, items.sizes, rows), edges)[1])
    return torch.cat(found)


def product_beam(levels: tuple[Float[Tensor, "_ B"], ...], beams: int) -> Int[Tensor, "B n K"]:
    """The n <= `beams` tuples with the largest sums, kept level by level."""
    sums, codes = levels[0].new_zeros(levels[0].shape[1], 1), levels[0].new_zeros(levels[0].shape[1], 1, 0).long()
    for level in levels:
        size = len(level)
        every = (sums[:, :, None] + level.T[:, None]).flatten(1)
        sums, at = every.topk(min(beams, every.shape[1]), dim=1)
        before = codes.gather(1, (at // size)[:, :, None].expand(-1, -1, codes.shape[2]))
        codes = F.pad(before, (0, 1))
        codes[:, :, -1] = at % size
    return codes


def fill_from_exact(
    scorer: CodeScorer, scores: Float[Tensor, "B k"], ids: Int[Tensor, "B k"], filters: BatchFilter | None
) -> tuple[Float[Tensor, "B k"], Int[Tensor, "B k"], int]:
    """Lists with empty places (-1) filled from exact scores, behind what was found; and how many users that were.

    What was found stays in front, whatever it scores: the rest is what the search did not reach.
    """
    short = (ids[:, -1] < 0).nonzero()[:, 0]
    if not len(short):
        return scores, ids, 0
    k = ids.shape[1]
    exact = exact_lists(scorer, short, 2 * k, filters)  # at most k of them were found already, so k others are left
    found = (exact[1][:, :, None] == ids[short][:, None]).any(2)
    rest = exact[0].masked_fill(found, -torch.inf), exact[1].masked_fill(found, -1)
    whole = [torch.cat([own[short], other], 1) for own, other in zip((scores, ids), rest, strict=True)]
    order = (whole[1] < 0).sort(dim=1, stable=True).indices[:, :k]
    scores[short], ids[short] = whole[0].gather(1, order), whole[1].gather(1, order)
    return scores, ids, len(short)


def own_scores(scorer: CodeScorer, items: Int[Tensor, "B m"]) -> Float[Tensor, "B m"]:
    """Each user's scores of their own items, level by level, in the order of an exact scorer's sums."""
    users = torch.arange(len(items), device=items.device)[:, None]
    flat = scorer.levels.flatten()
    return reduce(operator.add, (flat[level[items] * scorer.levels.shape[1] + users] for level in scorer.rows.T))


def exact_lists(
    scorer: CodeScorer, users: Int[Tensor, "b"], k: int, filters: BatchFilter | None
) -> tuple[Float[Tensor, "b k"], Int[Tensor, "b k"]]:
    """The exact lists of some users of a batch, by scoring every item for them."""
    some = CodeScorer(scorer.levels[:, users].contiguous(), scorer.sizes, scorer.rows)
    return top_k(some, k, filters=None if filters is None else filters.only(users, scorer.levels.shape[1]))
