"""Some items of each user with their scores: what searches that do not score every item choose from."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from fullrank.items.coded import Coded
from fullrank.retrieval.exact import select
from fullrank.retrieval.seen import Seen


@dataclass(frozen=True)
class Pool:
    """Items by rising id, each once; places without one hold the largest id of the row again, at score -inf."""

    items: Int[Tensor, "B m"]
    scores: Float[Tensor, "B m"]

    @staticmethod
    def of(answer: Coded, items: Int[Tensor, "B m"]) -> Pool:
        """The scores of these items; an item that is there several times, or -1, counts once, or not at all."""
        items = items.sort(1).values
        scores = own_scores(answer, items.clamp_min(0))
        again = F.pad(items[:, 1:] == items[:, :-1], (1, 0)) | (items < 0)
        return Pool(items, scores.masked_fill(again, -torch.inf))


def own_scores(answer: Coded, items: Int[Tensor, "B m"]) -> Float[Tensor, "B m"]:
    """Each user's scores of their own items, level by level, in the order of an exact answer's sums."""
    users = torch.arange(len(items), device=items.device)[:, None]
    flat, total = answer.levels.flatten(), None
    for level in answer.rows.T:
        part = flat[level[items] * answer.levels.shape[1] + users]
        total = part if total is None else total + part
    assert total is not None
    return total


def best(pool: Pool, k: int, seen: Seen | None) -> tuple[Float[Tensor, "B K"], Int[Tensor, "B K"]]:
    """The k best unseen items of a pool, by score descending, then id ascending; empty places hold -1 / -inf."""
    scores = pool.scores
    if seen is not None:
        scores = scores.masked_fill(seen.has(pool.items), -torch.inf)
    values, at = select(scores, min(k, scores.shape[1]))
    ids = pool.items.gather(1, at).masked_fill(values == -torch.inf, -1)
    missing = k - values.shape[1]
    if missing > 0:
        values, ids = F.pad(values, (0, missing), value=-torch.inf), F.pad(ids, (0, missing), value=-1)
    return values, ids
