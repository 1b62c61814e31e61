"""LiveItems: the items of a served version as they are now: those of its run, and what was said of items since.

A snapshot never changes; `with_documents` and `at` give others. Items that were added stand behind those of the run, in
the order in which they came, and keep their numbers while the process runs, also when they are retired or removed.
Making a snapshot may take a while (new vectors, a table put together), so it is done beside whoever answers. V items.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from typing import Any

import numpy as np
import polars as pl
from jaxtyping import Bool, Int

from fullrank.core.errors import UserError
from fullrank.core.log import logger
from fullrank.data.events.catalog import Catalog
from fullrank.evaluation.slices import popularity_bands
from fullrank.inference.predictor import Predictor
from fullrank.run import Run
from fullrank.serving.columns import canonical, cell, changed, described, refused_by, type_of
from fullrank.serving.growth import Growth, Origin, number_of
from fullrank.serving.item_documents import TITLE, Reading, read_documents
from fullrank.serving.title_search import TitleSearch

log = logger(__name__)
Documents = Mapping[str, Mapping[str, Any] | None]
"""Item id as text -> all that was said of it; None where that was taken back."""
BANDS = ("head", "middle", "tail")
MASK_BYTES, LEAST_MASKS, MOST_MASKS = 1 << 26, 4, 512
"""Memory of the masks that a snapshot remembers, and how many they are at least and at most."""


class LiveItems:
    """One snapshot. `LiveItems.of` makes the first; see there for what it is made of.

    `catalog` has the id map, and the columns as they are now; `base` is the number of items of the run; `ids` are the
    external ids by number, `titles` and `bands` (head, middle or tail by training events) likewise.
    """

    def __init__(self, shared: _Shared, content: _Content, now: float):
        self._shared, self._content = shared, content
        self.catalog, self.ids, self.titles = content.catalog, content.ids, content.titles
        self.base, self.size = shared.growth.catalog.size, content.catalog.size
        self.columns = [name for name in content.values if name != TITLE]
        self.bands: Sequence[str] = content.bands
        expired = content.expires_at <= now
        self.barred = content.retired.copy()
        self.barred[content.expiring[expired]] = True
        self.barred.flags.writeable = False
        self.any_barred = bool(self.barred.any())
        self.next_expiry = float(content.expires_at[~expired].min(initial=inf))
        """Seconds since 1970 at which `at` gives another snapshot."""
        self._masks: OrderedDict[str, Bool[np.ndarray, "V"]] = OrderedDict()
        self._lock = threading.Lock()

    @classmethod
    def of(
        cls,
        run: Run,
        predictor: Predictor,
        documents: Documents,
        now: float,
        *,
        defaults: Mapping[str, Any] | None = None,
    ) -> tuple[Predictor, LiveItems]:
        """The items of a run, opened as `predictor`, with what `documents` say, at a time; and who ranks them all.

        `defaults` are values of columns of items that have none, such as {"in_stock": True}. Documents that this run
        cannot take in (a new item without anything like it) are left out, and logged (`refused`). The predictor is
        the one given where no item was added.
        Raises `UserError` for a default that does not fit its column.
        """
        growth = Growth(run.spec.model, predictor)
        shared = _Shared(growth, dict(defaults or {}))
        empty = Reading({}, {}, shared.types)
        first = cls(shared, _Content.of(shared, empty, (), {}, predictor, None), now)
        return first.with_documents(predictor, documents, now)

    def with_documents(
        self, predictor: Predictor, documents: Documents, now: float, *, strict: Collection[str] = ()
    ) -> tuple[Predictor, LiveItems]:
        """The items with these documents in place of those so far, and the predictor that knows them.

        `predictor` is the one that goes with this snapshot; it is given back unless items were added or a vector has
        to be made anew, which is the only work that grows with the model. Documents with keys in `strict` have to be
        right: `UserError` says what is wrong with one.
        """
        shared, old = self._shared, self._content
        reading = read_documents(documents, shared.growth.catalog, shared.growth.own_columns, old.reading)
        origins, lost = _origins(shared.growth, reading, old)
        refused = {**reading.refused, **lost}
        for key in strict:
            if key in refused:
                raise refused[key]
        for key in refused.keys() - old.refused.keys():
            log.warning("left out what was said of item %s: %s", key, refused[key])
        if origins == old.origins and reading.entries == old.reading.entries and refused.keys() == old.refused.keys():
            return predictor, self.at(now)
        if origins != old.origins:
            predictor = shared.growth.grown(origins)
        return predictor, LiveItems(shared, _Content.of(shared, reading, origins, refused, predictor, old), now)

    def at(self, now: float) -> LiveItems:
        """The items at a later time: this snapshot, unless some have expired since."""
        latest = self._content.latest
        live = latest.get("live", self)
        if now >= live.next_expiry:
            latest["live"] = live = LiveItems(self._shared, self._content, now)
        return live

    def mask(self, filters: Mapping[str, Any]) -> Bool[np.ndarray, "V"]:
        """The items that these filters refuse (`columns.py`), and those that are retired or expired.

        The same array for the same filters, so that requests can be grouped by it; not to be written to. Raises
        `UserError` for a column that is not there and for values that it cannot hold.
        """
        if not filters:
            return self.barred
        key = json.dumps({name: canonical(filters[name]) for name in sorted(filters)}, default=repr)
        with self._lock:
            found = self._masks.get(key)
            if found is not None:
                self._masks.move_to_end(key)
                return found
        made = refused_by(self._content.values, filters) | self.barred
        made.flags.writeable = False
        with self._lock:
            found = self._masks.setdefault(key, made)  # of two threads that made it the first one's is kept
            while len(self._masks) > max(LEAST_MASKS, min(MOST_MASKS, MASK_BYTES // self.size)):
                self._masks.popitem(last=False)
        return found

    def search(self, text: str, limit: int) -> Int[np.ndarray, "n"]:
        """Numbers of up to `limit` items for a search box: the item with this id, then by words of titles
        (`title_search.py`), then by popularity. The most popular items for no text. Retired ones are among them."""
        text = text.strip()
        if not text:
            return self.popular(limit, np.zeros(self.size, bool))
        exact = number_of(self.catalog, text)
        first = [exact] if exact >= 0 else []
        parts = [(np.zeros(0, np.int64), np.zeros(0, np.int64))]
        if self._shared.titles is not None:
            renamed = self._content.renamed
            parts.append(self._shared.search.find(text, limit + 1, renamed[renamed < self.base]))
        if self._content.search is not None:
            own, score = self._content.search.find(text, limit + 1)
            parts.append((self._content.renamed[own], score))
        items, scores = (np.concatenate(some) for some in zip(*parts, strict=True))
        items = items[np.lexsort((items, -self.catalog.popularity[items], -scores))]
        return np.concatenate([first, items[items != exact]])[:limit].astype(np.int64)

    def warm(self) -> None:
        """Make now what the first search would make (seconds for a million titles)."""
        if self._shared.titles is not None:
            _ = self._shared.search

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
        return np.concatenate([self._shared.popular_order, np.arange(self.base, self.size)])

    def origin(self, item: int | str) -> dict[str, Any]:
        """Where the vector of an item comes from: `from` is like, features or title, `trained` of an item of the run,
        none of an item that the model cannot rank; and the external ids of its neighbours."""
        number = number_of(self.catalog, item)
        if number < self.base:
            return {"from": "trained" if number >= 0 else "none", "neighbours": []}
        one = self._content.origins[number - self.base]
        found: dict[str, Any] = {"from": one.rule, "neighbours": [self.ids[near] for near in one.neighbours]}
        if one.copied is not None:
            found["same_as"] = self.ids[one.copied]
        if note := _note(one, self.ids):
            found["note"] = note
        return found

    @property
    def refused(self) -> dict[str, str]:
        """What is wrong with the documents that were left out, by their keys."""
        return {key: str(error) for key, error in self._content.refused.items()}

    @property
    def filterable(self) -> dict[str, str]:
        """The columns that filters may name, and what they hold."""
        return described({name: self._content.values[name] for name in self.columns})

    def changed_since(self, old: LiveItems) -> Int[np.ndarray, "n"]:
        """Numbers of the items that have other columns than in an older snapshot of the same version, or are new."""
        before, after = old._content.reading.entries, self._content.reading.entries
        keys = [key for key, one in after.items() if key not in before or before[key].cells != one.cells]
        numbers = self._content.numbers
        gone = [numbers[key] for key in before.keys() - after.keys() if key in numbers]
        return np.unique(np.array([*gone, *(numbers[key] for key in keys)], np.int64))


@dataclass
class _Shared:
    """What all snapshots of a version have in common."""

    growth: Growth
    defaults: Mapping[str, Any]
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        catalog, own = self.growth.catalog, self.growth.own_columns
        self.plain = {name: catalog.frame[name] for name in catalog.columns if name not in own}
        for name, value in self.defaults.items():
            if name not in self.plain:
                dtype = type_of(name, value)
                if dtype is None or isinstance(value, list) or name in own or name == TITLE:
                    raise UserError(
                        f"the default {name}={value!r} has to be a text, a number, true or false of a column of yours",
                        code="wrong-default",
                    )
                self.plain[name] = pl.Series(name, [None], dtype=dtype).new_from_index(0, catalog.size)
            cell(name, value, self.plain[name].dtype)
        self.values = {name: self.filled(name, column) for name, column in self.plain.items()}
        self.types = {name: column.dtype for name, column in self.plain.items()}
        self.types.setdefault(TITLE, pl.String())
        self.titles = catalog.titles
        self.ids: list[Any] = catalog.ids.to_list()
        self.bands = np.array(BANDS, object)[popularity_bands(catalog.popularity)].tolist()
        self.popular_order = np.argsort(-catalog.popularity, kind="stable")
        self._search: TitleSearch | None = None

    def filled(self, name: str, column: pl.Series) -> pl.Series:
        """A column with its default in place of nulls."""
        return column.fill_null(self.defaults[name]) if name in self.defaults else column

    @property
    def search(self) -> TitleSearch:
        """The titles of the run's items, indexed once."""
        with self._lock:
            if self._search is None:
                assert self.titles is not None
                self._search = TitleSearch(self.titles, self.popular_order)
            return self._search


