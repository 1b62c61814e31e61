"""The item catalogue: internal id <-> external id, training events and the user's own columns of each item.

Codes and scales of columns that a model reads (`item_features.py`) are fitted on the items of the
first id map (`base`): items added later keep the codes and the scale of a trained model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from jaxtyping import Int64

from fullrank.core.checks import check_that
from fullrank.core.errors import UserError, brief, in_context, no_such, reason_line
from fullrank.core.parquet import read_parquet
from fullrank.core.readers import missing_file
from fullrank.core.tables import write_table
from fullrank.data import values
from fullrank.data.events.feature_files import NAME, encoder_beside
from fullrank.data.events.features import FeatureEncoder
from fullrank.data.events.item_features import (
    CategoricalFeature,
    CategoryLists,
    NumericFeatures,
    coded,
    coded_lists,
    standardised,
)
from fullrank.data.frames import InputTable
from fullrank.data.impressions.encoder_files import write_encoder

RESERVED = ("item", "item_id", "train_count", "map_version")
"""Columns of items.parquet that are the library's own."""


class Catalog:
    """The item table: row i is internal id i.

    Columns: `item` (0 .. V-1), `item_id` (external id, string or whole number), `train_count`
    (training events), `map_version` (only in a grown catalogue: the id map in which the item came,
    0 for the first), then the user's own.
    """

    def __init__(self, frame: pl.DataFrame, features: FeatureEncoder | None = None):
        """Raises `UserError` where the frame is no such table. `features` are those of
        events, requests and users."""
        _check(frame)
        self.frame, self.features = frame, features

    @classmethod
    def open(cls, path: str | Path, *, items: int | None = None) -> Catalog:
        """Read items.parquet, of so many `items` where that is known, with the features that lie beside it in a run.

        Raises `UserError` for a missing, damaged or foreign file.
        """
        if not Path(path).is_file():
            raise missing_file(path)
        frame = read_parquet(Path(path), "the item table", rows=items)
        with in_context(f"the item table {str(path)!r}: "):
            return cls(frame, encoder_beside(Path(path).parent))

    def write(self, path: str | Path) -> None:
        """Write items.parquet, and the features beside it where there are any."""
        write_table(self.frame, path)
        if self.features is not None:
            write_encoder(Path(path).parent, self.features, NAME)

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
        return int(self._versions.to_numpy().max())

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

    @property
    def text_columns(self) -> tuple[str, ...]:
        """The user's own columns of text and of lists of text, in the table's order."""
        return tuple(name for name in self.columns if is_text(self.frame[name]))

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
                # a series would make text of the numbers, and numbers of True
                names = ", ".join(sorted(kind.__name__ for kind in kinds))
                examples = ", ".join(brief(item_id, 60) for item_id in external[:2])
                raise UserError(
                    f"item ids are all whole numbers or all strings; given: {names}, such as {examples}",
                    code="mixed-ids" if len(kinds) > 1 else "wrong-id-type",
                )
            if (numbers := self._index.numbers) is not None:
                with suppress(ValueError, OverflowError):  # lists in lists: the series below refuses them
                    whole = np.asarray(external)  # a request's few ids, without the detour of a series
                    if whole.ndim == 1 and whole.dtype == np.int64:
                        return numbers.find(whole).astype(np.int64)
        if isinstance(external, pl.Series):
            series = values.without_fractions(external)
        else:
            series = pl.Series(values=external, strict=False)
        if len(series) == 0:
            return np.zeros(0, np.int64)
        series = values.without_categories(series)
        text = self.ids.dtype == pl.String
        if series.dtype != pl.String if text else not series.dtype.is_integer():
            first = brief(series.head(1).to_list()[0], 80)  # of a list: a Series' repr has many lines
            raise UserError(
                f"the items' ids are {'strings' if text else 'whole numbers'} (such as {self.ids[0]!r}); "
                f"given: {series.dtype} ({first})",
                code="wrong-id-type",
            )
        return self._index.find(series)

    def parse(self, texts: Sequence[str]) -> pl.Series:
        """External ids from text (a command line), in the catalogue's type. Raises
        `UserError` for what is none."""
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
        return values.take(self.ids, index, name)

    def categorical(self, name: str) -> CategoricalFeature:
        """A column as codes [V] (0 = missing) with its cardinality. Raises
        `UserError` for an unsuitable column."""
        return coded(self.column(name), self.base)

    def holds_lists(self, name: str) -> bool:
        """Whether a column holds several values for each item. Raises `UserError` for an unknown column."""
        return isinstance(self.column(name).dtype, (pl.List, pl.Array))

    def categories(self, name: str) -> CategoryLists:
        """A column of lists as codes. Raises `UserError` for an unsuitable column."""
        return coded_lists(self.column(name), self.base)

    def numeric(self, names: Sequence[str]) -> NumericFeatures:
        """Columns as one standardised matrix [V, X] with missing indicators."""
        listed = bool(names) and not isinstance(names, str)
        check_that(listed, "numeric", names, ": give a list of one or more names of columns", code="not-a-list")
        return standardised([self.column(name) for name in names], self.base)

    def extended(self, new_items: Any, item: str = "item_id") -> Catalog:
        """The catalogue with new items appended, in input order; ids so far stay and the id map's version goes up.

        `new_items` is a path or a DataFrame with the column `item` and any of the catalogue's own
        columns; others are null. Raises `UserError` for known or repeated ids and for columns that
        the catalogue does not have.
        """
        source = InputTable(new_items, "new items")
        source.require(item, "name it with item=")
        raw = source.read(source.columns)
        source.require_rows(len(raw))
        ids = source.ids(raw, item, text=self.ids.dtype == pl.String)
        values.refuse(ids.is_duplicated(), ids, source.name, "repeated ids", code="repeated-ids")
        values.refuse(pl.Series(self.lookup(ids) >= 0), ids, source.name, "ids known already", code="known-ids")
        raw = source.infer(raw, keep_text=item).drop(item)
        for name in raw.columns:
            if name not in self.columns:
                remedy = "; drop it from the new items"
                raise no_such(
                    "the catalogue has no column", name, self.columns, "columns", remedy, code="unknown-column"
                )
        old = self.frame.with_columns(map_version=self._versions)
        new = pl.DataFrame({"item": np.arange(self.size, self.size + len(ids)), "item_id": ids})
        new = new.hstack(raw.get_columns()).with_columns(train_count=0, map_version=self.version + 1)
        try:
            new = new.cast({name: old.schema[name] for name in new.columns})
        except pl.exceptions.PolarsError as error:
            raise UserError(
                f"new items do not fit the catalogue's types: {reason_line(error)}", code="wrong-column-type"
            ) from None
        return Catalog(pl.concat([old, new], how="diagonal"), self.features)

    def with_columns(self, columns: Mapping[str, pl.Series]) -> Catalog:
        """A catalogue of the same items with these columns of the user's replaced or added; the id map is shared.

        Raises `UserError` for a name that is the library's own.
        """
        self.require_free(*columns, among=RESERVED)
        other = copy(self)  # with its index of the ids: one of a million of them takes a while to make
        other.frame = self.frame.with_columns(**columns)
        return other

    def require_free(self, *names: str, among: Sequence[str] | None = None) -> None:
        """Raise `UserError` for the name of a column that is there already, or of one that is `among` these."""
        taken = next((name for name in names if name in (self.frame.columns if among is None else among)), None)
        if taken is not None:
            raise UserError(
                f"{taken!r} is a column of the items that the library fills itself: rename yours",
                code="column-name-taken",
            )

    @cached_property
    def _versions(self) -> pl.Series:
        if "map_version" in self.frame.columns:
            return self.frame["map_version"]
        return pl.repeat(0, self.size, dtype=pl.Int32, eager=True)

    @cached_property
    def _index(self) -> values.IdIndex:
        """The index of the ids, made once: a request looks up a few items, which must
        cost little more than they do."""
        return values.IdIndex(self.ids)

    def column(self, name: str) -> pl.Series:
        """A column of the user's own. Raises `UserError` with the nearest name where there is none."""
        if name not in self.columns:
            raise no_such("the items have no column", name, self.columns, "columns", code="unknown-column")
        return self.frame[name]


