"""Exact lists without scoring every item: dynamic pruning by codes (RecJPQPrune, Petrov et al., arXiv:2505.00560).

An item's score is a sum of one score from each level. Codes are taken a few at a time, always from the level whose best
code not yet taken is largest, and their items are scored. No item that is left can score more than the sum of the
levels' best codes not yet taken: once that is below the k-th score found, the list is complete.

The sums run in the order of an exact answer's, and rounding keeps order, so the bound holds for the rounded scores too.
A user for whom more scores were taken than there are items gets the list by scoring them all (`scanned` counts these):
many levels of like scores leave a bound that nothing reaches. Users go side by side, one step of all at a time.
"""

from __future__ import annotations

import operator
from functools import reduce

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from fullrank.inference.code_search import Candidates, exact_lists
from fullrank.inference.exact import top_k
from fullrank.inference.filters import BatchFilter
from fullrank.models.sequential.items.semantic import CodeScorer, SemanticItems


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
    def __call__(
        self, scorer: CodeScorer, k: int, filters: BatchFilter | None
    ) -> tuple[Float[Tensor, "B k"], Int[Tensor, "B k"]]:
        if bool(scorer.levels.isnan().any()):
            return top_k(scorer, k, filters=filters)  # which refuses them
        users = scorer.levels.shape[1]
        scores = scorer.levels.new_full((users, k), -torch.inf)
        ids = torch.full((users, k), -1, device=scores.device)
        search = _ActiveUsers(scorer, self.codes)
        active, scored = torch.arange(users, device=ids.device), torch.zeros(users, device=ids.device)
        while len(active):
            bound = search.bound()
            # Not `>`: an item at the bound ties with the k-th, and the smaller id has to come first.
            unfinished = (bound >= scores[active][:, -1]) & (bound > -torch.inf)
            active, search = active[unfinished], search.only(unfinished)
            costly = scored[active] >= scorer.size
            if bool(costly.any()):
                scores[active[costly]], ids[active[costly]] = self._scan(scorer, active[costly], k, filters)
                active, search = active[~costly], search.only(~costly)
            if not len(active):
                break
            found = self._items_of(search.take())
            scored[active] += (found >= 0).sum(1)
            self.scored += int((found >= 0).sum())
            held = Candidates.of(search.scorer, torch.cat([ids[active], found], 1))
            scores[active], ids[active] = held.best(k, None if filters is None else filters.only(active, users))
        return scores, ids

    def _scan(
        self, scorer: CodeScorer, users: Int[Tensor, "b"], k: int, filters: BatchFilter | None
    ) -> tuple[Float[Tensor, "b k"], Int[Tensor, "b k"]]:
        self.scanned += len(users)
        self.scored += len(users) * scorer.size
        return exact_lists(scorer, users, k, filters)

    def _items_of(self, rows: Int[Tensor, "B n"]) -> Int[Tensor, "B m"]:
        """The items that have any of these codes (-1: none), side by side; empty places hold -1."""
        counts = torch.where(rows >= 0, self.counts[rows.clamp_min(0)], 0)
        total = counts.sum(1)
        flat = counts.flatten()
        within = torch.arange(int(flat.sum()), device=rows.device) - (flat.cumsum(0) - flat).repeat_interleave(flat)
        found = self.items[self.first[rows.clamp_min(0)].flatten().repeat_interleave(flat) + within]
        there = torch.arange(int(total.max()), device=rows.device) < total[:, None]
        return torch.full(there.shape, -1, device=rows.device).masked_scatter_(there, found)


class _ActiveUsers:
    """Users whose lists are not complete: their codes by falling score in each level, and how many were taken."""

    def __init__(self, scorer: CodeScorer, step: int):
        self.scorer, self.step = scorer, step
        widest, low = max(scorer.sizes) + step, 0
        scores, rows = [], []
        for level in scorer.levels.split(scorer.sizes):
            ranked, beyond = level.T.sort(dim=1, descending=True, stable=True), (0, widest - len(level))
            scores.append(F.pad(ranked.values, beyond, value=-torch.inf))
            rows.append(F.pad(ranked.indices + low, beyond, value=-1))
            low += len(level)
        self.scores, self.rows = torch.stack(scores, 1), torch.stack(rows, 1)
        """[B, K, C + step]; behind a level's last code stand -inf and -1."""
        self.taken = self.rows.new_zeros(self.rows.shape[:2])

    def bound(self) -> Float[Tensor, "B"]:
        """More than this no item scores whose codes were all left; -inf where a level has none left."""
        return reduce(operator.add, self._next().unbind(1))

    def take(self) -> Int[Tensor, "B n"]:
        """The next codes of each user, from the level with the best one; -1 behind a level's last."""
        level = self._next().argmax(1, keepdim=True)
        at = self.taken.gather(1, level) + torch.arange(self.step, device=level.device)
        self.taken.scatter_add_(1, level, torch.full_like(level, self.step))
        own = self.rows.gather(1, level[:, :, None].expand(-1, -1, self.rows.shape[2]))[:, 0]
        return own.gather(1, at)

    def only(self, kept: Tensor) -> _ActiveUsers:
        if bool(kept.all()):
            return self
        new = object.__new__(_ActiveUsers)
        new.scorer = CodeScorer(self.scorer.levels[:, kept].contiguous(), self.scorer.sizes, self.scorer.rows)
        new.step, new.scores, new.rows, new.taken = self.step, self.scores[kept], self.rows[kept], self.taken[kept]
        return new

    def _next(self) -> Float[Tensor, "B k"]:
        return self.scores.gather(2, self.taken[:, :, None])[:, :, 0]