@dataclass(frozen=True)
class _Content:
    """What a snapshot holds but for the time: the same from one expiry to the next."""

    reading: Reading
    origins: tuple[Origin, ...]
    """Of the items that were added, in the order of their numbers."""
    refused: Mapping[str, UserError]
    numbers: Mapping[str, int]
    """Of all items with documents, by key."""
    plain: Mapping[str, pl.Series]
    """Columns as documents left them, without defaults."""
    values: Mapping[str, pl.Series]
    catalog: Catalog
    ids: list[Any]
    titles: pl.Series | None
    bands: list[str]
    retired: Bool[np.ndarray, "V"]
    expiring: Int[np.ndarray, "e"]
    expires_at: np.ndarray
    """[e] when each of `expiring` does."""
    renamed: Int[np.ndarray, "r"]
    """Items that were added, or have another title than in the run."""
    search: TitleSearch | None
    """Of those."""
    latest: dict[str, LiveItems]
    """The snapshot of the latest moment that was asked for."""

    @staticmethod
    def of(
        shared: _Shared,
        reading: Reading,
        origins: tuple[Origin, ...],
        refused: Mapping[str, UserError],
        predictor: Predictor,
        old: _Content | None,
    ) -> _Content:
        base, size = shared.growth.catalog.size, shared.growth.catalog.size + len(origins)
        places = {one.item: base + place for place, one in enumerate(origins)}
        numbers = {
            key: number
            for key, one in reading.entries.items()
            if (number := one.number if one.newcomer is None else places.get(one.id, -1)) >= 0
        }
        plain, values = _columns(shared, reading, numbers, size, old)
        grown = predictor.catalog if origins else shared.growth.catalog
        entries = [(numbers[key], one) for key, one in reading.entries.items() if key in numbers]
        retired = np.zeros(size, bool)
        retired[[number for number, one in entries if one.retired]] = True
        timed = [(number, one.expires_at) for number, one in entries if one.expires_at is not None]
        titles = values[TITLE].cast(pl.String) if TITLE in values else None
        renamed = np.array(
            sorted(number for number, one in entries if TITLE in one.cells or one.newcomer is not None), np.int64
        )
        return _Content(
            reading, origins, refused, numbers, plain, values, grown.with_columns(values),
            shared.ids if not origins else [*shared.ids, *(one.item for one in origins)],
            titles,
            shared.bands if not origins else [*shared.bands, *[BANDS[-1]] * len(origins)],
            retired,
            np.array([number for number, _ in timed], np.int64),
            np.array([moment for _, moment in timed], np.float64),
            renamed,
            None if titles is None or not len(renamed) else _search(titles, renamed, grown),
            {},
        )  # fmt: skip


