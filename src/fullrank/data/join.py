"""Item and user tables joined to the ids that have events: one row per id, in the store's order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from fullrank.core.errors import UserError
from fullrank.data import values
from fullrank.data.events.catalog import RESERVED
from fullrank.data.frames import Source


@dataclass(frozen=True)
class Attached:
    """External ids with what is known of them."""

    ids: pl.Series
    frame: pl.DataFrame
    """The user's columns, row i for code i; no columns where there was no table."""
    facts: dict[str, int] | None
    """Counts for the manifest; None where there was no table."""


def attach(table: Any, what: str, column: str, fallback: str, ids: pl.Series, typed: bool) -> Attached:
    """Rows of `table` for each of `ids` [N]; nulls where the table has none, the first row where it has several.

    The key is the column `column`, else `fallback`. Rows without events are dropped and counted. `typed` is False
    where `ids` came from a file without types. Raises `UserError` for a missing key column, missing ids, ids of
    another type, columns with reserved names, and a table that knows none of the ids.
    """
    if table is None:
        return Attached(ids, pl.DataFrame(), None)
    source = Source(table, what)
    key = column if column in source.columns else fallback
    source.require(key, f"name the id column {column!r} as in the events" if column == fallback
                   else f"name the id column {column!r} or {fallback!r}")  # fmt: skip
    reserved = [n for n in source.columns if n != key and n in (*RESERVED, "user", "user_id")]
    if reserved:
        raise UserError(f"{source.name} has a column {reserved[0]!r}, a name that the store uses itself; rename it")
    frame = source.infer(source.read(source.columns), keep_text=key)
    _storable(frame, source.name)
    given = values.ids(frame[key], f"column {key!r} of {source.name}")
    left, right = _comparable(ids, given, source.name, untyped=not (typed and source.typed))
    first = right.is_first_distinct()
    index = pl.DataFrame({"id": right, "row": np.arange(len(right))}).filter(first)
    found = pl.DataFrame({"id": left}).join(index, on="id", how="left", maintain_order="left")["row"]
    facts = {
        "rows": len(given),
        "repeated": int((~first).sum()),
        "without_events": len(index) - int(found.is_not_null().sum()),
        "missing": found.null_count(),
    }
    if facts["missing"] == len(ids):
        raise UserError(
            f"{source.name} knows none of the {len(ids):,} {what} with events (such as {ids[0]!r}; its ids are such "
            f"as {given[0] if len(given) else None!r}); is {key!r} the right column?"
        )
    return Attached(ids, frame.drop(key)[found], facts)


def _comparable(ids: pl.Series, given: pl.Series, name: str, *, untyped: bool) -> tuple[pl.Series, pl.Series]:
    strings = [series.dtype == pl.String for series in (ids, given)]
    if all(strings):
        return ids, given
    if untyped:
        return ids.cast(pl.String), given.cast(pl.String)
    if any(strings):
        raise UserError(f"{name} has ids of type {given.dtype}, the events of type {ids.dtype}; cast one of them")
    wide = pl.UInt64 if pl.UInt64 in (ids.dtype, given.dtype) else pl.Int64
    # A negative id finds no partner among unsigned ones: null joins nothing.
    return ids.cast(wide, strict=False), given.cast(wide, strict=False)


def _storable(frame: pl.DataFrame, name: str) -> None:
    for series in frame:
        if series.dtype == pl.Object:
            raise UserError(f"column {series.name!r} of {name} holds Python objects; cast it to a plain type")
