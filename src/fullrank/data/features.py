"""Features as arrays: what is known of events, of the requests that they answered, and of users, beside the items.

Columns stand in the order of the fields of each kind (`data/events/features.py` declares them). Ids of a field: 0
missing, 1 unknown, 2 and up its values.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float32, Int, Int32

from fullrank.core.jagged import Jagged, Rows
from fullrank.core.parted import Flat

NO_TIME = -(2**63)
"""In place of a time that nobody knows."""


@dataclass(frozen=True)
class Encoded:
    """Some rows; columns in the order of the schema's fields of that kind."""

    categorical: Int32[np.ndarray, "R F"]
    numeric: Float32[np.ndarray, "R X"]
    """NaN where missing."""
    bags: tuple[Jagged, ...]
    """[R rows] ids of each bag and sequence, behind each other."""


@dataclass(frozen=True)
class FeatureTable:
    """The encoded features of events, requests or users, row by row; columns in the order of the fields of a kind."""

    categorical: Int32[Flat, "R F"]
    """Ids."""
    numeric: Float32[Flat, "R X"]
    """NaN where missing."""
    lists: Int32[Flat, "R Y"]
    """Which of the lists of each bag: the same lists come back again and again."""
    bags: tuple[Jagged, ...] = ()
    """The ids of the lists of each bag."""

    @classmethod
    def of(cls, encoded: Encoded) -> FeatureTable:
        """A table of rows that are encoded, each with lists of its own."""
        rows = np.arange(len(encoded.categorical), dtype=np.int32)
        return cls(encoded.categorical, encoded.numeric, np.stack([rows] * len(encoded.bags), 1) if encoded.bags
                   else np.zeros((len(rows), 0), np.int32), encoded.bags)  # fmt: skip

    def some(self, rows: Int[np.ndarray, "n"] | Bool[np.ndarray, "R"]) -> FeatureTable:
        """A table of some of the rows, with the same lists."""
        return replace(self, **{name: getattr(self, name)[rows] for name in ("categorical", "numeric", "lists")})

    def behind(self, other: FeatureTable) -> FeatureTable:
        """The rows of both, those of `other` behind these."""
        bags, lists = [], np.asarray(other.lists).copy()
        for number, (own, more) in enumerate(zip(self.bags, other.bags, strict=True)):
            starts, ends = (np.concatenate([a, b + len(own.values)])
                            for a, b in ((own.starts, more.starts), (own.ends, more.ends)))  # fmt: skip
            bags.append(Jagged(np.concatenate([own.values, more.values]), starts, ends))
            lists[:, number] += len(own)
        ids, numbers = (
            np.concatenate([getattr(self, name), getattr(other, name)]) for name in ("categorical", "numeric")
        )
        return FeatureTable(ids, numbers, np.concatenate([self.lists, lists]), tuple(bags))

    def take(self, rows: Int[np.ndarray, "n"]) -> Encoded:
        """Some of the rows; those that are -1 are missing in every field."""
        missing, at = rows < 0, np.maximum(rows, 0)
        ids, numbers, lists = (one.take(at, axis=0) if len(one) else np.zeros((len(at), one.shape[1]), one.dtype)
                               for one in (self.categorical, self.numeric, self.lists))  # fmt: skip
        ids[missing], numbers[missing] = 0, np.nan
        bags = []
        for number, bag in enumerate(self.bags):
            starts, ends = bag.starts[lists[:, number]], bag.ends[lists[:, number]]
            bags.append(Jagged(bag.values, starts, np.where(missing, starts, ends)))
        return Encoded(ids, numbers, tuple(bags))


@dataclass(frozen=True)
class FeatureRows:
    """A row of a table for each user; -1: nothing is known."""

    table: FeatureTable
    rows: Int[np.ndarray, "U"]

    def take(self, rows: Rows) -> FeatureRows:
        return FeatureRows(self.table, self.rows[rows])


@dataclass(frozen=True)
class HistoryFeatures:
    """What is known beside the items of some histories (`Histories`); None where nothing is."""

    event: FeatureTable | None = None
    """Rows beside the events (`Histories.items.values`)."""
    request: FeatureTable | None = None
    """The request of each event, likewise."""
    user: FeatureRows | None = None
    asked: FeatureRows | None = None
    """The request that is to be answered, of the fields of `request`."""
    asked_at: Int[np.ndarray, "U"] | None = None
    """When it is asked, seconds since 1970, `NO_TIME` for users of whom nobody knows; None where that is all."""

    @classmethod
    def of(
        cls, event: FeatureTable | None, request: FeatureTable | None, user: FeatureRows | None,
        times: Int[Flat, "E"] | None, asked: Int[np.ndarray, "U"],
    ) -> HistoryFeatures | None:  # fmt: skip
        """Those of histories whose requests and `times` to be answered stand at the places `asked`."""
        at = None if times is None else times[asked]
        rows = None if request is None else FeatureRows(request, asked)
        known = any(one is not None for one in (event, request, user, at))
        return cls(event, request, user, rows, at) if known else None

    def of_events(self, rows: Int[np.ndarray, "n"] | Bool[np.ndarray, "E"]) -> HistoryFeatures:
        """The same beside some of the events."""
        event, request = (None if one is None else one.some(rows) for one in (self.event, self.request))
        return replace(self, event=event, request=request)

    def take(self, rows: Rows) -> HistoryFeatures:
        """Those of some of the users."""
        of_users = {
            name: None if (one := getattr(self, name)) is None else one.take(rows) for name in ("user", "asked")
        }
        return replace(self, **of_users, asked_at=None if self.asked_at is None else self.asked_at[rows])