def _origins(growth: Growth, reading: Reading, old: _Content) -> tuple[tuple[Origin, ...], dict[str, UserError]]:
    """Where the vectors of added items come from, in the order of their numbers; and what is wrong with the others."""
    before = {one.item: one for one in old.origins}
    keys = {one.id: key for key, one in reading.entries.items() if one.newcomer is not None}
    newcomers = {one.id: one.newcomer for one in reading.entries.values() if one.newcomer is not None}
    known = {one.id: one.newcomer for one in old.reading.entries.values() if one.newcomer is not None}
    if newcomers == known and not old.refused:
        return old.origins, {}
    found, lost = [], {}
    for item, one in growth.origins(newcomers).items():
        if isinstance(one, UserError):
            lost[keys[item]] = one
            if item not in before:
                continue
            one = before[item]  # it has a number, so it keeps the vector that it had
        found.append(one)
    order = {item: place for place, item in enumerate([*before, *(key for key in newcomers if key not in before)])}
    return tuple(sorted(found, key=lambda one: order[one.item])), lost


def _columns(
    shared: _Shared, reading: Reading, numbers: Mapping[str, int], size: int, old: _Content | None
) -> tuple[dict[str, pl.Series], dict[str, pl.Series]]:
    """All columns with what documents say, without and with defaults; those that stay are taken from `old`."""
    cells: dict[str, dict[int, Any]] = {}
    for key, number in numbers.items():
        for name, value in reading.entries[key].cells.items():
            cells.setdefault(name, {})[number] = value
    names = [*shared.plain, *(name for name in reading.types if name not in shared.plain and name in cells)]
    same = _unchanged(reading, old) if old is not None and len(old.retired) == size else frozenset()
    plain, values = {}, {}
    for name in names:
        if old is not None and name in same and name in old.plain:
            plain[name], values[name] = old.plain[name], old.values[name]
            continue
        column, first = shared.plain.get(name), name in shared.plain
        if column is None:
            column = pl.Series(name, [None], dtype=reading.types[name]).new_from_index(0, size)
        elif len(column) < size:
            rest = pl.Series(name, [None], dtype=column.dtype).new_from_index(0, size - len(column))
            column = pl.concat([column, rest])
        plain[name] = changed(column, cells[name]) if name in cells else column
        values[name] = shared.values[name] if first and plain[name] is shared.plain[name] else shared.filled(
            name, plain[name]
        )  # fmt: skip
    return plain, values


def _unchanged(reading: Reading, old: _Content) -> frozenset[str]:
    """The columns in which no item has another value than in the older content."""
    before, after = old.reading.entries, reading.entries
    touched: set[str] = set()
    for key in before.keys() | after.keys():
        one, other = before.get(key), after.get(key)
        if one is not other:
            touched |= set(one.cells if one is not None else ()) | set(other.cells if other is not None else ())
    return frozenset(name for name in reading.types if name not in touched)


def _search(titles: pl.Series, some: Int[np.ndarray, "r"], catalog: Catalog) -> TitleSearch:
    return TitleSearch(titles.gather(some), np.lexsort((some, -catalog.popularity[some])))


def _note(one: Origin, ids: Sequence[Any]) -> str | None:
    """What an answer says of an item beside its neighbours."""
    if one.rule == "none":
        return "this model ranks by counts of training events, and has none of this item: it stands behind all others"
    if one.copied is not None:
        return f"the model has no vector of its own for this item: it stands where {ids[one.copied]!r} stands"
    return None
