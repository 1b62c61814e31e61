"""Tasks on one part of a store in preparation: filter, count, drop events outside the k-core, split and write.

Each task knows a folder that all processes see and the number of a part, and nothing of the other
parts; what they know together are sums (`Runner.total`). So tasks may run anywhere, in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from jaxtyping import Bool, Int64

from fullrank.core.jagged import offsets_of, stable_order
from fullrank.core.parquet import read_parquet
from fullrank.core.readers import read_json
from fullrank.data import manifest as manifests
from fullrank.data import values
from fullrank.data.events import feature_files, parts, splits, write
from fullrank.data.events.feature_columns import FeatureCoder
from fullrank.data.events.features import FeatureEncoder, Features
from fullrank.data.events.filters import Prepare, filters
from fullrank.data.events.pieces import Spill, load_events, save_events
from fullrank.data.events.store import Store
from fullrank.data.events.table import Events, JoinedTable, compacted
from fullrank.data.histories import user_keys
from fullrank.data.impressions.fitting import FieldFit
from fullrank.data.values import IdIndex
from fullrank.parallel import Runner

ITEM_IDS, SPILL = "item_ids.parquet", "spill"
KNOWN_USERS, FITTED = "known_users.parquet", "features.json"
"""Files for the tasks: the table of users, and the fitted features."""
Moments = Int64[np.ndarray, "m"]
"""Rising seconds, or a count for each of them."""
NO_USER = 2**62
BINS = 1 << 20
"""Stretches of time in which events are counted, for a share of them that is rounded to four digits."""
WAYS = 1024
"""Moments that a search looks at in one pass over the parts."""


@dataclass(frozen=True)
class Counted:
    """Counts of the events of one or more parts, which add up: no user is in two parts."""

    users: int
    """Users who have events."""
    fewest: int
    """Events of the user who has the fewest; `NO_USER` without users."""
    items: Int64[np.ndarray, "V"]
    """Events of each item."""

    @classmethod
    def of(cls, events: Events) -> Counted:
        users = np.bincount(events.user, minlength=len(events.user_ids))
        users = users[users > 0]
        items = np.bincount(events.item, minlength=len(events.item_ids))
        return cls(len(users), int(users.min(initial=NO_USER)), items)

    def __add__(self, other: Counted) -> Counted:
        return Counted(self.users + other.users, min(self.fewest, other.fewest), self.items + other.items)

    @property
    def events(self) -> int:
        return int(self.items.sum())

    def facts(self) -> dict[str, int]:
        return {"users": self.users, "items": int((self.items > 0).sum()), "events": self.events}


@dataclass(frozen=True)
class Segments:
    """Counts of the events of training, validation and test: of each item, and in each bin of time."""

    items: Int64[np.ndarray, "3 V"]
    bins: Int64[np.ndarray, "3 bins"] | None

    @classmethod
    def of(cls, store: Store, span: Sequence[int] | None) -> Segments:
        """The counts of a part. `span` is the first and the last second of all parts; None without times."""
        segment = splits.event_parts(store.offsets, store.bounds)

        def counted(column: np.ndarray, size: int) -> Int64[np.ndarray, "3 size"]:
            return np.bincount(segment * np.int64(size) + column, minlength=3 * size).reshape(3, size)

        items = counted(np.asarray(store.items), store.num_items)
        if span is None or store.times is None:
            return cls(items, None)
        low, high = span
        width = max((high - low) // BINS, 1)
        return cls(items, counted((np.asarray(store.times) - low) // width, (high - low) // width + 1))

    def __add__(self, other: Segments) -> Segments:
        bins = None if self.bins is None or other.bins is None else self.bins + other.bins
        return Segments(self.items + other.items, bins)

    def later_share(self) -> float | None:
        """The share of all training events that are later than a test event, averaged
        over test events (by bins)."""
        if self.bins is None or not self.bins[2].any():
            return None
        until = np.cumsum(self.bins[0])  # training events up to the bin of a test event
        return round(float(1 - (until * (self.bins[2] / self.bins[2].sum())).sum() / max(int(until[-1]), 1)), 4)


@dataclass(frozen=True)
class PartWork:
    """The tasks of a preparation in parts; a part is a number."""

    work: Path
    """The folder of the parts."""
    scratch: Path
    """The folder of the files that tasks leave for one another."""
    spec: Prepare
    state: dict[str, Any]
    """Facts from reading the table: `columns` with their dtypes, `text_users`, `types`, `span` of the times."""
    until: int | None = None
    """The first second that is left out (`rolling_time`)."""

    @cached_property
    def item_ids(self) -> pl.Series:
        return read_parquet(self.scratch / ITEM_IDS, "the item ids")["item_id"]

    @cached_property
    def features(self) -> FeatureCoder:
        return FeatureCoder(self.spec.features.of_events, self.scratch)

    @cached_property
    def encoder(self) -> FeatureEncoder | None:
        """The features, fitted on all parts."""
        if not self.spec.features.all:
            return None
        return feature_files.read_encoder(self.work / manifests.NAME, read_json(self.scratch / FITTED))

    @cached_property
    def known_users(self) -> tuple[IdIndex, pl.DataFrame] | None:
        """The table of users of all parts, and an index of its rows by id; None without a table."""
        path = self.scratch / KNOWN_USERS
        if not path.is_file():
            return None
        table = read_parquet(path, "the table of users")
        return IdIndex(table["user_id"]), table.drop("user_id")

    def filter(self, number: int) -> np.ndarray:
        """Filter the events of a part and save what is left; returns an array of the
        `Counted` after each filter."""
        events, counted = self._read(number), []
        for _, _, keep in filters(self.spec, self.until):
            events = keep(events)
            counted.append(Counted.of(events))
        save_events(self._folder(number), replace(events, rating=None))
        return np.array(counted, object)  # arrays of two parts add up element by element

    def core(self, number: int, enough: Bool[np.ndarray, "V"], per_user: int) -> Counted:
        """Drop events of items that have not enough, and of users with fewer than `per_user`."""
        events = self._left(number)
        users = np.bincount(events.user, minlength=len(events.user_ids))
        keep = (users >= per_user)[events.user] & enough[events.item]
        left = events if keep.all() else events.take(keep)
        if left is not events:
            save_events(self._folder(number), left)
        return Counted.of(left)

    def times_before(self, number: int, moments: Moments) -> Moments:
        """The number of events of a part before each of the rising moments."""
        times = self._left(number).time
        assert times is not None
        behind = np.bincount(np.searchsorted(moments, times, side="right"), minlength=len(moments) + 1)
        return np.cumsum(behind)[:-1]

    def user_ids(self, number: int) -> pl.Series:
        """The ids of the users of a part who have events left."""
        events = self._left(number)
        return compacted(events.user, events.user_ids)[1]

    def fit(self, number: int, split: Any) -> FieldFit[Features]:
        """The statistics of a part for fitting the features."""
        events, users = self._of_users(number)
        offsets = offsets_of(np.bincount(events.user, minlength=len(users.ids)))
        return write.fit_features(self.spec.features, events, users, offsets, split.bounds(offsets, events.time)[0])

    def write(self, number: int, there: Bool[np.ndarray, "V"], split: Any) -> Segments:
        """Write a part as a store of the items that are `there`, and count its segments."""
        out = self.work / parts.part_folder(number)
        if not (out / manifests.NAME).is_file():  # an earlier preparation, which was killed, may have written it
            events, users = self._of_users(number)
            ids, codes = self.item_ids.filter(there), (np.cumsum(there) - 1).astype(np.int32)
            write.write_store(
                out,
                replace(events, item=codes[events.item], item_ids=ids),
                JoinedTable(ids, pl.DataFrame(), None),
                users,
                self.spec,
                split,
                {"part": number},
                keys=user_keys(users.ids),
                encoder=self.encoder,
            )
        return Segments.of(Store.open(out, verify=False), self.state["span"])

    def _read(self, number: int) -> Events:
        """The events of a part as they were read: users in order of key and id, the
        events of each in order of time."""
        spill, state = Spill(self.scratch / SPILL, 1), self.state
        users, columns = spill.read(number, state["columns"], text=state["text_users"])
        user, user_ids = values.dense(users)
        order = np.argsort(user_keys(user_ids), kind="stable")
        rank = np.empty(len(order), np.int32)  # the inverse of `order`: the new code of each user
        rank[order] = np.arange(len(order), dtype=np.int32)
        key = columns.pop("key", columns.get("time"))  # a key that is the time itself was not written
        features = self.features.columns(columns)
        arrays: dict[str, Any] = {"user": rank[user], **columns}
        events = Events(
            **arrays,
            user_ids=user_ids[order].alias("user_id"),
            item_ids=self.item_ids,
            type_names=tuple(state["types"]),
            features=features,
        )
        return events.take(stable_order(events.user) if key is None else stable_order(events.user, key))

    def _left(self, number: int) -> Events:
        return load_events(self._folder(number), self.item_ids, tuple(self.state["types"]), self.features)

    def _of_users(self, number: int) -> tuple[Events, JoinedTable]:
        """The events that are left of a part, and its users who have any with their
        rows of the table of users."""
        events, known = self._left(number), self.known_users
        user, user_ids = compacted(events.user, events.user_ids)
        frame = pl.DataFrame() if known is None else known[1][known[0].find(user_ids)]
        return replace(events, user=user, user_ids=user_ids), JoinedTable(user_ids, frame, None)

    def _folder(self, number: int) -> Path:
        return self.scratch / SPILL / f"{number:05}-filtered"


def moments_at(ranks: Sequence[int], low: int, high: int, before: Callable[[Moments], Moments]) -> list[int]:
    """The moment of `low` .. `high` at each rank in the order of time: the last one that at most `rank` events precede.

    `before` counts the events before each of rising moments. All ranks are searched at once, by
    splitting the interval that is left of each into `WAYS` ways for one call of it.
    """
    lows, highs = [low] * len(ranks), [high] * len(ranks)
    while wide := [(a, b) for a, b in zip(lows, highs, strict=True) if a < b]:
        tried = sorted({a + 1 + (b - a - 1) * way // (WAYS - 1) for a, b in wide for way in range(WAYS)})
        counts = before(np.array(tried, np.int64))
        for at, rank in enumerate(ranks):
            reached = int(np.searchsorted(counts, rank, side="right"))  # moments tried that at most `rank` precede
            if reached:
                lows[at] = max(lows[at], tried[reached - 1])
            if reached < len(tried):
                highs[at] = min(highs[at], tried[reached] - 1)
    return lows


@dataclass(frozen=True)
class PartTimes:
    """Order statistics of the times of all events that are left, counted in every part (`splits.EventTimes`)."""

    tasks: PartWork
    numbers: range
    runner: Runner
    count: int

    def before(self, moment: int) -> int:
        return int(self._before(np.array([moment]))[0])

    def kth(self, k: int) -> int:
        low, high = self.tasks.state["span"]
        return moments_at([k], low, high, self._before)[0]

    def _before(self, moments: Moments) -> Moments:
        return self.runner.total(partial(self.tasks.times_before, moments=moments), self.numbers)
