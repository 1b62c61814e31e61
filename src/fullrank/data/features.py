"""Features as arrays: of events, of the requests that they answered, and of users, beside the items.

Columns stand in the order of the fields of each kind (`data/events/features.py` declares them). Ids
of a field: 0 missing, 1 unknown, 2 and up its values.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float32, Int, Int32

from fullrank.core.jagged import Jagged, Rows
from fullrank.core.parted import Flat

NO_TIME = -(2**63)
"""Stands for an unknown time."""


@dataclass(frozen=True)
class Encoded:
    """Encoded rows; columns in the order of the schema's fields of that kind."""

    categorical: Int32[np.ndarray, "R F"]
    numeric: Float32[np.ndarray, "R X"]
    """NaN where missing."""
    bags: tuple[Jagged, ...]
    """[R rows] ids of each bag, then of each sequence."""


@dataclass(frozen=True)
class FeatureTable:
    """The encoded features of events, requests or users, row by row; columns in the order of the fields of a kind."""

    categorical: Int32[Flat, "R F"]
    """Ids of the categorical fields."""
    numeric: Float32[Flat, "R X"]
    """NaN where missing."""
    lists: Int32[Flat, "R Y"]
    """The number of the row's list in each bag: rows share lists, since the same ones come back again and again."""
    bags: tuple[Jagged, ...] = ()
    """The ids of the lists of each bag."""

    @classmethod
    def of(cls, encoded: Encoded) -> FeatureTable:
        """A table of encoded rows, each with lists of its own."""
        rows = np.arange(len(encoded.categorical), dtype=np.int32)
        lists = np.repeat(rows[:, None], len(encoded.bags), axis=1)
        return cls(encoded.categorical, encoded.numeric, lists, encoded.bags)

    def select(self, rows: Int[np.ndarray, "n"] | Bool[np.ndarray, "R"]) -> FeatureTable:
        """Select rows, with the same lists."""
        return replace(self, **{name: getattr(self, name)[rows] for name in ("categorical", "numeric", "lists")})

    def behind(self, other: FeatureTable) -> FeatureTable:
        """The rows of both tables, those of `other` behind these."""
        bags, lists = [], np.asarray(other.lists).copy()
        for number, (bag, more) in enumerate(zip(self.bags, other.bags, strict=True)):
            size = len(bag.values)  # other's values and lists move up behind these
            starts = np.concatenate([bag.starts, more.starts + size])
            ends = np.concatenate([bag.ends, more.ends + size])
            bags.append(Jagged(np.concatenate([bag.values, more.values]), starts, ends))
            lists[:, number] += len(bag)
        ids, numbers = (
            np.concatenate([getattr(self, name), getattr(other, name)]) for name in ("categorical", "numeric")
        )
        return FeatureTable(ids, numbers, np.concatenate([self.lists, lists]), tuple(bags))

    def take(self, rows: Int[np.ndarray, "n"]) -> Encoded:
        """Encoded rows by number; a row -1 is missing in every field."""
        missing, at = rows < 0, np.maximum(rows, 0)
        ids, numbers, lists = (
            array.take(at, axis=0) if len(array) else np.zeros((len(at), array.shape[1]), array.dtype)
            for array in (self.categorical, self.numeric, self.lists)
        )
        ids[missing], numbers[missing] = 0, np.nan
        bags = []
        for number, bag in enumerate(self.bags):
            starts, ends = bag.starts[lists[:, number]], bag.ends[lists[:, number]]
            bags.append(Jagged(bag.values, starts, np.where(missing, starts, ends)))
        return Encoded(ids, numbers, tuple(bags))


@dataclass(frozen=True)
class FeatureRows:
    """A row of a table for each user; -1 for a user of whom nothing is known."""

    table: FeatureTable
    rows: Int[np.ndarray, "U"]

    def take(self, rows: Rows) -> FeatureRows:
        return FeatureRows(self.table, self.rows[rows])


@dataclass(frozen=True)
class HistoryFeatures:
    """Features beside the items of histories (`Histories`); None where there are none."""

    event: FeatureTable | None = None
    """Rows beside the events (`Histories.items.values`)."""
    request: FeatureTable | None = None
    """The request of each event, likewise."""
    user: FeatureRows | None = None
    asked: FeatureRows | None = None
    """The request to be answered, with the fields of `request`."""
    asked_at: Int[np.ndarray, "U"] | None = None
    """The time of that request in seconds since 1970, `NO_TIME` where a user's is unknown; None where all are."""

    @classmethod
    def of(
        cls,
        event: FeatureTable | None,
        request: FeatureTable | None,
        user: FeatureRows | None,
        times: Int[Flat, "E"] | None,
        answers: Int[np.ndarray, "U"],
    ) -> HistoryFeatures | None:
        """Features of histories, each followed by the event at its position of `answers`, whose request is asked.

        None where all tables and `times` are None.
        """
        if all(part is None for part in (event, request, user, times)):
            return None
        asked_at = None if times is None else times[answers]
        return cls(event, request, user, None if request is None else FeatureRows(request, answers), asked_at)

    def of_events(self, rows: Int[np.ndarray, "n"] | Bool[np.ndarray, "E"]) -> HistoryFeatures:
        """Select the events, by number or by mask."""
        event, request = (None if table is None else table.select(rows) for table in (self.event, self.request))
        return replace(self, event=event, request=request)

    def take(self, rows: Rows) -> HistoryFeatures:
        """Select users."""
        user, asked = (None if features is None else features.take(rows) for features in (self.user, self.asked))
        return replace(self, user=user, asked=asked, asked_at=None if self.asked_at is None else self.asked_at[rows])
