"""Input tables in memory: events, coded and in order of time; tables of items and of users, joined to them.

Whatever engine a table came from, the arrays are the same. Item and user tables are joined to the
ids that have events: one row per id, in the store's order.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np
import polars as pl
from jaxtyping import Bool, Float32, Float64, Int32, Int64
from pydantic import model_validator

from fullrank.core.checks import check_once
from fullrank.core.constraints import only_with
from fullrank.core.errors import UserError
from fullrank.core.spec import Spec
from fullrank.data import values
from fullrank.data.events.catalog import RESERVED
from fullrank.data.events.feature_columns import FeatureColumns, Fields
from fullrank.data.frames import InputTable

DAY = 86_400
"""Seconds of a day."""
NEW_ITEMS = "; fr.grow (fullrank grow) gives a trained run such items"


class Columns(Spec):
    """The names of the event table's columns."""

    user: str = "user_id"
    """Column of the user: whole numbers or strings."""
    item: str = "item_id"
    """Column of the item: whole numbers or strings."""
    time: str | None = "timestamp"
    """Column of the time: numbers since 1970, ISO 8601 strings, dates or datetimes. None: the rows
    are in order."""
    time_unit: Annotated[values.Unit, only_with("time")] = "s"
    """Unit of numbers in the time column. The store keeps seconds."""
    rating: str | None = None
    """Column of a rating, how much it was liked; read where `min_rating` is set."""
    weight: str | None = None
    """Column of a factor of at least 0 for each event; stored beside the events."""
    type: str | None = None
    """Column of the type of event (view, cart, purchase, ...); stored beside the events."""

    @property
    def roles(self) -> dict[str, str]:
        """Role -> name of each column that is there."""
        roles = ("user", "item", "time", "type", "weight", "rating")
        return {role: name for role in roles if (name := getattr(self, role)) is not None}

    def names(self, features: Fields) -> list[str]:
        """The columns that are read: those of the roles, and those of features."""
        return [*self.roles.values(), *(field.name for field in features)]

    @model_validator(mode="after")
    def _apart(self) -> Columns:
        names = [name for name in (self.user, self.item, self.time) if name is not None]
        check_once(names, "user, item and time", "each has a column of its own", code="repeated-column")
        return self


@dataclass(frozen=True)
class Events:
    """Events in chronological order; equal times keep input order. Codes point into the sorted external ids."""

    user: Int32[np.ndarray, "E"]
    item: Int32[np.ndarray, "E"]
    user_ids: pl.Series
    item_ids: pl.Series
    time: Int64[np.ndarray, "E"] | None = None
    """Seconds since 1970."""
    rating: Float64[np.ndarray, "E"] | None = None
    weight: Float32[np.ndarray, "E"] | None = None
    type: Int32[np.ndarray, "E"] | None = None
    type_names: tuple[str, ...] = ()
    features: FeatureColumns = FeatureColumns()
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.user)

    def take(self, rows: Bool[np.ndarray, "E"] | Int64[np.ndarray, "n"]) -> Events:
        """Select events, by mask or by row numbers; the ids keep their codes."""
        arrays = {name: array[rows] for name, array in vars(self).items() if isinstance(array, np.ndarray)}
        return replace(self, **arrays, features=self.features.take(rows))

    def compact(self) -> Events:
        """Drop ids without an event: codes become 0 .. U-1 and 0 .. V-1, in the order of the ids."""
        user, user_ids = compacted(self.user, self.user_ids)
        item, item_ids = compacted(self.item, self.item_ids)
        return replace(self, user=user, item=item, user_ids=user_ids, item_ids=item_ids)


def read_events(
    source: InputTable, columns: Columns, *, missing: Literal["error", "drop"] = "error", features: Fields = ()
) -> Events:
    """Read, check, code and sort an event table that has these columns. `missing` is as in `Prepare`.

    Raises `UserError` for missing ids, unreadable times or numbers, and for an empty table.
    """
    names = columns.names(features)
    frame = source.read(names)
    source.require_rows(len(frame))
    if missing == "drop":
        return _coded(*_without_missing(frame, columns, source.name), source, columns, features)
    try:
        return _coded(frame, (), source, columns, features)
    except UserError as error:
        if error.code not in ("missing-ids", "empty-ids", "missing-times", "unreadable-times"):
            raise
        with suppress(UserError):  # advise only what is seen to work; columns were let go of, so read anew
            _coded(*_without_missing(source.read(names), columns, source.name), source, columns, features)
            error = UserError(f"{error}; missing='drop' drops those without a value", code=error.code)
        raise error from None


def require_columns(source: InputTable, columns: Columns) -> None:
    """Raise `UserError` where the table has no such column."""
    for role, name in columns.roles.items():
        also = ", or say time_col=None where the rows are in order" if role == "time" else ""
        source.require(name, f"name it with {role}_col={also}")


