"""Columns of items that are set while the service runs: values that fit a column, the type of a new one, changed cells.

What filters make of columns: `inference/column_filters.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl

from fullrank.core.errors import UserError, brief
from fullrank.inference.column_filters import WORDS, is_a, kind_of


def cell(name: str, value: Any, dtype: Any) -> Any:
    """A value for a column of this type, as it was given. Raises `UserError` for one that does not fit."""
    if value is None:
        return None
    kind, listed = kind_of(dtype)
    parts = value if isinstance(value, list) else [value]
    fits = isinstance(value, list) == listed and all(is_a(kind, part) for part in parts)
    if fits:
        try:
            held = pl.Series([value], dtype=dtype, strict=True)
            held = held.explode() if listed else held
            if not held.dtype.is_float() or held.drop_nulls().is_finite().all():  # 1e39 is none of 32 bits
                return value
            fits = False
        except (TypeError, OverflowError, pl.exceptions.PolarsError):
            fits = False
    if kind is None:
        raise UserError(
            f"{name}={brief(value, 80)}: the column {name!r} holds {dtype}, which cannot be set here: leave it out",
            code="wrong-column-type",
        )
    raise UserError(
        f"{name}={brief(value, 80)}: the column {name!r} holds {'lists of ' * listed}{WORDS[kind]} ({dtype}); give "
        "such a value, or null for none",
        code="wrong-column-type",
    )


def type_of(name: str, value: Any) -> Any:
    """The type of a new column whose first value this is; None where the value does not tell (null, an empty list)."""
    if isinstance(value, list):
        kinds = {type_of(name, part) for part in value}
        if len(kinds) > 1:
            raise UserError(
                f"{name}={brief(value, 80)}: a list holds values of one kind: text, numbers, or true and false",
                code="wrong-column-type",
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
    place = np.arange(len(column), dtype=np.int64)
    place[rows] = len(column) + np.arange(len(rows))
    fresh = pl.Series(column.name, list(cells.values()), dtype=column.dtype)
    return pl.concat([column, fresh]).gather(place)
