"""One user: how much attention each of the last events gets, and which of them matter (FAIR, Figure 1 and Table 4).

For any model with attention weights, so that two can be read side by side: of each layer, the mean over its heads of
the share that the last place gives to each event (`focus.last_shares`, signed). Without a user, `telling` picks one in
whose history relevant events and noise are both plenty; that choice reads the data alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
import torch
from jaxtyping import Bool, Float, Int

from fullrank.analysis import Row, left_out, row
from fullrank.analysis.focus import last_shares, recent
from fullrank.analysis.reading import Sample, readings, sample, weights_of
from fullrank.analysis.relevance import LAST, Relevance
from fullrank.core.errors import UserError
from fullrank.data.batch import Model
from fullrank.data.events.store import Store

TRIED = 256
"""Users of the sample among whom `telling` chooses."""


@dataclass(frozen=True)
class Case:
    """What one model's attention did with one history."""

    user: int
    """Row of the store's users."""
    target: int
    """Item id of what was chosen next."""
    items: Int[np.ndarray, "n"]
    """Item ids of the last events, oldest first."""
    relevant: Bool[np.ndarray, "n"]
    """Which of them are relevant to the target; the others are noise."""
    shares: Float[np.ndarray, "L n"]
    """Of each layer, mean over heads; a negative share is subtracted."""
    name: str | None = None
    """The user's external id, where it was looked up."""


def case(model: Model, store: Store, user: int, *, split: str = "test", relevance: Relevance | None = None) -> Case:
    """One user's case. Raises `UserError` where the user has no target in the split or the model shows no weights."""
    whole = store.eval_set(split)
    one = whole.take(whole.users == user)
    if not len(one):
        raise UserError(f"user number {user} of {store.path} has no history with a target in the split {split!r}")
    target = int(one.next_items[0])
    for reading in readings(model, Sample(one, store.catalog.popularity)):
        if not reading.attended:
            break
        window = recent(reading.attended[0].batch)
        items = reading.attended[0].batch.items[window].cpu().numpy().astype(np.int64)
        layers = []
        with torch.no_grad():
            for attended in reading.attended:
                ((_, batch, weights),) = weights_of(attended)
                shown = window[:, : weights.shape[-1]]
                layers.append(last_shares(weights, batch, shown).mean(1)[shown].cpu().numpy())
        marks = (relevance or Relevance(store))(items, np.full(len(items), target))
        return Case(user, target, items, marks, np.stack(layers).astype(np.float64))
    raise UserError("the model has no attention that shows its weights; ask one with a transformer encoder")


def case_of(
    model: Model, store: Store, user: Any = None, *, split: str = "test", vectors: np.ndarray | None = None
) -> Case:
    """The case of a user by external id, or of the one that tells most. Raises `UserError` for a user not there."""
    relevance = Relevance(store, vectors)
    if user is None:
        place = telling(store, sample(store, split, TRIED), relevance)
    else:
        (found,) = np.nonzero((store.user_ids.cast(pl.String) == str(user)).to_numpy())
        if not len(found):
            raise UserError(f"{store.path} has no user {str(user)!r}; give an id as it stands in the events")
        place = int(found[0])
    return replace(case(model, store, place, split=split, relevance=relevance), name=str(store.user_ids[place]))


def telling(store: Store, some: Sample, relevance: Relevance) -> int:
    """Row of the user, among the first of the sample, whose last events have most of both kinds."""
    tried = some.first(TRIED)
    best, chosen = -1, int(tried.users[0])
    for user, items, target in zip(tried.users, tried.histories.items.last(LAST), tried.next_items, strict=True):
        marks = relevance(items, np.full(len(items), target))
        fewer = int(min(marks.sum(), (~marks).sum()))
        if fewer > best:
            best, chosen = fewer, int(user)
    return chosen


def case_rows(model: Model, store: Store, some: Sample, split: str, relevance: Relevance) -> list[Row]:
    """The case of the user that tells most. `index` counts events from the end, 1 the last."""
    name = "case"
    try:
        found = case(model, store, telling(store, some, relevance), split=split, relevance=relevance)
    except UserError as error:
        return [left_out(name, str(error).partition(";")[0].replace("the model has", "it has"))]
    rows = [row(name, "user", found.user), row(name, "target", found.target)]
    for place, (item, mark) in enumerate(zip(found.items[::-1].tolist(), found.relevant[::-1], strict=True), 1):
        rows.append(row(name, "item", item, index=place, label="relevant" if mark else "noise"))
    for layer, shares in enumerate(found.shares):
        rows += [row(name, "share", float(s), layer=layer, index=n) for n, s in enumerate(shares[::-1], 1)]
    return rows
