"""Search among items made of semantic ids: a graph of similar items, a beam of codes, or dynamic pruning by codes.

Graph and beam are approximate and score some items only. What they find is put together as
`Candidates`; a user for whom too few items were found gets the rest of the list from exact scores
(`padded` counts these users).

Pruning (RecJPQPrune, Petrov et al., arXiv:2505.00560) gives exact lists without scoring every item.
An item's score is a sum of one score from each level. Codes are taken a few at a time, always from
the level whose best code not yet taken is largest, and their items are scored. No item that is left
can score more than the sum of the levels' best codes not yet taken: once that is below the k-th
score found, the list is complete.

The sums run in the order of an exact answer's, and rounding keeps order, so the bound holds for the
rounded scores too. A user for whom more scores were taken than there are items gets the list by
scoring them all (`scanned` counts these): many levels of like scores leave a bound that nothing
reaches. Users go side by side, one step of all at a time.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from functools import reduce

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fullrank.inference.exact import TopK, of_length, select, top_k
from fullrank.inference.filters import BatchFilter
from fullrank.models.sequential.items.semantic import CodeScorer, SemanticItems
from fullrank.semantic_ids.reader import Tuples

ROWS = 256
"""Items whose neighbours in the graph are searched together."""


@dataclass(frozen=True)
class Candidates:
    """Item ids and scores per user, for searches that do not score every item.

    Items by rising id, each once; places without one hold any item of the catalogue again, at score
    -inf.
    """

    items: Int[Tensor, "B m"]
    scores: Float[Tensor, "B m"]

    @staticmethod
    def of(scorer: CodeScorer, items: Int[Tensor, "B m"]) -> Candidates:
        """The scores of these items; an item that occurs several times counts once, and -1 not at all."""
        items = items.sort(1).values
        scores = own_scores(scorer, items.clamp_min(0))
        again = F.pad(items[:, 1:] == items[:, :-1], (1, 0)) | (items < 0)
        return Candidates(items, scores.masked_fill(again, -torch.inf))

    def best(self, k: int, filters: BatchFilter | None) -> TopK:
        """The k best that filters let through, by score descending, then id ascending;
        empty places hold -1 / -inf."""
        scores = self.scores
        if filters is not None:
            scores = scores.masked_fill(filters.refuses(self.items.clamp_min(0)), -torch.inf)
        values, at = select(scores, min(k, scores.shape[1]))
        return of_length(k, values, self.items.gather(1, at))


class GraphSearch:
    """Search along a graph of items: only items near those that score well are ever scored (RPG, Sec. 3.4).

    Similarity of two items: mean over levels of (1 + cos(e_{c_k}, e_{c'_k})) / 2, with the trained
    vectors of their codes. Every item has edges to its `edges` most similar ones, itself among
    them. From `beams` items the search goes `steps` times to all neighbours of what it holds,
    scores these and keeps the best.

    Differs: the first items are the same for all users (every so-many-th of the catalogue), where
    RPG draws them for each. What filters refuse is walked through and left out of the list. A user
    for whom too few items were reached gets the exact list.
    """

    def __init__(self, items: SemanticItems, *, beams: int, edges: int, steps: int):
        self.steps, size = steps, items.size
        self.neighbours = nearest_items(items, min(edges, size))
        spread = torch.linspace(0, size - 1, min(beams, size), dtype=torch.float64).round().long().unique()
        self.first, self.beams = spread.to(self.neighbours.device), min(beams, size)
        self.padded = 0
        """Users so far who got exact lists."""

    @torch.inference_mode()
    def __call__(self, scorer: CodeScorer, k: int, filters: BatchFilter | None) -> TopK:
        """The k best of the items reached."""
        users = scorer.levels.shape[1]
        beam = self.first.expand(users, -1)
        for _ in range(self.steps):
            reached = Candidates.of(scorer, self.neighbours[beam].flatten(1))
            _, at = select(reached.scores, min(self.beams, reached.scores.shape[1]))
            beam = reached.items.gather(1, at)
        scores, ids = reached.best(k, filters)
        short = (ids[:, -1] < 0).nonzero()[:, 0]
        if len(short):
            self.padded += len(short)
            scores[short], ids[short] = exact_lists(scorer, short, k, filters)
        return scores, ids


class BeamSearch:
    """Search by a beam over levels: the best tuples of codes, level by level, then the items that have them.

    Levels are independent given the history, so the beam keeps `beams` best partial sums and adds
    one level after another. Most tuples of long codes belong to no item. Found items come first, in
    order of their scores; a user for whom too few were found gets the rest of the list from exact
    scores. Items of one tuple have one score: the more popular comes first, as in `Tuples` of
    `semantic_ids/reader.py`, up to the order of ids that all lists share.
    """

    def __init__(self, items: SemanticItems, *, beams: int):
        self.tuples, self.beams = Tuples(items.codes.cpu(), items.popularity.long().cpu().numpy()), beams
        self.largest = int((self.tuples.offsets[1:] - self.tuples.offsets[:-1]).max())
        self.padded = 0
        """Users so far whose lists were filled up from exact scores."""

    @torch.inference_mode()
    def __call__(self, scorer: CodeScorer, k: int, filters: BatchFilter | None) -> TopK:
        codes = product_beam(scorer.levels.split(scorer.sizes), self.beams)
        scores, ids = Candidates.of(scorer, self._items(codes)).best(k, filters)
        scores, ids, padded = fill_from_exact(scorer, scores, ids, filters)
        self.padded += padded
        return scores, ids

    def _items(self, codes: Int[Tensor, "B n K"]) -> Int[Tensor, "B m"]:
        """The items of these tuples, each a stretch of `tuples.items`; -1 where there are none."""
        flat = self.tuples.find(codes.flatten(0, 1).cpu())
        first, steps = self.tuples.offsets[flat.clamp_min(0)], torch.arange(self.largest)
        positions = first[:, None] + steps
        filled = (flat[:, None] >= 0) & (positions < self.tuples.offsets[flat.clamp_min(0) + 1][:, None])
        ids = self.tuples.items[positions.clamp_max(len(self.tuples.items) - 1)].masked_fill(~filled, -1)
        return ids.view(len(codes), -1).to(codes.device)


def nearest_items(items: SemanticItems, edges: int) -> Int[Tensor, "V E"]:
    """The most similar items of each, best first; an item itself is the first of them, or shares its codes."""
    table = F.normalize(items.table.detach().float(), dim=-1, eps=1e-12)
    similarity = [(1 + level @ level.T) / 2 / len(items.sizes) for level in table.split(items.sizes)]
    rows, neighbours = items.codes + items.offsets, []
    for low in range(0, items.size, ROWS):
        codes = items.codes[low : low + ROWS]
        levels = torch.cat([level[codes[:, k]] for k, level in enumerate(similarity)], 1).T.contiguous()
        neighbours.append(top_k(CodeScorer(levels, items.sizes, rows), edges)[1])
    return torch.cat(neighbours)


def product_beam(levels: tuple[Float[Tensor, "_ B"], ...], beams: int) -> Int[Tensor, "B n K"]:
    """The n <= `beams` tuples with the largest sums, kept level by level."""
    sums, codes = levels[0].new_zeros(levels[0].shape[1], 1), levels[0].new_zeros(levels[0].shape[1], 1, 0).long()
    for level in levels:
        size = len(level)
        # [B, n * size] every kept tuple with every code of this level behind it
        extended = (sums[:, :, None] + level.T[:, None]).flatten(1)
        sums, at = extended.topk(min(beams, extended.shape[1]), dim=1)
        before = codes.gather(1, (at // size)[:, :, None].expand(-1, -1, codes.shape[2]))
        codes = F.pad(before, (0, 1))
        codes[:, :, -1] = at % size
    return codes


def fill_from_exact(
    scorer: CodeScorer, scores: Float[Tensor, "B k"], ids: Int[Tensor, "B k"], filters: BatchFilter | None
) -> tuple[Float[Tensor, "B k"], Int[Tensor, "B k"], int]:
    """Lists with empty places (-1) filled from exact scores, behind what was found; and how many users needed that.

    What was found stays in front, whatever it scores: the rest is what the search did not reach.
    """
    short = (ids[:, -1] < 0).nonzero()[:, 0]
    if not len(short):
        return scores, ids, 0
    k = ids.shape[1]
    exact = exact_lists(scorer, short, 2 * k, filters)  # at most k are in the list already, so k others are left
    repeated = (exact[1][:, :, None] == ids[short][:, None]).any(2)
    rest = exact[0].masked_fill(repeated, -torch.inf), exact[1].masked_fill(repeated, -1)
    whole = [torch.cat([searched[short], other], 1) for searched, other in zip((scores, ids), rest, strict=True)]
    order = (whole[1] < 0).sort(dim=1, stable=True).indices[:, :k]
    scores[short], ids[short] = whole[0].gather(1, order), whole[1].gather(1, order)
    return scores, ids, len(short)


def own_scores(scorer: CodeScorer, items: Int[Tensor, "B m"]) -> Float[Tensor, "B m"]:
    """The scores of each row's own items, level by level, in the order of an exact scorer's sums."""
    users = torch.arange(len(items), device=items.device)[:, None]
    flat = scorer.levels.flatten()
    return reduce(operator.add, (flat[level[items] * scorer.levels.shape[1] + users] for level in scorer.rows.T))


def exact_lists(scorer: CodeScorer, users: Int[Tensor, "B"], k: int, filters: BatchFilter | None) -> TopK:
    """The exact lists of these users of a batch, by scoring every item for them."""
    chosen = CodeScorer(scorer.levels[:, users].contiguous(), scorer.sizes, scorer.rows)
    return top_k(chosen, k, filters=None if filters is None else filters.only(users, scorer.levels.shape[1]))


class PrunedSearch:
    """The items of every code, and the search that stops as soon as it may."""

    def __init__(self, items: SemanticItems, *, codes: int):
        flat = (items.codes + items.offsets).flatten()
        self.items = flat.argsort(stable=True) // len(items.sizes)
        self.counts = torch.bincount(flat, minlength=sum(items.sizes))
        self.first = self.counts.cumsum(0) - self.counts
        self.codes = codes
        self.scored = 0
        """Scores taken so far, a list that is scored whole included; users times items is what `exact` takes."""
        self.scanned = 0
        """Users so far for whom every item was scored."""

    @torch.inference_mode()
    def __call__(self, scorer: CodeScorer, k: int, filters: BatchFilter | None) -> TopK:
        if bool(scorer.levels.isnan().any()):
            return top_k(scorer, k, filters=filters)  # which refuses them
        users = scorer.levels.shape[1]
        scores = scorer.levels.new_full((users, k), -torch.inf)
        ids = torch.full((users, k), -1, device=scores.device)
        search = _ActiveUsers.of(scorer, self.codes)
        active, scored = torch.arange(users, device=ids.device), torch.zeros(users, device=ids.device)
        while len(active):
            bound = search.bound()
            # Not `>`: an item at the bound ties with the k-th, and the smaller id has to come
            # first.
            unfinished = (bound >= scores[active][:, -1]) & (bound > -torch.inf)
            active, search = active[unfinished], search.only(unfinished)
            costly = scored[active] >= scorer.size
            if bool(costly.any()):
                scores[active[costly]], ids[active[costly]] = self._scan(scorer, active[costly], k, filters)
                active, search = active[~costly], search.only(~costly)
            if not len(active):
                break
            opened = self._items_of(search.take())
            scored[active] += (opened >= 0).sum(1)
            self.scored += int((opened >= 0).sum())
            candidates = Candidates.of(search.scorer, torch.cat([ids[active], opened], 1))
            scores[active], ids[active] = candidates.best(k, None if filters is None else filters.only(active, users))
        return scores, ids

    def _scan(self, scorer: CodeScorer, users: Int[Tensor, "B"], k: int, filters: BatchFilter | None) -> TopK:
        self.scanned += len(users)
        self.scored += len(users) * scorer.size
        return exact_lists(scorer, users, k, filters)

    def _items_of(self, rows: Int[Tensor, "B n"]) -> Int[Tensor, "B m"]:
        """The items that have any of these codes (-1: none), side by side; empty places hold -1.

        The items of code c are `items[first[c] : first[c] + counts[c]]`: codes are repeated as
        often as they have items, and `within` counts the items of each.
        """
        counts = torch.where(rows >= 0, self.counts[rows.clamp_min(0)], 0)
        total = counts.sum(1)
        flat = counts.flatten()
        within = torch.arange(int(flat.sum()), device=rows.device) - (flat.cumsum(0) - flat).repeat_interleave(flat)
        items = self.items[self.first[rows.clamp_min(0)].flatten().repeat_interleave(flat) + within]
        filled = torch.arange(int(total.max()), device=rows.device) < total[:, None]
        return torch.full(filled.shape, -1, device=rows.device).masked_scatter_(filled, items)


@dataclass(frozen=True)
class _ActiveUsers:
    """Users whose lists are not complete: their codes by falling score in each level, and how many were taken."""

    scorer: CodeScorer
    step: int
    scores: Float[Tensor, "B K n"]
    rows: Int[Tensor, "B K n"]
    """Codes and their scores, [B, K, C + step]; behind a level's last code stand -1 and -inf."""
    taken: Int[Tensor, "B K"]

    @staticmethod
    def of(scorer: CodeScorer, step: int) -> _ActiveUsers:
        """The state before any code is taken."""
        widest, low = max(scorer.sizes) + step, 0
        scores, rows = [], []
        for level in scorer.levels.split(scorer.sizes):
            ranked, beyond = level.T.sort(dim=1, descending=True, stable=True), (0, widest - len(level))
            scores.append(F.pad(ranked.values, beyond, value=-torch.inf))
            rows.append(F.pad(ranked.indices + low, beyond, value=-1))
            low += len(level)
        codes = torch.stack(rows, 1)
        return _ActiveUsers(scorer, step, torch.stack(scores, 1), codes, codes.new_zeros(codes.shape[:2]))

    def bound(self) -> Float[Tensor, "B"]:
        """Upper bound on the score of an item none of whose codes was taken; -inf where a level has none left."""
        return reduce(operator.add, self._next().unbind(1))

    def take(self) -> Int[Tensor, "B n"]:
        """The next codes of each user, from the level with the best one; -1 behind a level's last."""
        level = self._next().argmax(1, keepdim=True)
        at = self.taken.gather(1, level) + torch.arange(self.step, device=level.device)
        self.taken.scatter_add_(1, level, torch.full_like(level, self.step))
        codes = self.rows.gather(1, level[:, :, None].expand(-1, -1, self.rows.shape[2]))[:, 0]
        return codes.gather(1, at)

    def only(self, users: Bool[Tensor, "B"]) -> _ActiveUsers:
        """The state of these users alone."""
        if bool(users.all()):
            return self
        scorer = CodeScorer(self.scorer.levels[:, users].contiguous(), self.scorer.sizes, self.scorer.rows)
        return _ActiveUsers(scorer, self.step, self.scores[users], self.rows[users], self.taken[users])

    def _next(self) -> Float[Tensor, "B k"]:
        return self.scores.gather(2, self.taken[:, :, None])[:, :, 0]
