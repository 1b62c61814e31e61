"""Which events count: pure functions, events to events. `prepare` writes the counts after each to the manifest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import polars as pl

from fullrank.core.errors import unknown
from fullrank.data.events.table import Events

Duplicates = Literal["keep", "first", "last"]


def of_types(events: Events, types: Sequence[str]) -> Events:
    """Events of these types. Raises `UserError` for a type that no event has. Needs `events.type`."""
    assert events.type is not None
    for name in types:
        if name not in events.type_names:
            raise unknown("event type", name, events.type_names)
    wanted = np.isin(np.array(events.type_names), np.array(types))
    return events.take(wanted[events.type])


def rated(events: Events, least: float) -> Events:
    """Events with a rating of at least `least`. Needs `events.rating`."""
    assert events.rating is not None
    return events.take(events.rating >= least)


def distinct(events: Events, keep: Duplicates) -> Events:
    """One event for each pair of user and item: the earliest (`first`) or the latest (`last`); `keep` keeps all.

    Of pairs at equal times the first (or last) in input order is kept.
    """
    if keep == "keep":
        return events
    pair = pl.Series(events.user.astype(np.int64) * len(events.item_ids) + events.item)
    mask = pair.is_first_distinct() if keep == "first" else pair.is_last_distinct()
    return events.take(mask.to_numpy())


def k_core(events: Events, per_user: int, per_item: int) -> tuple[Events, int]:
    """The largest set of events where each user has at least `per_user` and each item at least `per_item`.

    Users and items below are dropped in turn until none is: the result does not depend on the order. Returns the
    events and the number of rounds that dropped some.
    """
    rounds, alive = 0, np.ones(len(events), bool)
    user, item = events.user, events.item
    while len(user):
        users = np.bincount(user, minlength=len(events.user_ids)) >= per_user
        items = np.bincount(item, minlength=len(events.item_ids)) >= per_item
        keep = users[user] & items[item]
        if keep.all():
            break
        user, item, rounds = user[keep], item[keep], rounds + 1
        alive[alive] = keep
    return (events.take(alive) if rounds else events), rounds