def _coded(
    frame: pl.DataFrame, notes: tuple[str, ...], source: InputTable, columns: Columns, features: Fields
) -> Events:
    """The events of a frame, whose columns are taken out of it one after the other."""
    waiting, what = columns.names(features), source.name

    def column(name: str) -> pl.Series:
        """A column, which the frame lets go of at its last use, so that its memory is reused."""
        waiting.remove(name)
        return frame[name] if name in waiting else frame.drop_in_place(name)

    for name in (columns.user, columns.item):
        source.require_one_kind(name)
    user, user_ids = values.dense(values.ids(column(columns.user), what, typed=source.typed))
    item, item_ids = values.dense(values.ids(column(columns.item), what, typed=source.typed))
    events = Events(user, item, user_ids, item_ids, notes=notes)
    if columns.type is not None:
        code, type_names = values.dense(values.names(column(columns.type), what))
        events = replace(events, type=code, type_names=tuple(type_names))
    numbers = weights_and_ratings(columns, column, what)
    events = replace(events, **numbers, features=FeatureColumns.of(features, column, what))
    if columns.time is None:
        return events
    moments, doubts = column(columns.time), set[str]()
    counted = moments.dtype not in (pl.Date, pl.Datetime)
    time, order = values.in_time(moments, what, columns.time_unit, typed=source.typed, notes=doubts)
    doubts |= unit_notes(int(time.min()), int(time.max()), columns, counted)
    events = replace(events, time=time, notes=(*notes, *sorted(doubts)))
    return events if order is None else events.take(order)


def weights_and_ratings(columns: Columns, column: Callable[[str], pl.Series], what: str) -> dict[str, Any]:
    """The arrays `weight` and `rating` of a table, where it has such a column, which is read by its name."""
    arrays: dict[str, Any] = {}
    if columns.weight is not None:
        arrays["weight"] = values.finite_numbers(column(columns.weight), what, least=0.0).astype(np.float32)
    if columns.rating is not None:
        arrays["rating"] = values.finite_numbers(column(columns.rating), what)
    return arrays


def compacted(code: np.ndarray, ids: pl.Series) -> tuple[np.ndarray, pl.Series]:
    """The n ids that have a code, in order, and the codes 0 .. n - 1 into these."""
    used = np.bincount(code, minlength=len(ids)) > 0
    new_codes = (np.cumsum(used) - 1).astype(np.int32)
    return new_codes[code], ids.filter(used)


def missing_rows(frame: pl.DataFrame, columns: Columns) -> pl.Series:
    """A mask of the rows without user, item or time: a null, NaN or empty text."""
    bad = pl.Series(np.zeros(len(frame), bool))
    for name in dict.fromkeys((columns.user, columns.item, columns.time)):
        if name is None:
            continue
        series = frame[name]
        bad |= series.is_null()
        if series.dtype.is_float():
            bad |= series.is_nan().fill_null(True)
        elif series.dtype == pl.String:
            bad |= (series.str.strip_chars() == "").fill_null(True)
    return bad


def _without_missing(frame: pl.DataFrame, columns: Columns, name: str) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """The rows that have a user, an item and a time, and a note that says how many were left out.

    A null, NaN or empty text is missing; what is there and cannot be read stays, and is refused.
    """
    bad = missing_rows(frame, columns)
    notes = left_out_notes(int(bad.sum()), len(frame), name)
    return frame.filter(~bad) if notes else frame, notes


def left_out_notes(left_out: int, rows: int, name: str) -> tuple[str, ...]:
    """A note of the number of rows that `missing` drops, if any. Raises `UserError` where no row is left."""
    if left_out == rows:
        raise UserError(
            f"none of the {rows:,} rows of {name} has a user, an item and a time, so missing='drop' leaves none",
            code="no-events-left",
        )
    return (f"{left_out:,} of {rows:,} rows without a user, an item or a time were left out",) if left_out else ()


def unit_notes(low: int, high: int, columns: Columns, numbers: bool) -> set[str]:
    """A note where numbers taken as times, `low` to `high`, lie within a day of 1970, as ranks and ratings do."""
    if not (numbers and low > -DAY and high < DAY):
        return set()
    return {
        f"times in column {columns.time!r} are {low} to {high} in seconds since 1970, all within a day of it; "
        "is it a column of times? one that only has an order will do where nothing reads times"
    }


@dataclass(frozen=True)
class JoinedTable:
    """External ids, and the rows of a user's table for them."""

    ids: pl.Series
    frame: pl.DataFrame
    """The user's columns, row i for code i; no columns where there was no table."""
    facts: dict[str, int] | None
    """Counts for the manifest; None where there was no table."""
    notes: tuple[str, ...] = ()


