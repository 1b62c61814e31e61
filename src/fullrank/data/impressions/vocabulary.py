"""External values to ids: a vocabulary fitted on training rows, or a stable hash. 0 missing, 1 unknown, 2 and up known.

Values are compared as text, so that 42 in a CSV file, in an integer column and in a later table is one value. Ids go by
descending count, then by value: they depend neither on the order of the rows nor on the engine.
"""

from __future__ import annotations

import hashlib

import numpy as np
import polars as pl
from jaxtyping import Int32

from fullrank.core.errors import UserError
from fullrank.data.values import refuse

MISSING, UNKNOWN, FIRST = 0, 1, 2
"""The ids that every field has, and the id of its first value."""
_MERGE = 1 << 20  # counted values held before they are summed: bounds memory to a few copies of the vocabulary
_DENSE = 1 << 22  # largest span of whole numbers that are looked up in a table


class Counts:
    """How often each value occurs, from one chunk after another."""

    def __init__(self) -> None:
        self._parts: list[pl.DataFrame] = []
        self._held = self._merged = 0

    def add(self, values: pl.Series) -> None:
        """Count values that `canonical` gave; nulls are missing and not counted."""
        found = values.alias("value").drop_nulls().value_counts(name="count").cast({"count": pl.Int64})
        if len(found):
            self._parts.append(found)
            self._held += len(found)
        if self._held > 2 * self._merged + _MERGE:
            self._merge()

    def table(self, *, least: int = 1, numbers: bool = False) -> pl.DataFrame:
        """`value` (text) and `count` of the values that occur at least so often, in the order of their ids.

        `numbers` orders text like numbers where all of it are whole numbers (files without types).
        """
        self._merge()
        if not self._parts:
            return pl.DataFrame(schema={"value": pl.String, "count": pl.Int64})
        (table,) = self._parts
        whole = whole_numbers(table["value"]) if numbers else None
        if whole is not None:
            table = table.with_columns(whole.alias("value"))
        table = table.filter(pl.col("count") >= least).sort(["count", "value"], descending=[True, False])
        return table.cast({"value": pl.String})

    @property
    def whole(self) -> bool:
        """Whether the values came as whole numbers, not as text."""
        return all(part["value"].dtype == pl.Int64 for part in self._parts)

    def _merge(self) -> None:
        if len({part["value"].dtype for part in self._parts}) > 1:
            self._parts = [part.cast({"value": pl.String}) for part in self._parts]
        if self._parts:
            merged = pl.concat(self._parts).group_by("value").agg(pl.col("count").sum())
            self._parts, self._held, self._merged = [merged], len(merged), len(merged)


class Vocabulary:
    """The values of a field; value i has the id i + 2."""

    def __init__(self, values: pl.Series):
        self.values = values
        self._whole = IntIndex(whole) if (whole := whole_numbers(values)) is not None else None
        self._text: TextIndex | None = None

    @property
    def size(self) -> int:
        """Number of ids, missing and unknown included."""
        return len(self.values) + FIRST

    def ids(self, values: pl.Series) -> Int32[np.ndarray, "R"]:
        """The id of each value that `canonical` gave."""
        if values.dtype == pl.Int64 and self._whole is not None:
            place = self._whole.find(values.fill_null(0).to_numpy())
        else:
            self._text = self._text or TextIndex(self.values)
            place = self._text.find(values.cast(pl.String))
        ids = np.where(place < 0, UNKNOWN, place + FIRST).astype(np.int32)
        ids[values.is_null().to_numpy()] = MISSING
        return ids


class Hashed:
    """Ids by BLAKE2b of the text, the same in every process, on every machine, for every version."""

    def __init__(self, buckets: int):
        self.buckets = buckets

    @property
    def size(self) -> int:
        return self.buckets + FIRST

    def ids(self, values: pl.Series) -> Int32[np.ndarray, "R"]:
        """The id of each value that `canonical` gave; none is unknown."""
        distinct = values.cast(pl.String).drop_nulls().unique()
        known = np.array([MISSING, UNKNOWN, *(FIRST + bucket(text, self.buckets) for text in distinct)], np.int32)
        return known[Vocabulary(distinct).ids(values)]


def bucket(text: str, buckets: int) -> int:
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
            series.is_not_null() & ((series != series.floor()) | (series.abs() > 2**53)), series, what,
            "values that are no whole numbers, so they are no categories (kind: numeric takes them)",
        )  # fmt: skip
        return series.cast(pl.Int64)
    if dtype.is_integer():
        whole = series.cast(pl.Int64, strict=False)
        return whole if whole.null_count() == series.null_count() else series.cast(pl.String)
    if dtype in (pl.Boolean, pl.Null) or isinstance(dtype, (pl.Categorical, pl.Enum)):
        series = series.cast(pl.String)
    if series.dtype != pl.String:
        raise UserError(f"{what} is of type {dtype}; categories are text, whole numbers or booleans")
    return series.set(series == "", None) if bool((series == "").any()) else series


def whole_numbers(values: pl.Series) -> pl.Series | None:
    """Text as Int64 where all of it are whole numbers, plainly written (42, not 042), else None."""
    whole = values.cast(pl.Int64, strict=False)
    if whole.null_count() > values.null_count() or not bool((whole.cast(pl.String) == values.cast(pl.String)).all()):
        return None
    return whole


class IntIndex:
    """Places of different whole numbers in a column: a table where they lie close together, else a binary search."""

    def __init__(self, values: pl.Series):
        keys = values.to_numpy()
        self.low = int(keys.min()) if len(keys) else 0
        span = int(keys.max()) - self.low + 1 if len(keys) else 0
        self.table = None
        if span <= max(_DENSE, 4 * len(keys)):
            self.table = np.full(span + 2, -1, np.int32)  # one place at either end for what lies outside
            self.table[keys - self.low + 1] = np.arange(len(keys), dtype=np.int32)
        else:
            self.order = np.argsort(keys, kind="stable")
            self.sorted = keys[self.order]

    def find(self, keys: np.ndarray) -> np.ndarray:
        """The place of each whole number, -1 where it is not there."""
        if self.table is not None:
            high = self.low + len(self.table) - 3
            inside = (keys >= self.low) & (keys <= high)
            return self.table[np.where(inside, keys - np.where(inside, self.low, keys) + 1, 0)]
        at = np.minimum(np.searchsorted(self.sorted, keys), len(self.sorted) - 1)
        return np.where(self.sorted[at] == keys, self.order[at], -1)


class TextIndex:
    """Places of different texts in a column, by 64-bit hashes, sorted once. They are this process's own, not stored."""

    def __init__(self, values: pl.Series):
        self.values = values
        for self.seed in range(8):
            hashes = values.hash(self.seed).to_numpy()
            self.order = np.argsort(hashes, kind="stable")
            self.sorted = hashes[self.order]
            if not bool((self.sorted[1:] == self.sorted[:-1]).any()):
                return
        raise UserError(f"the vocabulary of {values.name!r} holds a value twice; prepare the data again")

    def find(self, values: pl.Series) -> np.ndarray:
        """The place of each value, -1 where it is not there."""
        if len(self.values) == 0:
            return np.full(len(values), -1)
        at = np.searchsorted(self.sorted, values.hash(self.seed).to_numpy())
        place = self.order[np.minimum(at, len(self.order) - 1)]
        same = (self.values.gather(place) == values).fill_null(False).to_numpy()
        return np.where(same, place, -1)
