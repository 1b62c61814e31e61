"""The items: internal id <-> external id, how often each was trained on, and what is known of it.

What is known of the items as numbers that a model reads (`item_features.py`) is fitted on those of the first id map
(`base`): items added later keep the codes and the scale of a trained model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import copy
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from jaxtyping import Int64

from fullrank.core.errors import UserError, brief, did_you_mean
from fullrank.core.parquet import read_parquet
from fullrank.core.tables import write_table
from fullrank.data import values
from fullrank.data.events.item_features import (
    CategoricalFeature,
    CategoryLists,
    NumericFeatures,
    coded,
    coded_lists,
    standardised,
)
from fullrank.data.frames import InputTable
from fullrank.data.values import IntIndex, TextIndex

RESERVED = ("item", "item_id", "train_count", "map_version")
"""Columns of items.parquet that are the library's own."""


class Catalog:
    """The item table: row i is internal id i.

    Columns: `item` (0 .. V-1), `item_id` (external id, string or whole number), `train_count` (training events),
    `map_version` (only in a grown catalogue: the id map in which the item came, 0 for the first), then the user's own.
    """

    def __init__(self, frame: pl.DataFrame):
        """Raises `UserError` where the frame is no such table."""
        _check(frame)
        self.frame = frame

    @classmethod
    def open(cls, path: str | Path, *, items: int | None = None) -> Catalog:
        """Read items.parquet, of so many `items` where that is known.

        Raises `UserError` for a missing, damaged or foreign file.
        """
        name = f"the item table {str(path)!r}"
        if not Path(path).is_file():
            raise UserError(f"{name} does not exist", code="missing-file")
        frame = read_parquet(Path(path), "the item table", rows=items)
        try:
            return cls(frame)
        except UserError as error:
            raise UserError(f"{name}: {error}", code=error.code) from None

    def write(self, path: str | Path) -> None:
        """Write items.parquet."""
        write_table(self.frame, path)

    def __len__(self) -> int:
        return len(self.frame)

    def __repr__(self) -> str:
        names = [*self.columns[:5], *["..."] * (len(self.columns) > 5)]
        return f"Catalog({self.size:,} items, {'columns ' + ', '.join(names) if names else 'no columns'})"

    @property
    def size(self) -> int:
        """V, the number of items."""
        return len(self.frame)

    @property
    def ids(self) -> pl.Series:
        """External ids, row i for internal id i."""
        return self.frame["item_id"]

    @property
    def version(self) -> int:
        """Version of the id map: 0, and one more each time that items were added. Old ids never change."""
        return int(self._versions.max())  # type: ignore[arg-type]

    @property
    def base(self) -> int:
        """Number of items of the first id map; feature codes and scales are fitted on these."""
        return int((self._versions == 0).sum())

    @property
    def titles(self) -> pl.Series | None:
        """The column `title`, where the items have one that is not empty."""
        if "title" not in self.frame.columns or self.frame["title"].null_count() == self.size:
            return None
        return self.frame["title"].cast(pl.String)

    @property
    def columns(self) -> list[str]:
        """Names of the user's own columns."""
        return [name for name in self.frame.columns if name not in RESERVED]

    @cached_property
    def popularity(self) -> Int64[np.ndarray, "V"]:
        """Training events of each item."""
        return self.frame["train_count"].to_numpy().astype(np.int64)

    def lookup(self, external: Any) -> Int64[np.ndarray, "n"]:
        """Internal ids of external ones (a list, an array or a polars Series); -1 where unknown.

        Raises `UserError` where strings are given for whole numbers or the other way round.
        """
        if isinstance(external, list):
            kinds = set(map(type, external))
            if bool in kinds or (len(kinds) > 1 and any(issubclass(kind, str) for kind in kinds)):
                raise _mixed(external, kinds)  # a series would make text of the numbers, and numbers of True
            if isinstance(self._index, IntIndex):
                with suppress(ValueError, OverflowError):  # lists in lists: the series below refuses them
                    whole = np.asarray(external)  # a request's few ids, without the detour of a series
                    if whole.ndim == 1 and whole.dtype == np.int64:
                        return self._index.find(whole).astype(np.int64)
        given = external if isinstance(external, pl.Series) else pl.Series(values=external, strict=False)
        given = values.without_fractions(given) if isinstance(external, pl.Series) else given
        if len(given) == 0:
            return np.zeros(0, np.int64)
        if isinstance(given.dtype, (pl.Categorical, pl.Enum)):
            given = given.cast(pl.String)
        own, theirs = (("strings" if d == pl.String else "whole numbers") for d in (self.ids.dtype, given.dtype))
        if not (given.dtype == pl.String or given.dtype.is_integer()) or own != theirs:
            first = brief(given.head(1).to_list()[0], 80)  # of a list, not the Series, whose repr has many lines
            raise UserError(
                f"the items' ids are {own} (such as {self.ids[0]!r}); given: {given.dtype} ({first})",
                code="wrong-id-type",
            )
        return self._places(given)

    def parse(self, texts: Sequence[str]) -> pl.Series:
        """External ids from text (a command line), in the catalogue's type. Raises `UserError` for what is none."""
        series = pl.Series("item_id", list(texts), dtype=pl.String).str.strip_chars()
        if self.ids.dtype == pl.String:
            return series
        whole = values.parse_whole(series, self.ids.dtype)
        if whole.null_count():
            wrong = series.filter(whole.is_null())[0]
            raise UserError(
                f"{wrong!r} is not an item id; the items' ids are whole numbers (such as {self.ids[0]!r})",
                code="not-an-item-id",
            )
        return whole

    def external(self, internal: Any, name: str = "item_id") -> pl.Series:
        """External ids of internal ones, as a column of that name; null for -1 (an empty place)."""
        index = np.asarray(internal, dtype=np.int64)
        low, high = (index.min(), index.max()) if index.size else (0, 0)
        if high >= self.size or low < -1:
            raise UserError(
                f"internal item ids are 0 .. {self.size - 1} (or -1); given: {low} .. {high}", code="id-out-of-range"
            )
        if low < 0:
            return self.ids.gather(pl.Series(index).replace(-1, None)).alias(name)
        numbers = self._numbers
        return self.ids[index].alias(name) if numbers is None else pl.Series(name, numbers[index])

    def categorical(self, name: str) -> CategoricalFeature:
        """A column as codes [V] (0 = missing) with its cardinality. Raises `UserError` for an unsuitable column."""
        return coded(self._column(name), self.base)

    def holds_lists(self, name: str) -> bool:
        """Whether a column holds several values for each item. Raises `UserError` for an unknown column."""
        return isinstance(self._column(name).dtype, (pl.List, pl.Array))

    def categories(self, name: str) -> CategoryLists:
        """A column of lists as codes. Raises `UserError` for an unsuitable column."""
        return coded_lists(self._column(name), self.base)

    def numeric(self, names: Sequence[str]) -> NumericFeatures:
        """Columns as one standardised matrix [V, X] with missing indicators."""
        if isinstance(names, str) or not names:
            raise UserError(
                f"numeric features are given as a list of one or more column names, not {names!r}", code="not-a-list"
            )
        return standardised([self._column(name) for name in names], self.base)

    def extended(self, new_items: Any, item: str = "item_id") -> Catalog:
        """The catalogue with new items appended, in input order; ids so far stay and the id map's version goes up.

        `new_items` is a path or a DataFrame with the column `item` and any of the catalogue's own columns; others
        are null. Raises `UserError` for known or repeated ids and for columns that the catalogue does not have.
        """
        source = InputTable(new_items, "new items")
        source.require(item, "name it with item=")
        raw = source.read(source.columns)
        if raw.is_empty():
            raise UserError("there are no new items in the table", code="no-new-items")
        ids = source.ids(raw, item, text=self.ids.dtype == pl.String)
        values.refuse(
            ids.is_duplicated(), ids, f"column {item!r} of {source.name}", "repeated ids", code="repeated-ids"
        )
        values.refuse(
            pl.Series(self.lookup(ids) >= 0),
            ids,
            f"column {item!r} of {source.name}",
            "ids known already",
            code="known-ids",
        )
        raw = source.infer(raw, keep_text=item).drop(item)
        for name in raw.columns:
            if name not in self.columns:
                raise UserError(f"new items have the column {name!r}, which the catalogue has not"
                                f"{did_you_mean(name, self.columns)}; drop it", code="unknown-column")  # fmt: skip
        return Catalog(self._append(ids, raw))

    def with_columns(self, columns: Mapping[str, pl.Series]) -> Catalog:
        """The same items with other values, or other columns, of the user's own; the id map is shared.

        Raises `UserError` for a name that is the library's own.
        """
        taken = next((name for name in columns if name in RESERVED), None)
        if taken is not None:
            raise UserError(f"{taken!r} is a column that the library fills itself: rename it", code="column-name-taken")
        other = copy(self)  # with what was made of the ids: an index of a million of them takes a while
        other.frame = self.frame.with_columns(**columns)
        return other

    def _append(self, ids: pl.Series, raw: pl.DataFrame) -> pl.DataFrame:
        schema = self.frame.schema
        old = self.frame.with_columns(map_version=self._versions)
        count = np.arange(self.size, self.size + len(ids))
        try:
            own = {n: raw[n].cast(schema[n]) if n in raw else pl.repeat(None, len(ids), dtype=schema[n], eager=True)
                   for n in self.columns}  # fmt: skip
            keys = {"item": pl.Series(count).cast(schema["item"]), "item_id": ids.cast(schema["item_id"])}
        except pl.exceptions.PolarsError as error:
            raise UserError(
                f"new items do not fit the catalogue's types: {str(error).splitlines()[0]}", code="wrong-column-type"
            ) from None
        zero = pl.repeat(0, len(ids), dtype=schema["train_count"], eager=True)
        version = pl.repeat(self.version + 1, len(ids), dtype=pl.Int32, eager=True)
        new = pl.DataFrame(keys | {"train_count": zero, "map_version": version} | own)
        return pl.concat([old, new.select(old.columns)])

    @cached_property
    def _versions(self) -> pl.Series:
        if "map_version" in self.frame.columns:
            return self.frame["map_version"]
        return pl.repeat(0, self.size, dtype=pl.Int32, eager=True)

    def _places(self, given: pl.Series) -> Int64[np.ndarray, "n"]:
        if isinstance(self._index, TextIndex):  # strings; and whole numbers beyond 64 bits with sign, as text
            return self._index.find(given.cast(pl.String)).astype(np.int64)
        whole = given.cast(pl.Int64, strict=False)
        found = self._index.find(whole.fill_null(0).to_numpy()).astype(np.int64)
        return np.where(whole.is_null().to_numpy(), -1, found)

    @cached_property
    def _numbers(self) -> np.ndarray | None:
        """The ids as an array where they are whole numbers: plain indexing costs a tenth of an expression."""
        return self.ids.to_numpy() if self.ids.dtype in values.NATIVE else None

    @cached_property
    def _index(self) -> IntIndex | TextIndex:
        """Made once: a look-up must cost little more than what is looked up, since a request asks for a few items."""
        if self.ids.dtype == pl.String:
            return TextIndex(self.ids)
        whole = self.ids.cast(pl.Int64, strict=False)
        return TextIndex(self.ids.cast(pl.String)) if whole.null_count() else IntIndex(whole)

    def _column(self, name: str) -> pl.Series:
        if name not in self.columns:
            raise UserError(f"the items have no column {name!r}{did_you_mean(name, self.columns)} "
                            f"(columns: {', '.join(self.columns) or 'none'})", code="unknown-column")  # fmt: skip
        return self.frame[name]


