"""Settings of a preparation (`Prepare`), and the filters that they name: pure functions from events to fewer events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

import numpy as np
import polars as pl
from pydantic import Field, field_validator

from fullrank.core.checks import check_whole
from fullrank.core.constraints import MOST_COUNT, CountFromZero, Value, needs
from fullrank.core.errors import UserError, unknown
from fullrank.core.files import JsonObject
from fullrank.core.spec import Spec, later
from fullrank.data.events import splits
from fullrank.data.events.features import Features
from fullrank.data.events.table import Columns, Events

Missing = Literal["error", "drop"]
Duplicates = Literal["keep", "first", "last"]


class Prepare(Spec):
    """Settings by which events become a store. Filters run in the order of the fields."""

    columns: Columns = Columns()
    """Names of the event table's columns."""
    missing: Missing = later("error")
    """Rows without a user, an item or a time: an error, or dropped."""
    event_types: Annotated[tuple[str, ...] | None, needs("columns.type")] = Field(None, min_length=1)
    """Keep events of these types (needs `columns.type`); None keeps all."""
    min_rating: Annotated[Value | None, needs("columns.rating")] = None
    """Keep events rated at least this (needs `columns.rating`); None keeps all."""
    duplicates: Duplicates = "keep"
    """Events of one user and item that are kept: all (keep), the earliest (first), or the latest (last)."""
    k_core: CountFromZero | tuple[CountFromZero, CountFromZero] = 0
    """Minimum events per user and per item, to a fixed point; a pair sets them apart; 0 keeps all."""
    split: splits.Split = Field(default_factory=splits.LeaveOneOut)
    """Which events are targets: leave_one_out, global_time or rolling_time (no leak)."""
    features: Features = later(Features())
    """Columns of the events and of the table of users that a model may read, by when they are known."""

    @field_validator("event_types", mode="before")
    @classmethod
    def _names(cls, types: Any) -> Any:
        types = [types] if isinstance(types, (str, int)) else types
        return tuple(map(str, types)) if isinstance(types, (list, tuple)) else types

    @field_validator("k_core", mode="before")
    @classmethod
    def _counts(cls, counts: Any) -> Any:
        for number in counts if isinstance(counts, list | tuple) else [counts]:
            if type(number) is int:
                check_whole("k_core", number, 0, MOST_COUNT)
        return counts

    @property
    def columns_read(self) -> Columns:
        """The columns that are read: that of ratings only where `min_rating` is set."""
        return self.columns if self.min_rating is not None else self.columns.model_copy(update={"rating": None})

    @property
    def per_user_and_item(self) -> tuple[int, int]:
        """Fewest events of a user, and of an item (`k_core`)."""
        return (self.k_core, self.k_core) if isinstance(self.k_core, int) else self.k_core


Say = Callable[[str, JsonObject], None]
"""A function that reports a step, and the counts after it."""
Filter = tuple[str, JsonObject, Callable[[Events], Events]]
"""A filter: its name, facts for the manifest, and function."""


def filters(spec: Prepare, until: int | None) -> list[Filter]:
    """The filters that look at an event, or at one user, in order.

    `until` is the first second that `rolling_time` leaves out. It comes first: the
    others would move the windows.
    """
    chosen: list[Filter] = [("read", {}, lambda events: events)]
    if isinstance(spec.split, splits.RollingTime) and until is not None:
        facts = {"days": spec.split.days, "fold": spec.split.fold, "until": until}
        chosen.append(("rolling_time", facts, lambda events: events.take(np.asarray(events.time) < until)))
    if (types := spec.event_types) is not None:
        chosen.append(("event_types", {"types": list(types)}, lambda events: of_types(events, types)))
    if (least := spec.min_rating) is not None:
        chosen.append(("min_rating", {"least": least}, lambda events: rated(events, least)))
    if spec.duplicates != "keep":
        keep = spec.duplicates
        chosen.append(("duplicates", {"keep": keep}, lambda events: without_duplicates(events, keep)))
    return chosen


def note_filter(steps: list[JsonObject], say: Say, name: str, facts: JsonObject, counts: dict[str, int]) -> None:
    """Add a filter to the steps for the manifest, with the counts after it. Raises `UserError`
    where no event is left."""
    steps.append({"filter": name, **facts, **counts})
    say(name, steps[-1])
    if not counts["events"]:
        setting = ", ".join(f"{key}={fact}" for key, fact in facts.items() if key != "rounds")
        raise UserError(
            f"{name} ({setting}) leaves none of {steps[-2]['events']:,} events; loosen it", code="no-events-left"
        )


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


def without_duplicates(events: Events, keep: Literal["first", "last"]) -> Events:
    """One event for each pair of user and item: the earliest (`first`) or the latest (`last`).

    Of pairs at equal times the first (or last) in input order is kept.
    """
    # One number for each pair: users x items fit 63 bits, since both are codes of 31.
    pair = pl.Series(events.user.astype(np.int64) * len(events.item_ids) + events.item)
    mask = pair.is_first_distinct() if keep == "first" else pair.is_last_distinct()
    return events.take(mask.to_numpy())


def k_core(events: Events, per_user: int, per_item: int) -> tuple[Events, int]:
    """The largest set of events where each user has at least `per_user` and each item at least `per_item`.

    Users and items below are dropped in turn until none is: the result does not depend on the
    order. Returns the events and the number of rounds that dropped some.
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