def derived_column(frame: pl.DataFrame, name: str, what: str, dtype: Any, inner: Any, how: str) -> pl.Series:
    """A column that training added to the items: `what` ("codes") of every item. `how` says what makes it.

    Raises `UserError` where it is missing, lacks values, or is not of type `dtype`
    (of `inner`, for lists).
    """
    if name not in frame.columns:
        raise UserError(f"the items have no {what} (column {name!r}): {how}", code=f"items-without-{what}")
    column = frame[name]
    if column.dtype != dtype or getattr(column.dtype, "inner", None) != inner or column.null_count():
        expected = dtype.__name__ + (f" of {inner.__name__}" if inner else "")
        raise UserError(
            f"the column {name!r} must hold the {what} of every item ({expected}, none missing)",
            code=f"{what}-damaged",
        )
    return column


def _check(frame: pl.DataFrame) -> None:
    for name, (content, sound) in _OWN_COLUMNS.items():
        if name not in frame.columns and name == "map_version":
            continue
        if name not in frame.columns or frame.is_empty() or not sound(frame[name]):
            raise UserError(
                f"an item table has at least one item, and a column {name!r} of {content} (columns: "
                f"{', '.join(frame.columns)})",
                code="wrong-item-table",
            )


_OWN_COLUMNS: dict[str, tuple[str, Callable[[pl.Series], bool]]] = {
    "item": ("0, 1, 2, ...", lambda c: c.dtype.is_integer() and c.eq_missing(pl.Series(np.arange(len(c)))).all()),
    "item_id": (
        "different whole numbers or strings, none missing",
        lambda c: (c.dtype == pl.String or c.dtype.is_integer()) and not c.null_count() and c.n_unique() == len(c),
    ),
    "train_count": ("whole numbers of at least 0", lambda c: _whole(c) and bool((c >= 0).all())),
    "map_version": ("0, then later versions in order", lambda c: _whole(c) and c.is_sorted() and c[0] == 0),
}
"""Each column of the library's own -> its content, in words and as a check."""


def _whole(column: pl.Series) -> bool:
    return column.dtype.is_integer() and not column.null_count()


def is_text(column: pl.Series) -> bool:
    """Whether a column holds text, or lists of it."""
    dtype = column.dtype
    inner = dtype.inner if isinstance(dtype, (pl.List, pl.Array)) else dtype
    return inner == pl.String or isinstance(inner, (pl.Categorical, pl.Enum))
