"""Ranked lists for any number of histories: length-bucketed batches through a model, scores through a search.

With adaptive stopping (early exit), a reasoner's users leave the batch one by one. After each step the users' first
`adaptive` items are ranked; a user whose items did not change for `patience` steps in a row is done, and the others go
on without them. The list at step 0 is the encoder's own, so the least is one step. The last list is what is returned:
looking one list ahead costs a ranking a step, which pays where steps cost more than rankings.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from fullrank.core.jagged import Jagged
from fullrank.core.memory import require_memory
from fullrank.core.progress import Progress
from fullrank.data.batch import Batch
from fullrank.data.histories import Histories
from fullrank.inference.batches import BLOCK, SCORES, batches, evaluating, score_batches
from fullrank.inference.exact import LARGEST_BLOCK, top_k
from fullrank.inference.filters import BatchFilter, Filters, seen_policy
from fullrank.inference.search import Decoding, Search, search_of
from fullrank.metrics import RankedLists
from fullrank.models import Model
from fullrank.models.sequential.reasoning import Budget, check_budget

LIST_BYTES = 12
"""Memory of a place in a list: id and score."""


def rank(
    model: Model,
    histories: Histories,
    *,
    k: int,
    seen: str = "exclude",
    filters: Filters | None = None,
    batch_size: int | None = None,
    block: int | None = None,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
    decoding: Decoding | None = None,
    budget: Budget | None = None,
    index: Any | None = None,
    search: Search | None = None,
) -> RankedLists:
    """The k best items for each history, in the order given.

    The model reads the last `model.max_length` events; under `seen="exclude"` the whole history is kept out of the
    list, and so is what `filters` refuse: before the list is cut, so that it stays full while enough items remain. A
    history may be empty only for a model with the attribute `allows_empty = True`. `batch_size` (users) and `block`
    (items) default to what keeps users x block within `SCORES`; neither changes the result beyond float rounding in
    the model. `decoding` is the search among semantic ids; None scores every item. `budget` is how many steps a
    reasoner computes; with `adaptive` each user stops when their list no longer changes, and the ranking says after how
    many steps. The model must already be on `device`; it is put in evaluation mode while it is used. `index` and
    `search` are what `model.index_items()` and `search_of(model, decoding, block)` gave, where a caller keeps them.
    Raises `UserError` on an unknown policy, an empty history, an id outside the catalogue, a NaN score, and a budget or
    a decoding that the model cannot serve.
    """
    policy, filters = seen_policy(seen), filters or Filters()
    # Few users allow larger blocks: one product and one selection instead of one for each 8,192 items.
    width = max(BLOCK, min(SCORES // max(len(histories), 1), LARGEST_BLOCK)) if block is None else block
    width = min(width, max(model.num_items, 1))
    require_memory(LIST_BYTES * len(histories) * k, f"{len(histories):,} lists of {k:,} items", "ask for shorter lists")
    ids = np.empty((len(histories), k), dtype=np.int64)  # every history is in one batch
    scores = np.empty((len(histories), k), dtype=np.float32)
    seen_items = histories.items if policy == "exclude" else None
    how: dict[str, Any] = {"block": width, "batch_size": batch_size, "device": device, "progress": progress}
    if budget is not None and budget.adaptive is not None:
        check_budget(model, budget)
        steps = np.zeros(len(histories), dtype=np.int64)
        with evaluating(model):
            index = model.index_items() if index is None else index
            for at, batch in batches(model, histories, **how):
                batch_filter = _filter_of(filters, seen_items, at, device)
                lists = _early_exit_lists(model, batch, budget, k, batch_filter, index, width)
                scores[at], ids[at], steps[at] = (part.cpu().numpy() for part in lists)
        return RankedLists(ids, scores, policy, steps)
    search = search_of(model, decoding or Decoding(), width) if search is None else search
    for at, scorer in score_batches(model, histories, budget=budget, index=index, **how):
        best_scores, best_ids = search(scorer, k, _filter_of(filters, seen_items, at, device))
        scores[at], ids[at] = best_scores.cpu().numpy(), best_ids.cpu().numpy()
    return RankedLists(ids, scores, policy)


def _filter_of(
    filters: Filters, seen_items: Jagged | None, at: np.ndarray, device: torch.device | str
) -> BatchFilter | None:
    """The filter of the users at these positions."""
    return filters.take(at).of_batch(None if seen_items is None else seen_items.take(at), device)


@torch.inference_mode()
def _early_exit_lists(
    model: Any, batch: Batch, budget: Budget, k: int, filters: BatchFilter | None, index: Any | None, block: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Scores [b, k], ids [b, k] and steps [b] of a batch.

    The model is a `Recommender` with a reasoner. What a user gets does not depend on who else is in the batch, beyond
    float rounding.
    """
    assert budget.adaptive is not None
    length, users = budget.adaptive, len(batch.lengths)

    def top(state: Any, rows: Tensor) -> tuple[Tensor, Tensor]:
        own = None if filters is None else filters.only(rows, users)
        states = model.reasoner.answered(state)
        return top_k(model.searched(states, index), max(k, length), filters=own, block=block)

    state = model.reasoner.begin(*model.task.inference_inputs(model.items, batch), budget)
    rows = torch.arange(users, device=batch.lengths.device)  # of the batch: who still computes steps
    scores, ids = (part.clone() for part in top(state, rows))
    taken, unchanged = torch.zeros_like(rows), torch.zeros_like(rows)
    for step in range(1, budget.steps_of(model.reasoner) + 1):
        state = model.reasoner.advance(state)
        best, found = top(state, rows)
        same = (found[:, :length] == ids[rows, :length]).all(1)
        unchanged[rows] = torch.where(same, unchanged[rows] + 1, 0)
        scores[rows], ids[rows], taken[rows] = best, found, step
        going = unchanged[rows] < (budget.patience or 1)
        if not bool(going.any()):
            break
        if not bool(going.all()):
            kept = going.nonzero()[:, 0]
            state, rows = model.reasoner.select(state, kept), rows[kept]
    return scores[:, :k], ids[:, :k], taken
