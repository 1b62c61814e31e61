"""Recommendations for requests: a model's lists, the most popular items for empty histories, and the long frame."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import torch
from jaxtyping import Float, Int

from fullrank.data.events.catalog import Catalog
from fullrank.data.histories import Histories
from fullrank.data.values import take
from fullrank.inference.batches import BLOCK, SCORES
from fullrank.inference.exact import top_k
from fullrank.inference.filters import Filters
from fullrank.inference.list_options import ListOptions
from fullrank.inference.rank import rank
from fullrank.inference.requests import RequestBatch, require_known_items
from fullrank.inference.search import Decoding, Search
from fullrank.metrics import RankedLists
from fullrank.models import DenseScorer
from fullrank.models.sequential.reasoning import AS_TRAINED

SOURCES = ("model", "popular", "ranker")
"""Where a list is from, and so what its scores are: a model's own, training events of the item, or of a cascade click
probabilities. Scores of one source are on one scale, and those of two are not to be compared."""
MODEL, POPULAR, RANKER = range(len(SOURCES))
SOURCE_NAMES = pl.Series("source", SOURCES, dtype=pl.String)


def sources(model: Any, histories: Histories) -> Int[np.ndarray, "U"]:
    """`MODEL`, or `POPULAR` for histories without items, unless the model answers these by itself (popularity)."""
    bare = (histories.lengths == 0) & (not model.allows_empty)
    return np.where(bare, POPULAR, MODEL)


def rank_requests(
    model: Any,
    catalog: Catalog,
    request: RequestBatch,
    options: ListOptions,
    filters: Filters | None = None,
    *,
    device: torch.device | str = "cpu",
    index: Any | None = None,
    search: Search | None = None,
) -> RankedLists:
    """The k best items of each user, or as many as there are; the rest is as in `rank`."""
    filters, seen = filters or Filters(), options.seen
    budget, decoding = options.budget_of(AS_TRAINED), options.decoding_of(Decoding())
    histories = request.histories
    without_items = histories.lengths == 0
    if options.empty == "error":
        require_known_items(without_items, "empty='popular' gives them the most popular items")
    k = min(options.k, catalog.size)
    how: dict[str, Any] = {"device": device, "decoding": decoding, "budget": budget, "index": index, "search": search}
    popular = without_items & (not model.allows_empty)
    if not popular.any():  # what most requests are
        return rank(model, histories, k=k, seen=seen, filters=filters, **how)
    scored, rest = np.flatnonzero(~popular), np.flatnonzero(popular)
    ids = np.full((len(request), k), -1, dtype=np.int64)
    scores = np.full((len(request), k), -np.inf, dtype=np.float32)
    steps = np.zeros(len(request), dtype=np.int64)
    if len(scored):
        found = rank(model, histories.take(scored), k=k, seen=seen, filters=filters.take(scored), **how)
        ids[scored], scores[scored] = found.ids, found.scores
        steps[scored] = 0 if found.steps is None else found.steps
    # rounded up to parts of which each keeps users x BLOCK within SCORES
    for some in np.array_split(rest, -(-len(rest) * BLOCK // SCORES)):
        scores[some], ids[some] = most_popular(catalog, len(some), k, filters.take(some), histories.take(some))
    return RankedLists(ids, scores, seen, None if budget.adaptive is None else steps)


def most_popular(
    catalog: Catalog, users: int, k: int, filters: Filters, histories: Histories
) -> tuple[Float[np.ndarray, "U k"], Int[np.ndarray, "U k"]]:
    """The items with most training events that filters let through, with their counts as scores, for each user."""
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
    """A row for each place that is shown: user, item, score, rank, and what else is given: where the list is from (an
    index of `SOURCES`), steps, and title where it is asked for.

    Users without names (None) are numbered.
    """
    k = ids.shape[1]
    filled = np.flatnonzero(options.shown(ids, scores))
    place, internal = filled // k, ids.ravel()[filled]
    first, *others = [
        pl.Series("user", place) if users is None else take(users, place, "user"),
        catalog.external(internal, "item"),
        pl.Series("score", scores.ravel()[filled]),
        pl.Series("rank", filled % k + 1),
    ]
    if source is not None:
        others.append(take(SOURCE_NAMES, source[place], "source"))
    if steps is not None:
        others.append(pl.Series("steps", steps[place]))
    if options.titles and catalog.titles is not None:
        others.append(catalog.titles[internal].alias("title"))
    return first.to_frame().hstack(others)
