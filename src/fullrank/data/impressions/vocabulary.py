"""External values to ids: a vocabulary fitted on training rows, or a stable hash. 0 missing, 1 unknown, 2 and up known.

Values are compared as text, so that 42 in a CSV file, in an integer column and in a later table is
one value. Ids go by descending count, then by value: they depend neither on the order of the rows
nor on the engine.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import polars as pl
from jaxtyping import Int32, Int64

from fullrank.data.values import IntIndex, TextIndex, refuse, wrong_type

MISSING, UNKNOWN, FIRST = 0, 1, 2
"""The ids that every field has, and the id of its first value."""
_MERGE = 1 << 20  # counted values held before they are summed: bounds memory to a few copies of the vocabulary


class Counts:
    """How often each value occurs, from one chunk after another."""

    def __init__(self) -> None:
        self._parts: list[pl.DataFrame] = []
        self._held = self._merged = 0

    def add(self, values: pl.Series) -> None:
        """Count values that `canonical` gave; nulls are missing and not counted."""
        counted = values.alias("value").drop_nulls().value_counts(name="count").cast({"count": pl.Int64})
        if len(counted):
            self._hold(counted)

    def add_counted(self, values: pl.Series, counts: Int64[np.ndarray, "n"]) -> None:
        """Count values that `canonical` gave, so often each; one may stand there several times."""
        counted = pl.DataFrame({"value": values, "count": counts}).filter(pl.col("count") > 0)
        if len(counted):
            self._hold(_summed([counted]))

    def __add__(self, other: Counts) -> Counts:
        whole = Counts()
        for part in (*self._parts, *other._parts):
            whole._hold(part)
        return whole

    def _hold(self, counted: pl.DataFrame) -> None:
        self._parts.append(counted)
        self._held += len(counted)
        if self._held > 2 * self._merged + _MERGE:
            self._merge()

    def table(self, *more: Counts, least: int = 1, numbers: bool = False) -> pl.DataFrame:
        """`value` (text) and `count` of the values that occur at least so often, in the order of their ids.

        `more` are counts of other columns with the same vocabulary; a value has to occur so
        often in one of them. `numbers` orders text like numbers where all of it are whole
        numbers (files without types).
        """
        parts = [part.filter(pl.col("count") >= least) for counts in (self, *more) for part in counts._merge()]
        if not parts:
            return pl.DataFrame(schema={"value": pl.String, "count": pl.Int64})
        table = _summed(parts) if len(parts) > 1 else parts[0]
        whole = as_whole_numbers(table["value"]) if numbers else None
        if whole is not None:
            table = table.with_columns(whole.alias("value"))
        return table.sort(["count", "value"], descending=[True, False]).cast({"value": pl.String})

    @property
    def whole(self) -> bool:
        """Whether the values came as whole numbers, not as text."""
        return all(part["value"].dtype == pl.Int64 for part in self._parts)

    def _merge(self) -> list[pl.DataFrame]:
        """The counts as one table in a list, or an empty list."""
        if self._parts:
            merged = _summed(self._parts)
            self._parts, self._held, self._merged = [merged], len(merged), len(merged)
        return self._parts


def _summed(parts: list[pl.DataFrame]) -> pl.DataFrame:
    """The counts of each value over all parts; as text where one of them is."""
    if len({part["value"].dtype for part in parts}) > 1:
        parts = [part.cast({"value": pl.String}) for part in parts]
    return pl.concat(parts).group_by("value").agg(pl.col("count").sum())


class Vocabulary:
    """The values of a field; value i has the id i + 2."""

    def __init__(self, values: pl.Series):
        self.values = values
        self._whole = IntIndex(whole) if (whole := as_whole_numbers(values)) is not None else None
        self._text: TextIndex | None = None

    @property
    def size(self) -> int:
        """Number of ids, missing and unknown included."""
        return len(self.values) + FIRST

    def ids(self, values: pl.Series) -> Int32[np.ndarray, "R"]:
        """The id of each value that `canonical` gave."""
        if values.dtype == pl.Int64 and self._whole is not None:
            positions = self._whole.find(values.fill_null(0).to_numpy())
        else:
            self._text = self._text or TextIndex(self.values)
            positions = self._text.find(values.cast(pl.String))
        ids = np.where(positions < 0, UNKNOWN, positions + FIRST).astype(np.int32)
        ids[values.is_null().to_numpy()] = MISSING
        return ids


@dataclass(frozen=True)
class Hashed:
    """Ids by BLAKE2b of the text, equal in every process, machine and version."""

    buckets: int

    @property
    def size(self) -> int:
        return self.buckets + FIRST

    def ids(self, values: pl.Series) -> Int32[np.ndarray, "R"]:
        """The id of each value that `canonical` gave; none is unknown."""
        distinct = values.cast(pl.String).drop_nulls().unique()
        known = np.array([MISSING, UNKNOWN, *(FIRST + hash_bucket(text, self.buckets) for text in distinct)], np.int32)
        return known[Vocabulary(distinct).ids(values)]


def hash_bucket(text: str, buckets: int) -> int:
    """The hash bucket of a value: 0 .. buckets - 1."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") % buckets


def canonical(series: pl.Series, what: str) -> pl.Series:
    """Categories as Int64 or String, null where missing (null, NaN, empty text).

    Raises `UserError` for types that are no category: fractions, dates, lists.
    """
    dtype = series.dtype
    if dtype.is_float():
        series = series.fill_nan(None)
        refuse(
            series.is_not_null() & ((series != series.floor()) | (series.abs() > 2**53)),
            series,
            what,
            "values that are no whole numbers, so they are no categories (kind: numeric takes them)",
            code="not-whole-numbers",
        )
        return series.cast(pl.Int64)
    if dtype.is_integer():
        whole = series.cast(pl.Int64, strict=False)
        return whole if whole.null_count() == series.null_count() else series.cast(pl.String)
    if dtype in (pl.Boolean, pl.Null) or isinstance(dtype, (pl.Categorical, pl.Enum)):
        series = series.cast(pl.String)
    if series.dtype != pl.String:
        raise wrong_type(series, what, "categories are text, whole numbers or booleans")
    return series.set(series == "", None) if (series == "").any() else series


def as_whole_numbers(values: pl.Series) -> pl.Series | None:
    """Text as Int64 where all of it are whole numbers, plainly written (42, not 042), else None."""
    whole = values.cast(pl.Int64, strict=False)
    if whole.null_count() > values.null_count() or not (whole.cast(pl.String) == values.cast(pl.String)).all():
        return None
    return whole
