"""Ranked lists for any number of histories: length-bucketed batches through a model, answers through a search."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fullrank.core.progress import Progress
from fullrank.data.batch import Model
from fullrank.data.histories import Histories
from fullrank.inference.batches import BLOCK, SCORES, score_batches
from fullrank.inference.decoding import Decoding
from fullrank.inference.early_exit import early_exit_lists
from fullrank.inference.exact import LARGEST_BLOCK
from fullrank.inference.filters import Filters, seen_policy
from fullrank.inference.search import Search, search_of
from fullrank.metrics import Ranking
from fullrank.models.sequential.reasoning.budget import Budget, check_budget


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
) -> Ranking:
    """The k best items for each history, in the order given.

    The model reads the last `model.max_length` events; under `seen="exclude"` the whole history is kept out of the
    list, and so is what `filters` refuse: before the list is cut, so that it stays full while enough items remain. A
    history may be empty only for a model with the attribute `allows_empty = True`. `batch_size` (users) and `block`
    (items) default to what keeps users x block within `SCORES`; neither changes the result beyond float rounding in
    the model. `decoding` is the search among semantic ids; None scores every item. `budget` is how much a reasoner
    thinks; with `adaptive` each user stops when their list has settled, and the ranking tells after how many steps.
    The model must already be on `device`; it is put in evaluation mode while it is used. `index` and `search` are what
    `index_of(model)` and `search_of(model, decoding, block)` gave, where a caller keeps them.
    Raises `UserError` on an unknown policy, an empty history, an id outside the catalogue, a NaN score, and a budget or
    a decoding that the model cannot serve.
    """
    policy, filters = seen_policy(seen), filters or Filters()
    # Few users leave room for larger blocks: one product and one selection instead of one for each 8,192 items.
    room = max(BLOCK, min(SCORES // max(len(histories), 1), LARGEST_BLOCK)) if block is None else block
    width = min(room, max(model.num_items, 1))
    ids = np.full((len(histories), k), -1, dtype=np.int64)
    scores = np.full((len(histories), k), -np.inf, dtype=np.float32)
    hidden = histories.items if policy == "exclude" else None
    how: dict[str, Any] = {"block": width, "batch_size": batch_size, "device": device, "progress": progress}
    if budget is not None and budget.adaptive is not None:
        check_budget(model, budget)
        steps = np.zeros(len(histories), dtype=np.int64)
        for at, *lists, taken in early_exit_lists(model, histories, budget, k, hidden, filters, index, **how):
            ids[at], scores[at], steps[at] = *lists, taken
        return Ranking(ids, scores, policy, steps)
    search = search_of(model, decoding or Decoding(), width) if search is None else search
    for at, answer in score_batches(model, histories, budget=budget, index=index, **how):
        barrier = filters.take(at).of_batch(None if hidden is None else hidden.take(at), device)
        best, found = search(answer, k, barrier)
        ids[at], scores[at] = found.cpu().numpy(), best.cpu().numpy()
    return Ranking(ids, scores, policy)
