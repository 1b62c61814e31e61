"""Candidate sets: item ids and scores per user, for searches that do not score every item."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from fullrank.inference.exact import select, top_k
from fullrank.inference.filters import BatchFilter
from fullrank.models.sequential.items.semantic import CodeScorer


@dataclass(frozen=True)
class Candidates:
    """Items by rising id, each once; places without one hold the largest id of the row again, at score -inf."""

    items: Int[Tensor, "B m"]
    scores: Float[Tensor, "B m"]

    @staticmethod
    def of(answer: CodeScorer, items: Int[Tensor, "B m"]) -> Candidates:
        """The scores of these items; an item that is there several times, or -1, counts once, or not at all."""
        items = items.sort(1).values
        scores = own_scores(answer, items.clamp_min(0))
        again = F.pad(items[:, 1:] == items[:, :-1], (1, 0)) | (items < 0)
        return Candidates(items, scores.masked_fill(again, -torch.inf))

    def best(self, k: int, filters: BatchFilter | None) -> tuple[Float[Tensor, "B K"], Int[Tensor, "B K"]]:
        """The k best that filters let through, by score descending, then id ascending; empty places hold -1 / -inf."""
        scores = self.scores
        if filters is not None:
            scores = scores.masked_fill(filters.refuses(self.items.clamp_min(0)), -torch.inf)
        values, at = select(scores, min(k, scores.shape[1]))
        ids = self.items.gather(1, at).masked_fill(values == -torch.inf, -1)
        missing = k - values.shape[1]
        if missing > 0:
            values, ids = F.pad(values, (0, missing), value=-torch.inf), F.pad(ids, (0, missing), value=-1)
        return values, ids


def own_scores(answer: CodeScorer, items: Int[Tensor, "B m"]) -> Float[Tensor, "B m"]:
    """Each user's scores of their own items, level by level, in the order of an exact answer's sums."""
    users = torch.arange(len(items), device=items.device)[:, None]
    flat, total = answer.levels.flatten(), None
    for level in answer.rows.T:
        part = flat[level[items] * answer.levels.shape[1] + users]
        total = part if total is None else total + part
    assert total is not None
    return total


def exact_lists(
    answer: CodeScorer, users: Int[Tensor, "b"], k: int, filters: BatchFilter | None
) -> tuple[Float[Tensor, "b K"], Int[Tensor, "b K"]]:
    """The exact lists of some users of a batch, by scoring every item for them."""
    some = CodeScorer(answer.levels[:, users].contiguous(), answer.sizes, answer.rows)
    return top_k(some, k, filters=None if filters is None else filters.only(users, answer.levels.shape[1]))
