"""Ranked lists for histories and requests: batches through a model, popular items for empty histories, the long frame.

Histories go in length-bucketed batches through a model, scores through a search. With adaptive
stopping (early exit), a reasoner's users leave the batch one by one. After each step the users'
first `adaptive` items are ranked; a user whose items did not change for `patience` steps in a row
is done, and the others go on without them. The list at step 0 is the encoder's own, so every user
takes at least one step. The last list is the one returned. Each step costs a ranking more, which
pays where steps cost more than rankings."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import polars as pl
import torch
from jaxtyping import Float, Int
from torch import Tensor

from fullrank.core.device import device_of
from fullrank.core.jagged import Jagged
from fullrank.core.log import untold
from fullrank.core.memory import require_memory
from fullrank.data.batch import Batch
from fullrank.data.events.catalog import Catalog
from fullrank.data.histories import Histories
from fullrank.data.values import take
from fullrank.inference.batches import BLOCK, SCORES, Batching, batches, evaluating, score_batches
from fullrank.inference.exact import LARGEST_BLOCK, top_k
from fullrank.inference.filters import BatchFilter, Filters, seen_policy
from fullrank.inference.list_options import ListOptions
from fullrank.inference.requests import RequestBatch, require_known_items
from fullrank.inference.search import Decoding, Search, search_of
from fullrank.metrics import RankedLists, SeenPolicy
from fullrank.models import AS_TRAINED, Budget, DenseScorer, Model, check_budget
from fullrank.models.sequential.baselines.blend import BlendModel, Member, MemberLists

LIST_BYTES = 12
"""Memory of a place in a list: id and score."""
BLENDED = 1 << 14
"""Histories whose members' lists are joined at once."""


