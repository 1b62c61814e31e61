"""What snapshots of live items hold: documents put together with a run's items, once for each change.

`Shared` is the same for all snapshots of a version, `Content` for all from one change to the next; who is expired is
the snapshot's own (`catalogue.py`). V items.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl
from jaxtyping import Bool, Float64, Int

from fullrank.core.errors import UserError
from fullrank.data.events.catalog import Catalog
from fullrank.evaluation.slices import popularity_bands
from fullrank.inference.predictor import Predictor
from fullrank.serving.columns import cell, changed, type_of
from fullrank.serving.growth import ItemGrowth
from fullrank.serving.item_documents import TITLE, Reading
from fullrank.serving.origins import Origin
from fullrank.serving.title_search import TitleSearch

BANDS = ("head", "middle", "tail")
"""Popularity of an item: the third of the training events in which its share begins (`popularity_bands`)."""


@dataclass
class Shared:
    """What all snapshots of a version have in common."""

    growth: ItemGrowth
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
class Content:
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
    expires_at: Float64[np.ndarray, "e"]
    """[e] when each of `expiring` does."""
    renamed: Int[np.ndarray, "r"]
    """Items that were added, or have another title than in the run."""
    search: TitleSearch | None
    """Of those."""
    latest: dict[str, Any]
    """The snapshot of the latest moment that was asked for (`LiveItems.at`)."""

    @staticmethod
    def of(
        shared: Shared,
        reading: Reading,
        origins: tuple[Origin, ...],
        refused: Mapping[str, UserError],
        predictor: Predictor,
        old: Content | None,
    ) -> Content:
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
        return Content(
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


def origins_of(growth: ItemGrowth, reading: Reading, old: Content) -> tuple[tuple[Origin, ...], dict[str, UserError]]:
    """Where the vectors of added items come from, in the order of their numbers; and what is wrong with the others."""
    before = {one.item: one for one in old.origins}
    keys = {one.id: key for key, one in reading.entries.items() if one.newcomer is not None}
    newcomers = {one.id: one.newcomer for one in reading.entries.values() if one.newcomer is not None}
    known = {one.id: one.newcomer for one in old.reading.entries.values() if one.newcomer is not None}
    if newcomers == known and not old.refused:
        return old.origins, {}
    found, lost = [], {}
    kept = {item: before[item] for item, one in newcomers.items() if item in before and known.get(item) == one}
    origins = growth.origins(newcomers, kept)
    for item, one in origins.items():
        if isinstance(one, UserError):
            lost[keys[item]] = one
            if item not in before:
                continue
            one = before[item]  # it has a number, so it keeps the vector that it had
        found.append(one)
    order = {item: place for place, item in enumerate([*before, *(key for key in newcomers if key not in before)])}
    return tuple(sorted(found, key=lambda one: order[one.item])), lost


def _columns(
    shared: Shared, reading: Reading, numbers: Mapping[str, int], size: int, old: Content | None
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


def _unchanged(reading: Reading, old: Content) -> frozenset[str]:
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
