"""Columns of the item table as numbers: codes for categories, standardised values with missing indicators.

Both are fitted on the items that the first id map had (`base`): items added later keep the codes and the scale of a
trained model, and a category that it never saw is coded as missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from jaxtyping import Float32, Int64

from fullrank.core.errors import UserError


@dataclass(frozen=True)
class Categorical:
    """One column as codes."""

    name: str
    codes: Int64[np.ndarray, "V"]
    """0 where the value is missing (or unknown), 1 .. cardinality - 1 in sorted order of the values."""
    values: pl.Series
    """What codes 1, 2, ... stand for."""

    @property
    def cardinality(self) -> int:
        """Number of codes, missing included."""
        return len(self.values) + 1


@dataclass(frozen=True)
class Numeric:
    """Some columns as one matrix."""

    names: tuple[str, ...]
    values: Float32[np.ndarray, "V F"]
    """Mean 0 and standard deviation 1 over the known values of the first id map; 0 where missing."""
    missing: Float32[np.ndarray, "V F"]
    """1 where the value is missing."""

    @property
    def matrix(self) -> Float32[np.ndarray, "V F2"]:
        """`values` and `missing` side by side: what a feature encoder reads."""
        return np.concatenate([self.values, self.missing], axis=1)


def categorical(column: pl.Series, base: int) -> Categorical:
    """Codes of a column of strings, categories, whole numbers or booleans. Raises `UserError` for other types."""
    dtype = column.dtype
    if isinstance(dtype, (pl.Categorical, pl.Enum)) or dtype == pl.Boolean:
        column = column.cast(pl.String)
    elif not (dtype.is_integer() or dtype in (pl.String, pl.Null)):
        hint = "; use it as a numeric feature" if dtype.is_numeric() else ""
        raise UserError(
            f"column {column.name!r} of the items is of type {dtype}; categories are strings, whole numbers or booleans"
            + hint
        )
    known = column[:base].drop_nulls().unique().sort()
    if known.is_empty():
        return Categorical(column.name, np.zeros(len(column), np.int64), known)
    codes = pl.DataFrame({"value": column}).join(
        pl.DataFrame({"value": known, "code": np.arange(1, len(known) + 1)}),
        on="value",
        how="left",
        maintain_order="left",
    )
    return Categorical(column.name, codes["code"].fill_null(0).to_numpy().astype(np.int64), known)


def numeric(columns: Sequence[pl.Series], base: int) -> Numeric:
    """Standardised columns of numbers or booleans. Raises `UserError` for other types and infinite values."""
    raw = []
    for column in columns:
        if not (column.dtype.is_numeric() or column.dtype == pl.Boolean):
            raise UserError(f"column {column.name!r} of the items is of type {column.dtype}, not a number")
        values = column.cast(pl.Float64).fill_null(np.nan).to_numpy()
        if np.isinf(values).any():
            raise UserError(f"column {column.name!r} of the items has {int(np.isinf(values).sum()):,} infinite values")
        raw.append(values)
    matrix = np.stack(raw, axis=1) if raw else np.zeros((0, 0))
    missing = np.isnan(matrix)
    known = ~missing[:base]
    count = np.maximum(known.sum(axis=0), 1)
    mean = np.where(known, matrix[:base], 0).sum(axis=0) / count
    centred = np.where(missing, 0, matrix - mean)
    spread = np.sqrt((centred[:base] ** 2).sum(axis=0) / count)
    # A constant column says nothing: it becomes 0 instead of rounding noise blown up by a tiny spread.
    scale = np.where(spread > 1e-9 * np.maximum(np.abs(mean), 1), 1 / np.maximum(spread, 1e-300), 0)
    names = tuple(column.name for column in columns)
    return Numeric(names, (centred * scale).astype(np.float32), missing.astype(np.float32))
