"""What snapshots of live items hold: documents put together with a run's items, once for each change.

`Shared` is the same for all snapshots of a version, `Content` for all from one change to the next; who is expired is
the snapshot's own (`catalogue.py`). V items.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl

from fullrank.core.errors import UserError
from fullrank.evaluation.statistics import popularity_bands
from fullrank.inference.predictor import Predictor
from fullrank.serving.growth import ItemGrowth, Origin
from fullrank.serving.item_documents import TITLE, Reading, changed
from fullrank.serving.titles import TitleSearch

BANDS = ("head", "middle", "tail")
"""Popularity of an item: the third of the training events in which its share begins (`popularity_bands`)."""


class Shared:
    """What all snapshots of a version have in common."""

    def __init__(self, growth: ItemGrowth):
        self.growth, catalog = growth, growth.catalog
        own = growth.own_columns
        self.values = {name: catalog.frame[name] for name in catalog.columns if name not in own}
        self.types: dict[str, Any] = {name: column.dtype for name, column in self.values.items()}
        self.types.setdefault(TITLE, pl.String())
        self.titles = catalog.titles
        self.ids: list[Any] = catalog.ids.to_list()
        self.bands: list[str] = np.array(BANDS, object)[popularity_bands(catalog.popularity)].tolist()
        self.popular_order = np.argsort(-catalog.popularity, kind="stable")

    @cached_property
    def search(self) -> TitleSearch:
        """The titles of the run's items, indexed once."""
        assert self.titles is not None
        return TitleSearch(self.titles, self.popular_order)


class Content:
    """What a snapshot holds but for the time: the same from one expiry to the next."""

    def __init__(
        self,
        shared: Shared,
        reading: Reading,
        origins: tuple[Origin, ...],
        refused: Mapping[str, UserError],
        predictor: Predictor,
        old: Content | None,
    ):
        """`origins` are of the items that were added, in the order of their numbers."""
        self.reading, self.origins, self.refused = reading, origins, refused
        added = [origin.item for origin in origins]
        base = shared.growth.catalog.size
        size = base + len(added)
        number_of_added = {item: base + place for place, item in enumerate(added)}
        self.numbers: dict[str, int] = {}
        """Of all items with documents, by key."""
        self.retired = np.zeros(size, bool)
        renamed, expiring, expires_at = [], [], []
        for key, entry in reading.entries.items():
            number = number_of_added.get(entry.id, entry.number)
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
        self.values = _columns(shared, reading, self.numbers, size, old)
        """Columns by name, as documents left them."""
        grown = predictor.catalog if origins else shared.growth.catalog
        self.catalog = grown.with_columns(self.values)
        self.ids = [*shared.ids, *added] if added else shared.ids
        self.bands = [*shared.bands, *[BANDS[-1]] * len(added)] if added else shared.bands
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
    known_origins, lost = [], {}
    kept = {item: before[item] for item, one in newcomers.items() if item in before and known.get(item) == one}
    origins = growth.origins(newcomers, kept)
    for item, one in origins.items():
        if isinstance(one, UserError):
            lost[keys[item]] = one
            if item not in before:
                continue
            one = before[item]  # it has a number, so it keeps the vector that it had
        known_origins.append(one)
    order = {item: place for place, item in enumerate([*before, *(key for key in newcomers if key not in before)])}
    return tuple(sorted(known_origins, key=lambda one: order[one.item])), lost


def _columns(
    shared: Shared, reading: Reading, numbers: Mapping[str, int], size: int, old: Content | None
) -> dict[str, pl.Series]:
    """All columns with what documents say; those that stay are taken from `old`."""
    cells: dict[str, dict[int, Any]] = {}
    for key, number in numbers.items():
        for name, value in reading.entries[key].cells.items():
            cells.setdefault(name, {})[number] = value
    same = _unchanged(reading, old) if old is not None and len(old.retired) == size else frozenset()
    columns: dict[str, pl.Series] = {}
    for name in [*shared.values, *(name for name in reading.types if name in cells and name not in shared.values)]:
        if old is not None and name in same and name in old.values:
            columns[name] = old.values[name]
            continue
        dtype = reading.types[name]
        column = shared.values.get(name, pl.Series(name, [], dtype=dtype))
        if len(column) < size:
            missing = pl.Series(name, [None], dtype=dtype).new_from_index(0, size - len(column))
            column = pl.concat([column, missing])
        columns[name] = changed(column, cells[name]) if name in cells else column
    return columns


def _unchanged(reading: Reading, old: Content) -> frozenset[str]:
    """The columns in which no item has another value than in the older content."""
    before, after = old.reading.entries, reading.entries
    touched: set[str] = set()
    for key in before.keys() | after.keys():
        one, other = before.get(key), after.get(key)
        if one is not other:
            touched |= set(one.cells if one is not None else ()) | set(other.cells if other is not None else ())
    return frozenset(name for name in reading.types if name not in touched)
