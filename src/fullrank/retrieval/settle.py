"""Adaptive stopping: every user thinks until their list has settled, and then leaves the batch.

After each step the users' first `length` items are ranked; whoever's did not change for `patience` steps in a row is
answered, and the others go on without them. The list at step 0 is the encoder's own, so the least is one step. The
last list is the answer: reading one list ahead costs a ranking a step, which pays where steps cost more than rankings.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Int

from fullrank.batch import Batch, Dense
from fullrank.core.progress import Progress
from fullrank.errors import UserError
from fullrank.metrics import Ranking, flatten
from fullrank.retrieval.dial import reasoner_of
from fullrank.retrieval.exact import top_k
from fullrank.retrieval.rank import BLOCK, Histories, batches
from fullrank.retrieval.seen import Seen, checked


def rank_settled(
    model: Any,
    histories: Histories,
    *,
    k: int,
    length: int,
    most: int,
    patience: int = 1,
    seen: str = "exclude",
    batch_size: int | None = None,
    block: int | None = None,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
) -> tuple[Ranking, Int[np.ndarray, "U"]]:
    """As `rank.rank`, and the steps that each user took: until their first `length` items settle, at most `most`.

    The model is a `Recommender` with a reasoner; streams are those of the dial it stands on. What a user gets does not
    depend on who else is in the batch, beyond float rounding.
    """
    if reasoner_of(model) is None:
        raise UserError("this model does not reason, so it has no steps to stop after; leave adaptive out")
    policy = checked(seen)
    width = min(block or BLOCK, max(model.num_items, 1))
    ids = np.full((len(histories.starts), k), -1, dtype=np.int64)
    scores = np.full((len(histories.starts), k), -np.inf, dtype=np.float32)
    steps = np.zeros(len(histories.starts), dtype=np.int64)
    shared = batches(model, histories, block=width, batch_size=batch_size, device=device, progress=progress)
    for at, batch in shared:
        ranked = _Ranked(model, histories, at, max(k, length), policy == "exclude", width, device)
        found, best, taken = _settle(ranked, batch, length, most, patience)
        ids[at], scores[at], steps[at] = found[:, :k].cpu().numpy(), best[:, :k].cpu().numpy(), taken.cpu().numpy()
    return Ranking(ids, scores, policy), steps


class _Ranked:
    """The lists of some rows of one batch."""

    def __init__(
        self, model: Any, histories: Histories, at: np.ndarray, k: int, hide: bool, block: int,
        device: torch.device | str,
    ):  # fmt: skip
        self.model, self.histories, self.at, self.k, self.hide = model, histories, at, k, hide
        self.block, self.device = block, device

    def __call__(self, vectors: torch.Tensor, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Scores and ids of the best items of these rows of the batch."""
        answer: Dense = self.model.searched(vectors)
        seen = None
        if self.hide:
            at = self.at[rows.cpu().numpy()]
            h = self.histories
            seen = Seen.of(*flatten(h.items, h.starts[at], h.ends[at]), device=self.device)
        return top_k(answer, self.k, seen=seen, block=self.block)


@torch.inference_mode()
def _settle(
    ranked: _Ranked, batch: Batch, length: int, most: int, patience: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Ids, scores and steps of every row of a batch."""
    model = ranked.model
    thinking = model.reasoner.begin(*model.task.ask(model.items, batch))
    rows = torch.arange(len(batch.lengths), device=batch.lengths.device)
    scores, ids = ranked(model.reasoner.answered(thinking), rows)
    scores, ids = scores.clone(), ids.clone()
    taken, calm = torch.zeros_like(rows), torch.zeros_like(rows)
    for step in range(1, most + 1):
        thinking = model.reasoner.advance(thinking)
        best, found = ranked(model.reasoner.answered(thinking), rows)
        same = (found[:, :length] == ids[rows, :length]).all(1)
        calm[rows] = torch.where(same, calm[rows] + 1, 0)
        scores[rows], ids[rows], taken[rows] = best, found, step
        going = calm[rows] < patience
        if not bool(going.any()):
            break
        if not bool(going.all()):
            kept = going.nonzero()[:, 0]
            thinking, rows = model.reasoner.select(thinking, kept), rows[kept]
    return ids, scores, taken
