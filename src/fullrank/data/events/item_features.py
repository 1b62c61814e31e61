"""Columns of items as numbers: codes of a category, or of a list of categories, and standardised numeric columns.

All are fitted on the items of the first id map, the first `base` rows: items added later keep the
codes and the scale of a trained model, and a category that it never saw is coded as missing (in a
list: left out).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from jaxtyping import Float32, Int64

from fullrank.core.errors import UserError
from fullrank.data.values import IdIndex, refuse, wrong_type

LONGEST = 64
"""Most different values in the list of an item: every item holds as many codes as the longest list has."""


@dataclass(frozen=True)
class CodedColumn:
    """One column as codes."""

    name: str
    codes: np.ndarray
    """0 where the value is missing (or unknown), 1 .. cardinality - 1 in sorted order of the values."""
    values: pl.Series
    """The values of codes 1, 2, ..."""

    @property
    def cardinality(self) -> int:
        """Number of codes, missing included."""
        return len(self.values) + 1


@dataclass(frozen=True)
class CategoricalFeature(CodedColumn):
    """A column with one value for each item."""

    codes: Int64[np.ndarray, "V"]


@dataclass(frozen=True)
class CategoryLists(CodedColumn):
    """A column of lists (the categories of an item, its tags), each value of an item once.

    Codes stand in the order of the list. An item without a known value has one 0; -1 is padding.
    """

    codes: Int64[np.ndarray, "V L"]


@dataclass(frozen=True)
class NumericFeatures:
    """Numeric columns as one matrix."""

    names: tuple[str, ...]
    values: Float32[np.ndarray, "V X"]
    """Mean 0 and standard deviation 1 over the known values of the first id map; 0 where missing."""
    missing: Float32[np.ndarray, "V X"]
    """1 where the value is missing."""

    @property
    def matrix(self) -> Float32[np.ndarray, "V X2"]:
        """`values` and `missing` side by side, as a feature encoder reads them."""
        return np.concatenate([self.values, self.missing], axis=1)


def coded(column: pl.Series, base: int, *, listed: bool = False) -> CategoricalFeature:
    """Codes of a column of strings, categories, whole numbers or booleans. Raises `UserError` for other types.

    `listed`: these are the values of a column of lists, which cannot be a numeric feature instead.
    """
    dtype = column.dtype
    if isinstance(dtype, (pl.Categorical, pl.Enum)) or dtype == pl.Boolean:
        column = column.cast(pl.String)
    elif not (dtype.is_integer() or dtype in (pl.String, pl.Null)):
        what = "the items" + ", inside its lists," * listed
        hint = "; use it as a numeric feature" if dtype.is_numeric() and not listed else ""
        raise wrong_type(column, what, f"categories are strings, whole numbers or booleans{hint}")
    known = column[:base].drop_nulls().unique().sort()
    return CategoricalFeature(column.name, IdIndex(known).find(column) + 1, known)


def coded_lists(column: pl.Series, base: int) -> CategoryLists:
    """Codes of a column of lists. Raises `UserError` where their values are no
    categories, or too many for one item."""
    assert isinstance(column.dtype, pl.List | pl.Array)
    lists = column.cast(pl.List(column.dtype.inner))
    flat = pl.DataFrame({"item": np.arange(len(column)), "value": lists}).explode("value").drop_nulls()
    flat = flat.unique(maintain_order=True)
    feature = coded(flat["value"].alias(column.name), int((flat["item"] < base).sum()), listed=True)
    known = feature.codes > 0
    items = flat["item"].to_numpy()[known]
    lengths = np.bincount(items, minlength=len(column))
    longest = int(lengths.max(initial=0))
    if longest > LONGEST:
        raise UserError(
            f"column {column.name!r} of the items has a list of {longest:,} different values; the most is {LONGEST}: "
            "keep the first ones of each item in the item table",
            code="list-too-long",
        )
    codes = np.full((len(column), max(1, longest)), -1)
    codes[lengths == 0, 0] = 0
    # rows of an item are neighbours: less the rows of the items before it, a row's number
    # is its place in the list
    codes[items, np.arange(len(items)) - (np.cumsum(lengths) - lengths)[items]] = feature.codes[known]
    return CategoryLists(column.name, codes, feature.values)


def standardised(columns: Sequence[pl.Series], base: int) -> NumericFeatures:
    """Standardised columns of numbers or booleans. Raises `UserError` for other types and infinite values."""
    raw = []
    for column in columns:
        if not (column.dtype.is_numeric() or column.dtype == pl.Boolean):
            raise wrong_type(column, "the items", "numbers are needed")
        numbers = column.cast(pl.Float64).fill_null(np.nan)
        refuse(numbers.is_infinite(), column, "the items", "infinite values", code="infinite-numbers")
        raw.append(numbers.to_numpy())
    matrix = np.stack(raw, axis=1) if raw else np.zeros((0, 0))
    missing = np.isnan(matrix)
    known = ~missing[:base]
    count = np.maximum(known.sum(axis=0), 1)
    mean = np.where(known, matrix[:base], 0).sum(axis=0) / count
    centred = np.where(missing, 0, matrix - mean)
    spread = np.sqrt((centred[:base] ** 2).sum(axis=0) / count)
    # A constant column says nothing: it becomes 0 instead of rounding noise blown up by a tiny
    # spread.
    scale = np.where(spread > 1e-9 * np.maximum(np.abs(mean), 1), 1 / np.maximum(spread, 1e-300), 0)
    names = tuple(column.name for column in columns)
    return NumericFeatures(names, (centred * scale).astype(np.float32), missing.astype(np.float32))
