"""Items without training events in a trained model: means of the vectors of like items in place of untrained ones."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from fullrank.core.checks import public
from fullrank.core.errors import UserError
from fullrank.data.events.catalog import Catalog
from fullrank.models.sequential.model import RecommenderModel
from fullrank.run import Run, require_empty, write_copy


def require_like(start: str, like: str | None) -> None:
    """Raise `UserError` unless `like` is given where, and only where, neighbours are asked for."""
    if (like is not None) != (start == "neighbours"):
        raise UserError(
            "like= names the column that neighbours share: give it with start='neighbours' and only there",
            code="like-not-given",
        )


class LikeItems:
    """For each of `wanted` the stretch of `known` items, in order of their value in `like`, that it is the mean of.

    All known items where `like` is null, where none has the same value, and where the value is missing.
    """

    def __init__(self, catalog: Catalog, known: Int[np.ndarray, "n"], wanted: Int[np.ndarray, "m"], like: str | None):
        codes = np.zeros(catalog.size, np.int64) if like is None else np.asarray(catalog.categorical(like).codes)
        self.order = known[np.argsort(codes[known], kind="stable")]
        ranked = codes[self.order]
        low, high = np.searchsorted(ranked, codes[wanted]), np.searchsorted(ranked, codes[wanted], side="right")
        self.alone = (high == low) | (codes[wanted] == 0)
        """[m], those that are the mean of all known items."""
        self.low, self.high = np.where(self.alone, 0, low), np.where(self.alone, len(known), high)

    def mean(self, table: Float[Tensor, "V *D"]) -> Float[Tensor, "m *D"]:
        """The means of rows of a table."""
        before = torch.zeros(len(self.order) + 1, *table.shape[1:], dtype=torch.float64)
        before[1:] = table.double()[torch.from_numpy(self.order)].cumsum(0)
        low, high = torch.from_numpy(self.low), torch.from_numpy(self.high)
        count = (high - low).view(-1, *[1] * (table.ndim - 1))
        return ((before[high] - before[low]) / count).to(table.dtype)


FALLBACKS = ("neighbours", "mean")
TABLE = "items.embedding.weight"
"""Vectors per item, in every kind of items that has them."""


@public
def fill_unseen(
    run: Run | str | Path,
    out: str | Path,
    *,
    start: Literal["neighbours", "mean"] = "neighbours",
    like: str | None = None,
) -> Run:
    """A copy of `run` in the folder `out` in which items without training events have a vector that was learned.

    A table of item vectors knows nothing of an item that nobody had when it was trained: its row is where it started,
    or where the loss pushed it as a negative. The fallback `neighbours` puts there the mean of the trained items whose
    column `like` holds the same value (of all trained items where none does), `mean` that of all trained items. All
    other rows stay.

    Raises `UserError` for a fallback or a column that does not exist, for a column in which no such item has the value
    of a trained one, for items without a vector of their own (text, codes, features alone: those have vectors without
    events), and where every item has training events, or none has.
    """
    require_like(start, like)
    folder = Path(out)
    require_empty(folder)
    run = run if isinstance(run, Run) else Run.open(run)
    model = run.model()
    own = getattr(model.items, "embedding", None) if isinstance(model, RecommenderModel) else None
    if not isinstance(own, nn.Embedding) or own.num_embeddings != run.catalog.size:
        raise UserError(
            "this run's items have no vectors of their own, so there are none to fill: use the run as it is",
            code="no-item-vectors",
        )
    unseen = run.catalog.popularity == 0
    if unseen.all() or not unseen.any():
        raise UserError(
            f"{int(unseen.sum()):,} of {len(unseen):,} items have no training events: nothing to fill",
            code="nothing-to-fill",
        )
    like_items = LikeItems(run.catalog, np.flatnonzero(~unseen), np.flatnonzero(unseen), like)
    if like is not None and like_items.alone.all():
        raise UserError(
            f"none of the {int(unseen.sum()):,} items without training events shares its {like!r} with a trained one: "
            "name a column with fewer values, or take start='mean'",
            code="no-like-items",
        )
    tensors = run.tensors()
    filled = tensors[TABLE].clone()
    filled[unseen] = like_items.mean(filled)
    tensors[TABLE] = filled
    facts = {
        "start": start,
        "like": like,
        "items": int(unseen.sum()),
        "without_neighbours": int(like_items.alone.sum()),
    }
    return write_copy(run, folder, run.catalog, tensors, {"filled_from": str(run.path), "filled": facts})