def join_table(
    table: Any, what: str, column: str, fallback: str, ids: pl.Series, typed: bool, named: str | None = None
) -> JoinedTable:
    """Rows of `table` for each of `ids` [N]; nulls where the table has none.

    The key is the column `named`, else `column`, else `fallback`. Rows without events are dropped
    and counted, and so are rows that repeat another one in every column. `typed` is False where
    `ids` came from a file without types. Raises `UserError` for a missing key column, missing ids,
    ids of another type, rows of one id that differ, columns with reserved names, and a table that
    knows none of the ids.
    """
    if table is None:
        return JoinedTable(ids, pl.DataFrame(), None)
    source = InputTable(table, what)
    key = named or (column if column in source.columns else fallback)
    hint = f"name the id column {column!r} or {fallback!r}"
    source.require(key, "name the column of ids by items_id=" if what == "items" else hint)
    reserved = [n for n in source.columns if n != key and n in (*RESERVED, "user", "user_id")]
    if reserved:
        raise UserError(
            f"{source.name} has a column {reserved[0]!r}, a name that the store uses itself; rename it",
            code="reserved-column",
        )
    frame = source.infer(source.read(source.columns), keep_text=key)
    for series in frame:
        if series.dtype == pl.Object:
            raise values.wrong_type(series, source.name, "it holds Python objects: cast it to a plain type")
    keys = source.ids(frame, key)
    left, right = _comparable(ids, keys, source.name, untyped=not (typed and source.typed))
    first = keys.is_first_distinct()
    repeated = int((~first).sum())
    if repeated:
        _refuse_differing(frame.drop(key), keys, first, key, source.name)
    index = pl.DataFrame({"id": right, "row": np.arange(len(right))}).filter(first)
    rows = pl.DataFrame({"id": left}).join(index, on="id", how="left", maintain_order="left")["row"]
    facts = {
        "rows": len(keys),
        "repeated": repeated,
        "without_events": len(index) - int(rows.is_not_null().sum()),
        "missing": rows.null_count(),
    }
    if facts["missing"] == len(ids):
        raise values.none_known(ids, f"{what} with events", f"column {key!r} of {source.name}", keys)
    notes = []
    if repeated:
        notes.append(f"{repeated:,} rows of {what} repeat another row in every column and were left out")
    if facts["missing"]:
        lost = ids.filter(rows.is_null())[0]
        notes.append(
            f"{facts['missing']:,} of {len(ids):,} {what} have no row in the table of {what}, such as {lost!r}: "
            "nothing is known of them"
        )
    if facts["without_events"]:
        notes.append(
            f"{facts['without_events']:,} of {len(index):,} {what} of the table of {what} have no event that is left, "
            "and are no part of the store" + NEW_ITEMS * (what == "items")
        )
    return JoinedTable(ids, frame.drop(key)[rows], facts, tuple(notes))


def _refuse_differing(frame: pl.DataFrame, ids: pl.Series, first: pl.Series, key: str, name: str) -> None:
    """Raise `UserError` where rows of the same id differ; `first` marks the first row of each id.

    Nobody but its owner can say which of them is right: a table of variants, of translations or of
    several dates would lose all but one row of each id without a word.
    """
    again = np.flatnonzero(~first)
    firsts = np.flatnonzero(first)[values.IdIndex(ids.filter(first)).find(ids.gather(again))]
    same = {column.name: _equal(column.gather(again), column.gather(firsts)) for column in frame}
    differ = ~np.logical_and.reduce([*same.values(), np.ones(len(again), bool)])
    if differ.any():
        wrong = ids.gather(again).filter(differ)
        columns = [column for column, equal in same.items() if not equal[differ][0]]
        raise UserError(
            f"{name} has several rows that differ for {wrong.n_unique():,} ids, such as {wrong[0]!r} with "
            f"{int((ids == wrong[0]).sum())} (column {columns[0]!r} among others): keep one row of each {key!r}, such "
            f"as the first by table.unique({key!r}, keep='first')",
            code="duplicate-rows",
        )


def _equal(a: pl.Series, b: pl.Series) -> Bool[np.ndarray, "n"]:
    """A mask of the rows where two columns are equal; nulls equal nulls, and NaN equals NaN."""
    if a.dtype.is_nested():
        return np.array([x == y for x, y in zip(a.to_list(), b.to_list(), strict=True)], bool)
    return a.eq_missing(b).to_numpy()


def _comparable(ids: pl.Series, keys: pl.Series, name: str, *, untyped: bool) -> tuple[pl.Series, pl.Series]:
    """Two columns of ids in a common type."""
    if untyped or ids.dtype == keys.dtype == pl.String:
        common: Any = pl.String
    elif pl.String in (ids.dtype, keys.dtype):
        raise UserError(
            f"{name} has ids of type {keys.dtype}, the events of type {ids.dtype}; cast one of them",
            code="wrong-id-type",
        )
    else:
        common = pl.UInt64 if pl.UInt64 in (ids.dtype, keys.dtype) else pl.Int64
    # a negative id has no partner among unsigned ones: null joins nothing
    return ids.cast(common, strict=False), keys.cast(common, strict=False)