def rank(
    model: Model,
    histories: Histories,
    *,
    k: int,
    seen: str = "exclude",
    filters: Filters | None = None,
    search: Search | Decoding = Decoding(),
    budget: Budget | None = None,
    index: Any | None = None,
    how: Batching = Batching(),
) -> RankedLists:
    """The k best items for each history, in the order given.

    The model reads the last `model.max_length` events; under `seen="exclude"` the whole history is
    kept out of the list, and so is what `filters` refuse: before the list is cut, so that it stays
    full while enough items remain. A history may be empty only for a model with the attribute
    `allows_empty = True`. Batches, as `how` has them, do not change the result beyond float
    rounding in the model; without a block few users get a larger one. `search` is that among
    semantic ids, or every item is scored. `budget` is how many steps a reasoner computes; with
    `adaptive` each user stops when their list no longer changes, and the ranking says after how
    many steps. The model is put in evaluation mode while it is used. `index` is what
    `model.index_items()` gave, where a caller keeps it, and so may `search` be what `search_of`
    made of a decoding. Raises `UserError` on an unknown policy, an empty history, an id outside the
    catalogue, a NaN score, and a budget or a decoding that the model cannot serve.
    """
    policy, filters, device = seen_policy(seen), filters or Filters(), device_of(model)
    if isinstance(model, BlendModel):
        check_budget(model, budget or AS_TRAINED)
        if isinstance(search, Decoding):
            search_of(model, search, BLOCK)  # refuses one among codes: each member has its own
        return _rank_blend(model, histories, k, policy, filters, index, how)
    # Few users allow larger blocks: one product and one selection instead of one for each 8,192
    # items.
    width = how.block or max(BLOCK, min(SCORES // max(len(histories), 1), LARGEST_BLOCK))
    width = min(width, max(model.num_items, 1))
    how = replace(how, block=width)
    require_memory(LIST_BYTES * len(histories) * k, f"{len(histories):,} lists of {k:,} items", "ask for shorter lists")
    ids = np.empty((len(histories), k), dtype=np.int64)  # every history is in one batch
    scores = np.empty((len(histories), k), dtype=np.float32)
    seen_items = histories.items if policy == "exclude" else None
    if budget is not None and budget.adaptive is not None:
        check_budget(model, budget)
        steps = np.zeros(len(histories), dtype=np.int64)
        with evaluating(model):
            index = model.index_items() if index is None else index
            for at, batch in batches(model, histories, how):
                batch_filter = _filter_of(filters, seen_items, at, device)
                lists = _early_exit_lists(model, batch, budget, k, batch_filter, index, width)
                scores[at], ids[at], steps[at] = (part.cpu().numpy() for part in lists)
        return RankedLists(ids, scores, policy, steps)
    search = search_of(model, search, width) if isinstance(search, Decoding) else search
    for at, scorer in score_batches(model, histories, how, budget=budget, index=index):
        best_scores, best_ids = search(scorer, k, _filter_of(filters, seen_items, at, device))
        scores[at], ids[at] = best_scores.cpu().numpy(), best_ids.cpu().numpy()
    return RankedLists(ids, scores, policy)


def _empty_lists(users: int, k: int) -> tuple[Int[np.ndarray, "U k"], Float[np.ndarray, "U k"]]:
    """Ids and scores of lists whose places are all empty."""
    return np.full((users, k), -1, dtype=np.int64), np.full((users, k), -np.inf, dtype=np.float32)


def _rank_blend(
    model: BlendModel, histories: Histories, k: int, seen: SeenPolicy, filters: Filters, index: Any, how: Batching
) -> RankedLists:
    """The joined lists of a blend's members, each of which ranks all histories that it can."""
    indexes, length = index or model.index_items(), min(model.spec.depth, model.num_items)
    ids, scores = _empty_lists(len(histories), k)
    for low in range(0, len(histories), BLENDED):
        rows = np.arange(low, min(low + BLENDED, len(histories)))
        chunk, chunk_filters = histories.take(rows), filters.take(rows)
        lists = [
            member_lists(member, chunk, length, seen, chunk_filters, index=known, how=replace(how, progress=untold))
            for member, known in zip(model.members, indexes, strict=True)
        ]
        scores[rows], ids[rows] = model.joined(lists, model.weights_of(chunk.items), k)
        how.progress(int(rows[-1]) + 1, len(histories))
    return RankedLists(ids, scores, seen)


def member_lists(
    member: Member,
    histories: Histories,
    length: int,
    seen: str,
    filters: Filters | None = None,
    *,
    index: Any | None = None,
    how: Batching = Batching(),
) -> MemberLists:
    """The best items of a member of a blend for each history; none where it cannot answer an empty one."""
    rows = np.flatnonzero((histories.lengths > 0) | member.model.allows_empty)
    ids, scores = _empty_lists(len(histories), length)
    if len(rows):
        if len(rows) < len(histories):
            histories, filters = histories.take(rows), filters and filters.take(rows)
        ranked = rank(member.model, histories, k=length, seen=seen, filters=filters, index=index, how=how, **member.how)
        ids[rows], scores[rows] = ranked.ids, ranked.scores
    return MemberLists(ids, scores)


def _filter_of(filters: Filters, seen_items: Jagged | None, at: np.ndarray, device: torch.device) -> BatchFilter | None:
    """The filter of the users at these positions."""
    return filters.take(at).of_batch(None if seen_items is None else seen_items.take(at), device)


@torch.inference_mode()
def _early_exit_lists(
    model: Any, batch: Batch, budget: Budget, k: int, filters: BatchFilter | None, index: Any | None, block: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Scores [b, k], ids [b, k] and steps [b] of a batch.

    The model is a `Recommender` with a reasoner. What a user gets does not depend on who else is in
    the batch, beyond float rounding.
    """
    assert budget.adaptive is not None
    length, users = budget.adaptive, len(batch.lengths)

    def top(state: Any, rows: Tensor) -> tuple[Tensor, Tensor]:
        row_filters = None if filters is None else filters.only(rows, users)
        states = model.reasoner.answered(state)
        return top_k(model.searched(states, index), max(k, length), filters=row_filters, block=block)

    state = model.reasoner.begin(*model.task.inference_inputs(model.items, batch), budget)
    rows = torch.arange(users, device=batch.lengths.device)  # rows of the batch whose users still compute steps
    scores, ids = (part.clone() for part in top(state, rows))
    taken, unchanged = torch.zeros_like(rows), torch.zeros_like(rows)
    for step in range(1, budget.steps_of(model.reasoner) + 1):
        state = model.reasoner.advance(state)
        best_scores, best_ids = top(state, rows)
        same = (best_ids[:, :length] == ids[rows, :length]).all(1)
        unchanged[rows] = torch.where(same, unchanged[rows] + 1, 0)
        scores[rows], ids[rows], taken[rows] = best_scores, best_ids, step
        going = unchanged[rows] < (budget.patience or 1)
        if not bool(going.any()):
            break
        if not bool(going.all()):
            remaining = going.nonzero()[:, 0]
            state, rows = model.reasoner.select(state, remaining), rows[remaining]
    return scores[:, :k], ids[:, :k], taken


SOURCES = ("model", "popular", "ranker")
"""Sources of a list, and so the kind of its scores: the model's own, counts of training events, click probabilities.

Scores of one source are on one scale, and those of two are not to be compared.
"""
MODEL, POPULAR, RANKER = range(len(SOURCES))
SOURCE_NAMES = pl.Series("source", SOURCES, dtype=pl.String)


def sources(model: Any, histories: Histories) -> Int[np.ndarray, "U"]:
    """`MODEL`, or `POPULAR` for histories without items, unless the model answers
    these by itself (popularity)."""
    bare = (histories.lengths == 0) & (not model.allows_empty)
    return np.where(bare, POPULAR, MODEL)


def rank_requests(
    model: Any,
    catalog: Catalog,
    request: RequestBatch,
    options: ListOptions,
    filters: Filters | None = None,
    *,
    index: Any | None = None,
    search: Search | None = None,
) -> RankedLists:
    """The k best items of each user, or as many as there are; the rest is as in `rank`."""
    filters, seen = filters or Filters(), options.seen
    budget, decoding = options.budget_of(AS_TRAINED), options.decoding_of(Decoding())
    histories, k = request.histories, min(options.k, catalog.size)
    if options.empty == "error":
        require_known_items(histories.lengths == 0, "empty='popular' gives them the most popular items")
    ranked = partial(rank, model, k=k, seen=seen, search=search or decoding, budget=budget, index=index)
    popular = sources(model, histories) == POPULAR
    if not popular.any():  # what most requests are
        return ranked(histories, filters=filters)
    scored, rest = np.flatnonzero(~popular), np.flatnonzero(popular)
    ids, scores = _empty_lists(len(request), k)
    steps = np.zeros(len(request), dtype=np.int64)
    if len(scored):
        lists = ranked(histories.take(scored), filters=filters.take(scored))
        ids[scored], scores[scored] = lists.ids, lists.scores
        steps[scored] = 0 if lists.steps is None else lists.steps
    # rounded up to parts of which each keeps users x BLOCK within SCORES
    for rows in np.array_split(rest, -(-len(rest) * BLOCK // SCORES)):
        scores[rows], ids[rows] = most_popular(catalog, len(rows), k, filters.take(rows), histories.take(rows))
    return RankedLists(ids, scores, seen, None if budget.adaptive is None else steps)


def most_popular(
    catalog: Catalog, users: int, k: int, filters: Filters, histories: Histories
) -> tuple[Float[np.ndarray, "U k"], Int[np.ndarray, "U k"]]:
    """The items with most training events that filters let through, with their
    counts as scores, for each user."""
    counts = torch.from_numpy(catalog.popularity.astype(np.float32))
    scorer = DenseScorer(torch.ones(users, 1), counts[:, None])
    scores, ids = top_k(scorer, k, filters=filters.of_batch(histories.items))
    return scores.numpy(), ids.numpy()


def long_frame(
    users: pl.Series | None,
    ids: Int[np.ndarray, "U k"],
    scores: Float[np.ndarray, "U k"],
    catalog: Catalog,
    options: ListOptions,
    steps: Int[np.ndarray, "U"] | None = None,
    source: Int[np.ndarray, "U"] | None = None,
) -> pl.DataFrame:
    """A row for each place that is shown: user, item, score, rank, and more where it is given or asked for.

    That is the source of the list (an index of `SOURCES`), the steps, and the title.

    Users without names (None) are numbered.
    """
    k = ids.shape[1]
    filled = np.flatnonzero(options.shown(ids, scores))
    row, internal = filled // k, ids.ravel()[filled]
    first, *others = [
        pl.Series("user", row) if users is None else take(users, row, "user"),
        catalog.external(internal, "item"),
        pl.Series("score", scores.ravel()[filled]),
        pl.Series("rank", filled % k + 1),
    ]
    if source is not None:
        others.append(take(SOURCE_NAMES, source[row], "source"))
    if steps is not None:
        others.append(pl.Series("steps", steps[row]))
    if options.titles and catalog.titles is not None:
        others.append(catalog.titles[internal].alias("title"))
    return first.to_frame().hstack(others)
