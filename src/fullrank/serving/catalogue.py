"""LiveItems: the items of a served version as they are now: those of its run, and what was said of items since.

A snapshot never changes; `with_documents` and `at` give others. Items that were added stand behind those of the run, in
the order in which they came, and keep their numbers while the process runs, also when they are retired or removed.
Making a snapshot may take a while (new vectors, a table put together), so it is done beside whoever answers.

`ItemGrowth` is the same for all snapshots of a version, `Content` (documents put together with the run's items) for all
from one change to the next; who is expired is the snapshot's own. V items.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from math import inf
from typing import Any

import numpy as np
import polars as pl
from jaxtyping import Bool, Int

from fullrank.core.errors import UserError
from fullrank.core.log import logger
from fullrank.inference.column_filters import column_kinds, filters_key, refused_by
from fullrank.inference.predictor import Predictor
from fullrank.run import Run
from fullrank.serving.card import BANDS
from fullrank.serving.growth import ItemGrowth, Origin
from fullrank.serving.item_documents import TITLE, Reading, changed, read_documents
from fullrank.serving.recent import Recent
from fullrank.serving.titles import TitleSearch

log = logger(__name__)
Documents = Mapping[str, Mapping[str, Any] | None]
"""Item id as text -> all that was said of it; None where that was taken back."""
WARM_TITLES = 200_000
"""Titles that are compared with after a second or two; a million takes 20 seconds and 2 GB, when they are needed."""
MASK_BYTES, LEAST_MASKS, MOST_MASKS = 1 << 26, 4, 512
"""Memory of the masks that a snapshot remembers, and how many they are at least and at most."""


class LiveItems:
    """One snapshot. `LiveItems.of` makes the first; see there for what it is made of.

    `catalog` has the columns as they are now; `base` is the number of items of the run; `ids` are the external ids by
    number, `titles` and `bands` (head, middle or tail by training events) likewise, `numbers` the inverse.
    """

    def __init__(self, growth: ItemGrowth, content: Content, now: float):
        self._growth, self._content = growth, content
        self.catalog, self.ids, self.numbers = content.catalog, content.ids, content.item_numbers
        self.titles = content.titles
        self.base, self.size = growth.catalog.size, content.catalog.size
        self.columns = [name for name in content.values if name != TITLE]
        self.bands: Sequence[str] = content.bands
        expired = content.expires_at <= now
        self.barred = content.retired.copy()
        self.barred[content.expiring[expired]] = True
        self.any_barred = bool(self.barred.any())
        self.next_expiry = float(content.expires_at[~expired].min(initial=inf))
        """Seconds since 1970 at which `at` gives another snapshot."""
        most = max(LEAST_MASKS, min(MOST_MASKS, MASK_BYTES // self.size))
        self._masks: Recent[Bool[np.ndarray, "V"]] = Recent(most)

    @classmethod
    def of(cls, run: Run, predictor: Predictor, documents: Documents, now: float) -> tuple[Predictor, LiveItems]:
        """The items of a run, opened as `predictor`, with what `documents` say, at a time; and who ranks them all.

        Documents that this run cannot take in (a new item without anything like it) are left out, and logged
        (`refused`). The predictor is the one given where no item was added.
        """
        growth = ItemGrowth(run.spec.model, predictor)
        first = cls(growth, Content(growth, Reading({}, {}, growth.types), (), {}, predictor, None), now)
        return first.with_documents(predictor, documents, now)

    def with_documents(
        self, predictor: Predictor, documents: Documents, now: float, *, strict: Collection[str] = ()
    ) -> tuple[Predictor, LiveItems]:
        """The items with these documents in place of those so far, and the predictor that knows them.

        `predictor` is the one that goes with this snapshot; it is given back unless items were added or a vector has
        to be made anew, which is the only work that grows with the model. Documents with keys in `strict` have to be
        right: `UserError` says what is wrong with one.
        """
        growth, old = self._growth, self._content
        reading = read_documents(documents, growth.numbers, growth.own_columns, old.reading)
        origins, lost = origins_of(growth, reading, old)
        refused = {**reading.refused, **lost}
        for key in strict:
            if key in refused:
                raise refused[key]
        for key in refused.keys() - old.refused.keys():
            log.warning("left out what was said of item %s: %s", key, refused[key])
        if origins == old.origins and reading.entries == old.reading.entries and refused.keys() == old.refused.keys():
            return predictor, self.at(now)
        if origins != old.origins:
            predictor = growth.grown(origins)
        return predictor, LiveItems(growth, Content(growth, reading, origins, refused, predictor, old), now)

    def at(self, now: float) -> LiveItems:
        """The items at a later time: this snapshot, unless some have expired since."""
        live: LiveItems = self._content.latest or self
        if now >= live.next_expiry:
            self._content.latest = live = LiveItems(self._growth, self._content, now)
        return live

    def mask(self, filters: Mapping[str, Any]) -> Bool[np.ndarray, "V"]:
        """The items that these filters refuse (`inference/column_filters.py`), and those that are retired or expired.

        The same array for the same filters, so that requests can be grouped by it; not to be written to. Raises
        `UserError` for a column that is not there and for values that it cannot hold.
        """
        if not filters:
            return self.barred
        return self._masks.get(
            filters_key(filters), lambda: refused_by(self._content.values, filters) | self.barred
        )  # fmt: skip

    def has_mask(self, filters: Mapping[str, Any]) -> bool:
        """Whether `mask` remembers these filters, and so costs nothing."""
        return not filters or filters_key(filters) in self._masks

    def search(self, text: str, limit: int) -> Int[np.ndarray, "n"]:
        """Numbers of up to `limit` items for a search box: the item with this id, then by words of titles
        (`titles.py`), then by popularity. The most popular items for no text. Retired ones are among them."""
        text = text.strip()
        if not text:
            return self.popular(limit, np.zeros(self.size, bool))
        exact = self.numbers.get(text)
        first = [exact] if exact >= 0 else []
        parts = [(np.zeros(0, np.int64), np.zeros(0, np.int64))]
        if self._growth.titles is not None:
            renamed = self._content.renamed
            parts.append(self._growth.search.find(text, limit + 1, renamed[renamed < self.base]))
        if self._content.search is not None:
            own, score = self._content.search.find(text, limit + 1)
            parts.append((self._content.renamed[own], score))
        items, scores = (np.concatenate(some) for some in zip(*parts, strict=True))
        items = items[np.lexsort((items, -self.catalog.popularity[items], -scores))]
        return np.concatenate([first, items[items != exact]])[:limit].astype(np.int64)

    def warm(self) -> None:
        """Make now what the first search would make: the words of the titles (seconds for a million).

        Up to `WARM_TITLES` items, also what the first new item with a title alone is compared with.
        """
        if self._growth.titles is not None:
            _ = self._growth.search
            if self.base <= WARM_TITLES:
                self._growth.warm()

    def popular(self, k: int, refused: Bool[np.ndarray, "V"]) -> Int[np.ndarray, "n"]:
        """The up to k items with most training events that are not refused; of equal counts the first."""
        low, found = 0, [np.zeros(0, np.int64)]
        width = 4 * k + 64
        while low < self.size and sum(map(len, found)) < k:
            some = self.popular_order[low : low + width]
            found.append(some[~refused[some]])
            low, width = low + width, 4 * width
        return np.concatenate(found)[:k]

    @cached_property
    def popular_order(self) -> Int[np.ndarray, "V"]:
        """All items by training events, most first, then by number."""
        return np.concatenate([self._growth.popular_order, np.arange(self.base, self.size)])

    def origin(self, item: int | str) -> dict[str, Any]:
        """Where the vector of an item comes from: `from` is like, features or title, `trained` of an item of the run,
        none of an item that the model cannot rank; and the external ids of its neighbours."""
        number = self.numbers.get(item)
        if number < self.base:
            return {"from": "trained" if number >= 0 else "none", "neighbours": []}
        origin = self._content.origins[number - self.base]
        told: dict[str, Any] = {"from": origin.rule, "neighbours": [self.ids[near] for near in origin.neighbours]}
        if origin.rule == "none":
            told["note"] = (
                "this model ranks by counts of training events, and has none of this item: it stands behind all others"
            )
        elif origin.copied is not None:
            same = self.ids[origin.copied]
            told |= {
                "same_as": same,
                "note": f"the model has no vector of its own for this item: it stands where {same!r} stands",
            }
        return told

    @property
    def refused(self) -> dict[str, str]:
        """What is wrong with the documents that were left out, by their keys."""
        return {key: str(error) for key, error in self._content.refused.items()}

    @property
    def filterable(self) -> dict[str, str]:
        """The columns that filters may name, and what they hold."""
        return column_kinds({name: self._content.values[name] for name in self.columns})

    def changed_since(self, old: LiveItems) -> Int[np.ndarray, "n"]:
        """Numbers of the items that have other columns than in an older snapshot of the same version, or are new."""
        numbers = {**old._content.numbers, **self._content.numbers}
        keys = _changed_columns(old._content.reading, self._content.reading)
        known = np.array([numbers[key] for key in keys if key in numbers], np.int64)
        return np.union1d(known, np.arange(old.size, self.size))


class Content:
    """What a snapshot holds but for the time: the same from one expiry to the next."""

    def __init__(
        self,
        growth: ItemGrowth,
        reading: Reading,
        origins: tuple[Origin, ...],
        refused: Mapping[str, UserError],
        predictor: Predictor,
        old: Content | None,
    ):
        """`origins` are of the items that were added, in the order of their numbers."""
        self.reading, self.origins, self.refused = reading, origins, refused
        added = [origin.item for origin in origins]
        base = growth.catalog.size
        size = base + len(added)
        self.item_numbers = growth.numbers.with_added(added)
        self.numbers: dict[str, int] = {}
        """Of all items with documents, by key."""
        self.retired = np.zeros(size, bool)
        renamed, expiring, expires_at = [], [], []
        for key, entry in reading.entries.items():
            number = self.item_numbers.get(entry.id)
            if number < 0:
                continue
            self.numbers[key] = number
            self.retired[number] |= entry.retired
            if entry.expires_at is not None:
                expiring.append(number)
                expires_at.append(entry.expires_at)
            if TITLE in entry.cells or entry.newcomer is not None:
                renamed.append(number)
        self.expiring, self.expires_at = np.array(expiring, np.int64), np.array(expires_at, np.float64)
        """[e] items that expire, and [e] when each does."""
        self.renamed = np.sort(np.array(renamed, np.int64))
        """[r] items that were added, or have another title than in the run."""
        self.values = _columns(growth, reading, self.numbers, size, old)
        """Columns by name, as documents left them."""
        grown = predictor.catalog if origins else growth.catalog
        self.catalog = grown.with_columns(self.values)
        self.ids = [*growth.numbers.ids, *added] if added else growth.numbers.ids
        self.bands = [*growth.bands, *[BANDS[-1]] * len(added)] if added else growth.bands
        self.titles = self.values[TITLE].cast(pl.String) if TITLE in self.values else None
        self.search: TitleSearch | None = None
        """Of `renamed`."""
        if self.titles is not None and renamed:
            order = np.lexsort((self.renamed, -grown.popularity[self.renamed]))
            self.search = TitleSearch(self.titles.gather(self.renamed), order)
        self.latest: Any = None
        """The snapshot of the latest moment that was asked for (`LiveItems.at`)."""


def origins_of(growth: ItemGrowth, reading: Reading, old: Content) -> tuple[tuple[Origin, ...], dict[str, UserError]]:
    """Where the vectors of added items come from, in the order of their numbers; and what is wrong with the others."""
    before = {one.item: one for one in old.origins}
    keys = {one.id: key for key, one in reading.entries.items() if one.newcomer is not None}
    newcomers = {one.id: one.newcomer for one in reading.entries.values() if one.newcomer is not None}
    known = {one.id: one.newcomer for one in old.reading.entries.values() if one.newcomer is not None}
    if newcomers == known and not old.refused:
        return old.origins, {}
    kept = {
        item: before[item]
        for item, one in newcomers.items()
        if item in before
        and known.get(item) == one
        and keys[item] not in old.refused
        and not any(other in newcomers for other in one.like)
    }
    found = growth.origins(newcomers, kept)
    lost = {keys[item]: one for item, one in found.items() if isinstance(one, UserError)}
    numbered = []
    for item in [*before, *(one for one in newcomers if one not in before)]:
        one = found[item]
        if isinstance(one, Origin):
            numbered.append(one)
        elif item in before:
            numbered.append(before[item])  # it has a number, so it keeps the vector that it had
    return tuple(numbered), lost


def _columns(
    growth: ItemGrowth, reading: Reading, numbers: Mapping[str, int], size: int, old: Content | None
) -> dict[str, pl.Series]:
    """All columns with what documents say; those that stay are taken from `old`."""
    cells: dict[str, dict[int, Any]] = {}
    for key, number in numbers.items():
        for name, value in reading.entries[key].cells.items():
            cells.setdefault(name, {})[number] = value
    kept: dict[str, pl.Series] = {}
    if old is not None and len(old.retired) == size:
        touched = set[str]().union(*_changed_columns(old.reading, reading).values())
        kept = {name: column for name, column in old.values.items() if name not in touched}
    columns: dict[str, pl.Series] = {}
    for name in [*growth.values, *(name for name in reading.types if name in cells and name not in growth.values)]:
        if name in kept:
            columns[name] = kept[name]
            continue
        dtype = reading.types[name]
        column = growth.values.get(name, pl.Series(name, [], dtype=dtype))
        if len(column) < size:
            missing = pl.Series(name, [None], dtype=dtype).new_from_index(0, size - len(column))
            column = pl.concat([column, missing])
        columns[name] = changed(column, cells[name]) if name in cells else column
    return columns


def _changed_columns(old: Reading, new: Reading) -> dict[str, set[str]]:
    """Key -> columns, of each item of which other values are said than before."""
    found: dict[str, set[str]] = {}
    for key in old.entries.keys() | new.entries.keys():
        before, after = (reading.entries[key].cells if key in reading.entries else {} for reading in (old, new))
        if before is not after and before != after:
            found[key] = {*before, *after}
    return found
