"""Documents of items, which `POST /v1/items` made, read against a run's catalogue.

A body has `id`, and any of `title`, `text`, `features` (columns), `like`, `retired` and
`expires_at`. It is always whole: whoever stores it fills in the fields that a later request left
out. Filters read columns by `inference/column_filters.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import polars as pl

from fullrank.core.errors import UserError, brief
from fullrank.data.events.catalog import RESERVED
from fullrank.inference.column_filters import WORDS, is_a, kind_of
from fullrank.serving.requests import ItemNumbers

TITLE = "title"
MOST_COLUMNS = 256
"""Columns of a catalogue that still takes new ones: each is a value of every item, in memory."""


@dataclass(frozen=True)
class Newcomer:
    """An item that the run does not have, as its document describes it."""

    id: int | str
    title: str | None = None
    text: str | None = None
    cells: Mapping[str, Any] = field(default_factory=dict)
    """Values of its columns."""
    like: tuple[int | str, ...] = ()


@dataclass(frozen=True)
class Entry:
    """One document, read."""

    body: Mapping[str, Any]
    id: int | str
    cells: Mapping[str, Any] = field(default_factory=dict)
    """Values of columns, its title among them."""
    newcomer: Newcomer | None = None
    """For an item that the run does not have."""
    retired: bool = False
    expires_at: float | None = None


@dataclass(frozen=True)
class Reading:
    """The documents of some items, read."""

    entries: Mapping[str, Entry]
    refused: Mapping[str, UserError]
    """Key of a document that could not be read -> why."""
    types: Mapping[str, Any]
    """The types of all columns that may be changed, those that came with documents among them."""


def read_documents(
    documents: Mapping[str, Mapping[str, Any] | None],
    numbers: ItemNumbers,
    own_columns: frozenset[str],
    before: Reading,
) -> Reading:
    """The documents by their keys; those that were read `before` are taken over.

    `numbers` are of the run's items, `own_columns` those that the library filled in for itself. An
    item that was added and has no document any more is retired, since its number stays.
    """
    entries: dict[str, Entry] = {}
    for key, entry in before.entries.items():  # added items keep their order, by which they are numbered
        if entry.newcomer is not None:
            gone = documents.get(key) is None  # then its number is left, which nobody is shown any more
            entries[key] = replace(entry, retired=True, body={}) if gone else entry
    fresh: dict[str, Mapping[str, Any]] = {}
    refused: dict[str, UserError] = {}
    for key, body in documents.items():
        known = before.entries.get(key)
        if body is None:
            continue
        if known is not None and (known.body is body or known.body == body):
            entries[key] = known
        else:
            fresh[key] = body
    types = dict(before.types)
    for key, body in fresh.items():
        try:
            entries[key] = _entry(body, numbers, own_columns, types)
        except UserError as error:
            refused[key] = error
            if key in before.entries:  # its former document holds on
                entries[key] = before.entries[key]
    return Reading(entries, refused, types)


def _entry(body: Mapping[str, Any], numbers: ItemNumbers, own_columns: frozenset[str], types: dict[str, Any]) -> Entry:
    """One document, read; columns that are new join `types`. Raises
    `UserError` for what it may not say."""
    item = numbers.typed(body["id"])
    wrong = item == "" or (isinstance(item, int) and not -(2**63) <= item < 2**63)
    if wrong or isinstance(item, str) == numbers.whole:
        raise UserError(
            f"item {brief(item, 80)}: ids of this catalogue are {'whole numbers' if numbers.whole else 'texts'} (such "
            f"as {numbers.ids[0]!r}), not empty, and of at most 64 bits; give one",
            code="wrong-id-type",
            public=True,
        )
    cells: dict[str, Any] = {}
    fresh: dict[str, Any] = {}
    title, features = body.get("title"), body.get("features") or {}
    for name, value in [*features.items(), *([(TITLE, title)] if title is not None else [])]:
        if name in RESERVED or name in own_columns or (name == TITLE and name in features):
            raise UserError(
                f"item {item!r}: features gives {name!r}, which is not a column of yours"
                f"{'; a title is given beside features' if name == TITLE else ''}",
                code="reserved-column",
                public=True,
            )
        dtype = types.get(name) or type_of(name, value)
        if dtype is not None:
            if name not in types and len(types.keys() | fresh.keys()) >= MOST_COLUMNS:
                raise UserError(
                    f"item {brief(item, 80)}: {brief(name, 80)} would be a new column, and the items have "
                    f"{MOST_COLUMNS} already, which is the most: use one of these",
                    code="too-many-columns",
                    public=True,
                )
            cells[name] = cell(name, value, dtype)
            fresh[name] = dtype
    types |= fresh
    newcomer = None
    if numbers.get(item) < 0:
        like = tuple(map(numbers.typed, body.get("like") or ()))
        newcomer = Newcomer(item, title, body.get("text"), {n: v for n, v in cells.items() if n != TITLE}, like)
    return Entry(body, item, cells, newcomer, bool(body.get("retired")), body.get("expires_at"))


def cell(name: str, value: Any, dtype: Any) -> Any:
    """A value for a column of this type, as it was given. Raises `UserError` for one that does not fit."""
    if value is None:
        return None
    kind, listed = kind_of(dtype)
    parts = value if isinstance(value, list) else [value]
    if isinstance(value, list) == listed and all(is_a(kind, part) for part in parts):
        with suppress(TypeError, OverflowError, pl.exceptions.PolarsError):
            column = pl.Series([value], dtype=dtype, strict=True)
            column = column.explode() if listed else column
            if not column.dtype.is_float() or column.drop_nulls().is_finite().all():  # 1e39 does not fit 32 bits
                return value
    expected = f"{dtype}, which cannot be set here: leave it out"
    if kind is not None:
        expected = f"{'lists of ' * listed}{WORDS[kind]} ({dtype}); give such a value, or null for none"
    raise UserError(
        f"{name}={brief(value, 80)}: the column {name!r} holds {expected}", code="wrong-column-type", public=True
    )


def type_of(name: str, value: Any) -> Any:
    """The type of a new column whose first value this is; None where the value does not
    tell (null, an empty list)."""
    if isinstance(value, list):
        kinds = {type_of(name, part) for part in value}
        if len(kinds) > 1:
            raise UserError(
                f"{name}={brief(value, 80)}: a list holds values of one kind: text, numbers, or true and false",
                code="wrong-column-type",
                public=True,
            )
        inner = kinds.pop() if kinds else None
        return None if inner is None else pl.List(inner)
    for kind, dtype in (("flag", pl.Boolean()), ("number", pl.Float64()), ("text", pl.String())):
        if is_a(kind, value):
            return dtype
    return None


def changed(column: pl.Series, cells: Mapping[int, Any]) -> pl.Series:
    """A column with other values in some rows."""
    rows = np.fromiter(cells, np.int64, len(cells))
    source = np.arange(len(column), dtype=np.int64)
    source[rows] = len(column) + np.arange(len(rows))
    fresh = pl.Series(column.name, list(cells.values()), dtype=column.dtype)
    return pl.concat([column, fresh]).gather(source)
