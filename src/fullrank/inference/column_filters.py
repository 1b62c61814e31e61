"""Filters on columns of items, read into masks of items: `{"in_stock": true, "price": {"max": 9}}`.

A filter lets through items whose value is known and fits; an item without a value is refused by
every filter on that column. {"in_stock": true} asks for a value, {"category": ["a", "b"]} for one
of several, {"price": {"min": 1, "max": 9}} for a number between two, both included. Of a column of
lists, one element has to fit. Nothing is converted: a text does not match a number, nor 1 the flag
true. V items.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, Literal

import numpy as np
import polars as pl
from jaxtyping import Bool

from fullrank.core.errors import UserError, brief, no_such
from fullrank.data.events.catalog import Catalog
from fullrank.data.frames import InputTable
from fullrank.data.values import none_known, refuse

Kind = Literal["flag", "number", "text"]
MOST_VALUES = 1000
"""Values of one filter."""
EXAMPLE = '{"year": {"min": 2000}, "genre": ["Comedy"]}'
WORDS = {"flag": "true or false", "number": "numbers", "text": "text"}


def kind_of(dtype: Any) -> tuple[Kind | None, bool]:
    """The kind of values in a column (None: not filtered by), and whether it holds lists of them."""
    listed = isinstance(dtype, pl.List | pl.Array)
    inner = dtype.inner if listed else dtype
    if inner == pl.Boolean:
        return "flag", listed
    if inner == pl.String or isinstance(inner, pl.Categorical | pl.Enum):
        return "text", listed
    return ("number", listed) if inner.is_numeric() else (None, listed)


def column_kinds(columns: Mapping[str, pl.Series]) -> dict[str, str]:
    """Name -> what it holds, in words: of the columns that can be filtered by."""
    kinds = {name: kind_of(column.dtype) for name, column in columns.items()}
    return {
        name: f"lists of {WORDS[kind]}" if listed else WORDS[kind]
        for name, (kind, listed) in kinds.items()
        if kind is not None
    }


def refused_by(columns: Mapping[str, pl.Series], filters: Mapping[str, Any]) -> Bool[np.ndarray, "V"]:
    """The items that do not pass all of these filters (at least one).

    Raises `UserError` for a column that is not there, and for values that it cannot hold.
    """
    passed: np.ndarray | None = None
    for name, wanted in filters.items():
        if name not in columns:
            raise no_such(
                "to filter by, the items have no column", name, columns, "columns", code="unknown-column", public=True
            )
        fits = _fits(columns[name], wanted)
        passed = fits if passed is None else passed & fits
    assert passed is not None
    return ~passed


def check_filters(filters: Any) -> Mapping[str, Any]:
    """Filters of one request, by column. Raises `UserError` for what is no mapping of names."""
    if not isinstance(filters, Mapping) or not all(isinstance(name, str) for name in filters):
        raise UserError(
            f"filters={brief(filters, 80)}: give a mapping of columns, such as {EXAMPLE}, or a list with one for each "
            "history",
            code="not-filters",
            public=True,
        )
    return filters


def item_columns(catalog: Catalog, table: Any = None, id_column: str = "item_id") -> dict[str, pl.Series]:
    """The columns that filters may name: those of the catalogue, and in their place or beside them those of a table.

    `table` is a path or a DataFrame with a row for each item and its id in the column `id_column`,
    else `item_id`; items without a row have no values there. Raises `UserError` for missing,
    repeated or foreign ids.
    """
    columns = {name: catalog.frame[name] for name in catalog.columns}
    if table is None:
        return columns
    source = InputTable(table, "the table of items")
    key = id_column if id_column in source.columns else "item_id"
    source.require(key, "rename the column that holds the ids")
    frame = source.infer(source.read(source.columns), keep_text=key)
    ids = source.ids(frame, key, text=catalog.ids.dtype == pl.String)
    refuse(ids.is_duplicated(), ids, source.name, "repeated ids, where each needs one row,", code="repeated-ids")
    positions = catalog.lookup(ids)
    if not (positions >= 0).any():
        raise none_known(ids, f"items in column {key!r} of {source.name}", "the model's catalogue", catalog.ids)
    row = np.full(catalog.size, -1)
    row[positions[positions >= 0]] = np.flatnonzero(positions >= 0)
    at = pl.Series(row).replace(-1, None)
    return columns | {column.name: column.gather(at) for column in frame if column.name != key}


def filters_key(filters: Mapping[str, Any]) -> str:
    """A hash of 32 characters, alike for equal filters. Raises `UserError`."""
    try:
        text = json.dumps({name: canonical_filter(filters[name]) for name in sorted(filters)}, default=repr)
    except ValueError:  # Python writes no whole number of more than 4,300 digits
        raise UserError(
            "a filter's number has thousands of digits; give numbers below 1e308", code="filter-wrong-type", public=True
        ) from None
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def canonical_filter(wanted: Any) -> Any:
    """The canonical form of a filter's value, equal for equal filters: lists in order, each value once."""
    if isinstance(wanted, list):
        return sorted(set(map(repr, wanted)))
    return sorted(wanted.items(), key=repr) if isinstance(wanted, Mapping) else wanted


