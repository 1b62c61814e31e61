"""Adaptive stopping: every user thinks until their list has settled, and then leaves the batch.

After each step the users' first `adaptive` items are ranked; whoever's did not change for `patience` steps in a row is
answered, and the others go on without them. The list at step 0 is the encoder's own, so the least is one step. The
last list is the answer: reading one list ahead costs a ranking a step, which pays where steps cost more than rankings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fullrank.core.jagged import Jagged
from fullrank.core.progress import Progress
from fullrank.data.batch import Batch
from fullrank.data.histories import Histories
from fullrank.inference.batches import batches, evaluating, index_of
from fullrank.inference.exact import top_k
from fullrank.inference.filters import BatchFilter, Filters
from fullrank.models.sequential.reasoning.budget import Budget

Lists = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""(states, rows of the batch) -> scores and ids of the best items of these rows."""


def settled(
    model: Any,
    histories: Histories,
    budget: Budget,
    k: int,
    hidden: Jagged | None,
    filters: Filters,
    index: Any | None,
    *,
    block: int,
    batch_size: int | None,
    device: torch.device | str,
    progress: Progress | None,
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    """(places of the users, ids [b, k], scores [b, k], steps [b]) batch by batch, as `rank` puts them together.

    The model is a `Recommender` with a reasoner. What a user gets does not depend on who else is in the batch, beyond
    float rounding.
    """
    assert budget.adaptive is not None
    length, most = budget.adaptive, budget.steps_of(model.reasoner)
    with evaluating(model):
        index = index_of(model) if index is None else index
        for at, batch in batches(
            model, histories, block=block, batch_size=batch_size, device=device, progress=progress
        ):
            barrier = filters.take(at).of_batch(None if hidden is None else hidden.take(at), device)

            def lists(states: Tensor, rows: Tensor, barrier: BatchFilter | None = barrier, of: int = len(at)) -> Any:
                own = None if barrier is None else barrier.only(rows, of)
                return top_k(model.searched(states, index), max(k, length), filters=own, block=block)

            found, best, taken = _settle(model, batch, budget, lists, length, most)
            yield at, found[:, :k].cpu().numpy(), best[:, :k].cpu().numpy(), taken.cpu().numpy()


@torch.inference_mode()
def _settle(
    model: Any, batch: Batch, budget: Budget, lists: Lists, length: int, most: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Ids, scores and steps of every row of a batch."""
    thinking = model.reasoner.begin(*model.task.inference_inputs(model.items, batch), budget)
    rows = torch.arange(len(batch.lengths), device=batch.lengths.device)
    scores, ids = (part.clone() for part in lists(model.reasoner.answered(thinking), rows))
    taken, calm = torch.zeros_like(rows), torch.zeros_like(rows)
    for step in range(1, most + 1):
        thinking = model.reasoner.advance(thinking)
        best, found = lists(model.reasoner.answered(thinking), rows)
        same = (found[:, :length] == ids[rows, :length]).all(1)
        calm[rows] = torch.where(same, calm[rows] + 1, 0)
        scores[rows], ids[rows], taken[rows] = best, found, step
        going = calm[rows] < (budget.patience or 1)
        if not bool(going.any()):
            break
        if not bool(going.all()):
            kept = going.nonzero()[:, 0]
            thinking, rows = model.reasoner.select(thinking, kept), rows[kept]
    return ids, scores, taken