def _mixed(given: list[Any], kinds: set[type]) -> UserError:
    names, shown = sorted(kind.__name__ for kind in kinds), [brief(one, 60) for one in given[:2]]
    return UserError(
        f"item ids are all whole numbers or all strings; given: {', '.join(names)}, such as {', '.join(shown)}",
        code="mixed-ids" if len(kinds) > 1 else "wrong-id-type",
    )


def _check(frame: pl.DataFrame) -> None:
    for name in RESERVED[:3]:
        if name not in frame.columns:
            raise UserError(
                f"an item table needs the column {name!r} (columns: {', '.join(frame.columns)})",
                code="wrong-item-table",
            )
    ids = frame["item_id"]
    if frame.is_empty():
        raise UserError("an item table needs at least one item", code="wrong-item-table")
    if not frame["item"].dtype.is_integer() or not frame["item"].eq_missing(pl.Series(np.arange(len(frame)))).all():
        raise UserError("the column 'item' must count 0, 1, 2, ...", code="wrong-item-table")
    if not (ids.dtype == pl.String or ids.dtype.is_integer()) or ids.null_count() or ids.n_unique() < len(ids):
        raise UserError(
            "the column 'item_id' must hold different whole numbers or strings, none missing", code="wrong-item-table"
        )
    counts = frame["train_count"]
    if not counts.dtype.is_integer() or counts.null_count() or counts.min() < 0:  # type: ignore[operator]
        raise UserError("the column 'train_count' must hold whole numbers of at least 0", code="wrong-item-table")
    if "map_version" in frame.columns:
        version = frame["map_version"]
        if not version.dtype.is_integer() or version.null_count() or not version.is_sorted() or version[0] != 0:
            raise UserError(
                "the column 'map_version' must hold 0, then later versions in order", code="wrong-item-table"
            )