def _fits(column: pl.Series, wanted: Any) -> Bool[np.ndarray, "V"]:
    """The items that pass the filter on one column."""
    name, (kind, listed) = column.name, kind_of(column.dtype)
    if kind is None:
        raise UserError(
            f"the column {name!r} holds {column.dtype}, which is not filtered by: columns of text, numbers, true or "
            "false, and lists of text or numbers are; prepare the store with it as one of these",
            code="column-not-filtered",
            public=True,
        )
    if listed:
        lists = column.arr.to_list() if isinstance(column.dtype, pl.Array) else column
        lengths = lists.list.len().fill_null(0).to_numpy().astype(np.int64)
        if not lengths.any():
            _values(name, kind, wanted)
            return np.zeros(len(column), bool)
        # A list fits where the running count of fitting elements grows between its
        # beginning and its end.
        flat = lists.filter(pl.Series(lengths > 0)).explode()
        total = np.concatenate([[0], np.cumsum(_one_fits(flat.alias(name), kind, wanted))])
        ends = np.cumsum(lengths)
        return total[ends] > total[ends - lengths]
    return _one_fits(column, kind, wanted)


def _one_fits(column: pl.Series, kind: Kind, wanted: Any) -> Bool[np.ndarray, "E"]:
    """Whether each value (no lists) is known and fits."""
    values = _values(column.name, kind, wanted)
    if isinstance(values, tuple):
        fits = _within_range(column, *values)
    elif kind == "number":
        fits = _is_one_of(column, values)
    else:
        plain = column.cast(pl.String if kind == "text" else pl.Boolean)
        among = pl.Series(values, dtype=plain.dtype)
        fits = plain == values[0] if len(values) == 1 else plain.is_in(among.implode())
    return fits.fill_null(False).to_numpy()


def _within_range(column: pl.Series, low: float | None, high: float | None) -> pl.Series:
    """Mask of the numbers of a column that lie between these bounds."""
    number = _comparable(column)
    least, end = _bounds(number)
    # a whole number that the type does not have is compared as a double
    low, high = (bound if bound is None or least <= bound < end else float(bound) for bound in (low, high))
    number = number.fill_nan(None) if number.dtype.is_float() else number  # NaN would be above every number
    fits = number.is_not_null() if low is None else number >= low
    return fits if high is None else fits & (number <= high)


def _is_one_of(column: pl.Series, values: list[Any]) -> pl.Series:
    """Mask of the numbers of a column that are among these: one pass, however many there are."""
    number = _comparable(column)
    if number.dtype.is_float():
        wanted = pl.Series([float(value) for value in values], dtype=pl.Float64).cast(number.dtype)
        return number.is_in(wanted.filter(wanted.is_finite()).implode())
    least, end = _bounds(number)
    whole = [int(value) for value in values if least <= value < end and value == int(value)]
    return number.is_in(pl.Series(whole, dtype=number.dtype).implode())


def _bounds(number: pl.Series) -> tuple[int, int]:
    """The least whole number that polars compares with numbers of a
    type, and the first above them."""
    return (0, 2**64) if number.dtype == pl.UInt64 else (-(2**63), 2**63)


def _comparable(column: pl.Series) -> pl.Series:
    """Numbers of a type that JSON's can be compared with: small integer
    types cannot hold a large bound."""
    dtype = column.dtype
    if dtype.is_float() or dtype in (pl.Int64, pl.UInt64):
        return column
    return column.cast(pl.Int64 if dtype.is_integer() else pl.Float64, strict=False)


def _values(name: str, kind: Kind, wanted: Any) -> list[Any] | tuple[float | None, float | None]:
    """The values that fit, or the bounds of a range. Raises `UserError` for
    what this column cannot hold."""
    if isinstance(wanted, Mapping):
        return _range(name, kind, wanted)
    values = list(wanted) if isinstance(wanted, list | tuple) else [wanted]
    rule = f"at most {MOST_VALUES:,} values are allowed, not {len(values):,}"
    require_filter(len(values) <= MOST_VALUES, name, wanted, rule, code="too-many-values")
    null = "no filter lets items without a value through; name a value, or leave the filter out"
    require_filter(all(entry is not None for entry in values), name, wanted, null, code="filter-null")
    rule = f"this column holds {WORDS[kind]}"
    for entry in values:
        require_filter(is_a(kind, entry), name, entry, rule, code="filter-wrong-type")
    return list(dict.fromkeys(values))


def require_filter(fits: bool, name: str, wanted: Any, rule: str, *, code: str) -> None:
    """Raise `UserError` for a filter that breaks a rule, which the sentence says."""
    if not fits:
        raise UserError(f"the filter {name}={brief(wanted, 80)}: {rule}", code=code, public=True)


def _range(name: str, kind: Kind, wanted: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """The bounds of a range. Raises `UserError` for one that is malformed, empty, or
    on a column without numbers."""
    known = bool(wanted) and wanted.keys() <= {"min", "max"}
    require_filter(known, name, wanted, "a range has min, max, or both", code="filter-not-a-range")
    rule = f"ranges are of numbers, and this column holds {WORDS[kind]}: name a value, or a list of them"
    require_filter(kind == "number", name, wanted, rule, code="filter-wrong-type")
    finite = all(is_a("number", bound) for bound in wanted.values())
    require_filter(finite, name, wanted, "min and max are finite numbers", code="filter-wrong-type")
    low, high = wanted.get("min"), wanted.get("max")
    rising = low is None or high is None or low <= high
    require_filter(rising, name, wanted, "min is above max, so that nothing fits", code="empty-range")
    return low, high


def is_a(kind: str | None, value: Any) -> bool:
    """Whether a value is of a kind; a number is one that a double holds."""
    if kind == "number":
        return isinstance(value, int | float) and not isinstance(value, bool) and _finite(value)
    return isinstance(value, {"flag": bool, "text": str}.get(kind or "", ()))


def _finite(number: float) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:  # a whole number of hundreds of digits
        return False
