"""LiveItems: the items of a served version as they are now: those of its run, with the documents of items since.

A snapshot never changes; `with_documents` and `at` give others. Items that were added stand behind
those of the run, in the order in which they came, and keep their numbers while the process runs,
also when they are retired or removed. Making a snapshot may take a while (new vectors, a table put
together), so it is done beside whoever answers.

`ItemGrowth` is the same for all snapshots of a version, `Content` (documents put
together with the run's items) for all from one change to the next; each snapshot has
expired items of its own. V items.
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
from fullrank.core.files import JsonObject
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
"""Item id as text -> its document; None where that was taken back."""
WARM_TITLES = 200_000
"""Catalogues up to this size index titles for comparison at once (a second or two); a larger one when it has to."""
MASK_BYTES, LEAST_MASKS, MOST_MASKS = 1 << 26, 4, 512
"""Memory of the masks that a snapshot remembers, and how many they are at least and at most."""


class LiveItems:
    """One snapshot; `LiveItems.of` makes the first.

    `catalog` has the columns as they are now; `base` is the number of items of the run; `ids` are
    the external ids by number, `titles` and `bands` (head, middle or tail by training events)
    likewise, `numbers` the inverse.
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
        """The items of a run, opened as `predictor`, with `documents` taken in, at a time; and the
        predictor that ranks them.

        Documents that this run cannot take in (a new item without anything like it) are left out,
        and logged (`refused`). The predictor is the one given where no item was added.
        """
        growth = ItemGrowth(run.spec.model, predictor)
        first = cls(growth, Content(growth, Reading({}, {}, growth.types), (), {}, predictor, None), now)
        return first.with_documents(predictor, documents, now)

    def with_documents(
        self, predictor: Predictor, documents: Documents, now: float, *, strict: Collection[str] = ()
    ) -> tuple[Predictor, LiveItems]:
        """The items with these documents in place of those so far, and the predictor that knows them.

        `predictor` is the one that goes with this snapshot; it is given back unless items were
        added or a vector has to be made anew, which is the only work that grows with the model.
        Documents with keys in `strict` have to be right: `UserError` says what is wrong with one.
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
        live = self._content.latest or self
        if now >= live.next_expiry:
            self._content.latest = live = LiveItems(self._growth, self._content, now)
        return live

    def mask(self, filters: Mapping[str, Any]) -> Bool[np.ndarray, "V"]:
        """The items that these filters refuse (`inference/column_filters.py`), and those that are retired or expired.

        The same array for the same filters, so that requests can be grouped by it; not
        to be written to. Raises `UserError` for a column that is not there and for
        values that it cannot hold.
        """
        if not filters:
            return self.barred
        return self._masks.get(filters_key(filters), lambda: refused_by(self._content.values, filters) | self.barred)

    def has_mask(self, filters: Mapping[str, Any]) -> bool:
        """Whether `mask` remembers these filters, and so costs nothing."""
        return not filters or filters_key(filters) in self._masks

    def search(self, text: str, limit: int) -> Int[np.ndarray, "n"]:
        """Numbers of up to `limit` items for a search box, retired ones among them.

        The item with this id comes first, then items by words of their titles (`titles.py`), then
        by popularity. For no text these are the most popular items.
        """
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
            rows, score = self._content.search.find(text, limit + 1)
            parts.append((self._content.renamed[rows], score))
        items, scores = (np.concatenate(part) for part in zip(*parts, strict=True))
        items = items[np.lexsort((items, -self.catalog.popularity[items], -scores))]
        return np.concatenate([first, items[items != exact]])[:limit].astype(np.int64)

    def warm(self) -> None:
        """Index the words of the titles, before the first search does (seconds for a million).

        Up to `WARM_TITLES` items, index also the titles that a new item with a title alone is
        compared with.
        """
        if self._growth.titles is not None:
            _ = self._growth.search
            if self.base <= WARM_TITLES:
                self._growth.warm()

    def popular(self, k: int, refused: Bool[np.ndarray, "V"]) -> Int[np.ndarray, "n"]:
        """Up to k items that are not refused, those with most training events
        first; of equal counts the first."""
        low, parts = 0, [np.zeros(0, np.int64)]
        width = 4 * k + 64
        while low < self.size and sum(map(len, parts)) < k:
            chunk = self.popular_order[low : low + width]
            parts.append(chunk[~refused[chunk]])
            low, width = low + width, 4 * width
        return np.concatenate(parts)[:k]

    @cached_property
    def popular_order(self) -> Int[np.ndarray, "V"]:
        """All items by training events, most first, then by number."""
        return np.concatenate([self._growth.popular_order, np.arange(self.base, self.size)])

    def origin(self, item: int | str) -> JsonObject:
        """Where an item's vector came from.

        `from` is `trained` for an item of the run, `none` for one that the model cannot
        rank, else `like`, `features` or `title`; `neighbours` are the external ids of the
        items that it was made from.
        """
        number = self.numbers.get(item)
        if number < self.base:
            return {"from": "trained" if number >= 0 else "none", "neighbours": []}
        origin = self._content.origins[number - self.base]
        facts: JsonObject = {"from": origin.rule, "neighbours": [self.ids[near] for near in origin.neighbours]}
        if origin.rule == "none":
            facts["note"] = (
                "this model ranks by counts of training events, and has none of this item: it stands behind all others"
            )
        elif origin.copied is not None:
            same = self.ids[origin.copied]
            facts |= {
                "same_as": same,
                "note": f"the model has no vector of its own for this item: it stands where {same!r} stands",
            }
        return facts

    @property
    def refused(self) -> dict[str, str]:
        """Key of a document that was left out -> why."""
        return {key: str(error) for key, error in self._content.refused.items()}

    @property
    def filterable(self) -> dict[str, str]:
        """Column that filters may name -> kind of its values."""
        return column_kinds({name: self._content.values[name] for name in self.columns})

    def changed_since(self, old: LiveItems) -> Int[np.ndarray, "n"]:
        """Numbers of the items that have other columns than in an older snapshot of
        the same version, or are new."""
        numbers = {**old._content.numbers, **self._content.numbers}
        keys = _changed_columns(old._content.reading, self._content.reading)
        known = np.array([numbers[key] for key in keys if key in numbers], np.int64)
        return np.union1d(known, np.arange(old.size, self.size))


class Content:
    """The part of a snapshot that does not depend on the time: the same from one expiry to the next."""

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
        """Key of a document -> number of its item."""
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
        """[e] items that expire, and [e] the time of each."""
        self.renamed = np.sort(np.array(renamed, np.int64))
        """[r] items that were added, or have another title than in the run."""
        self.values = _columns(growth, reading, self.numbers, size, old)
        """Name -> column, with the changes of documents."""
        grown = predictor.catalog if origins else growth.catalog
        self.catalog = grown.with_columns(self.values)
        self.ids = [*growth.numbers.ids, *added] if added else growth.numbers.ids
        self.bands = [*growth.bands, *[BANDS[-1]] * len(added)] if added else growth.bands
        self.titles = self.values[TITLE].cast(pl.String) if TITLE in self.values else None
        self.search: TitleSearch | None = None
        """The titles of the items `renamed`."""
        if self.titles is not None and renamed:
            order = np.lexsort((self.renamed, -grown.popularity[self.renamed]))
            self.search = TitleSearch(self.titles.gather(self.renamed), order)
        self.latest: LiveItems | None = None
        """The snapshot of the latest moment that was asked for (`LiveItems.at`)."""


def origins_of(growth: ItemGrowth, reading: Reading, old: Content) -> tuple[tuple[Origin, ...], dict[str, UserError]]:
    """The sources of the vectors of added items, in the order of their numbers; and the
    errors of the others by key."""
    before = {origin.item: origin for origin in old.origins}
    keys = {entry.id: key for key, entry in reading.entries.items() if entry.newcomer is not None}
    newcomers = {entry.id: entry.newcomer for entry in reading.entries.values() if entry.newcomer is not None}
    known = {entry.id: entry.newcomer for entry in old.reading.entries.values() if entry.newcomer is not None}
    if newcomers == known and not old.refused:
        return old.origins, {}
    unchanged = {
        item: before[item]
        for item, newcomer in newcomers.items()
        if item in before
        and known.get(item) == newcomer
        and keys[item] not in old.refused
        and not any(other in newcomers for other in newcomer.like)
    }
    outcomes = growth.origins(newcomers, unchanged)
    lost = {keys[item]: outcome for item, outcome in outcomes.items() if isinstance(outcome, UserError)}
    numbered = []
    for item in [*before, *(new for new in newcomers if new not in before)]:
        outcome = outcomes[item]
        if isinstance(outcome, Origin):
            numbered.append(outcome)
        elif item in before:
            numbered.append(before[item])  # it has a number, so it keeps the vector that it had
    return tuple(numbered), lost


def _columns(
    growth: ItemGrowth, reading: Reading, numbers: Mapping[str, int], size: int, old: Content | None
) -> dict[str, pl.Series]:
    """All columns with the changes of documents; those that stay are taken from `old`."""
    cells: dict[str, dict[int, Any]] = {}
    for key, number in numbers.items():
        for name, value in reading.entries[key].cells.items():
            cells.setdefault(name, {})[number] = value
    unchanged: dict[str, pl.Series] = {}
    if old is not None and len(old.retired) == size:
        touched = set[str]().union(*_changed_columns(old.reading, reading).values())
        unchanged = {name: column for name, column in old.values.items() if name not in touched}
    columns: dict[str, pl.Series] = {}
    for name in [*growth.values, *(name for name in reading.types if name in cells and name not in growth.values)]:
        if name in unchanged:
            columns[name] = unchanged[name]
            continue
        dtype = reading.types[name]
        column = growth.values.get(name, pl.Series(name, [], dtype=dtype))
        if len(column) < size:
            missing = pl.Series(name, [None], dtype=dtype).new_from_index(0, size - len(column))
            column = pl.concat([column, missing])
        columns[name] = changed(column, cells[name]) if name in cells else column
    return columns


def _changed_columns(old: Reading, new: Reading) -> dict[str, set[str]]:
    """Key -> columns with changes, for each item whose document has other values than before."""
    columns: dict[str, set[str]] = {}
    for key in old.entries.keys() | new.entries.keys():
        before, after = (reading.entries[key].cells if key in reading.entries else {} for reading in (old, new))
        if before is not after and before != after:
            columns[key] = {*before, *after}
    return columns
