"""Columns of features on their way into a store: coded as they are read, fitted on training events, encoded.

A code is an index into the sorted different values of its column, so filters, parts and files move
whole numbers alone, and each different value is encoded once. A list is a text until then: its
values with `BETWEEN` between them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import polars as pl
from jaxtyping import Bool, Int64, Shaped

from fullrank.core.jagged import Jagged, offsets_of
from fullrank.core.parquet import read_parquet
from fullrank.core.tables import write_table
from fullrank.data import values
from fullrank.data.events.features import FeatureEncoder, Features
from fullrank.data.features import FeatureTable
from fullrank.data.impressions import numeric
from fullrank.data.impressions.encoding import bag_values, require_cut
from fullrank.data.impressions.fitting import FieldFit
from fullrank.data.impressions.schema import AnyField, BagOf, Categorical, Numeric, SequenceOf
from fullrank.data.impressions.vocabulary import MISSING, canonical
from fullrank.data.values import IdIndex

BETWEEN = "\x1f"
"""Between the values of a list: the unit separator, which text does not hold."""
NONE = pl.Series("value", [], dtype=pl.String)
Fields = Sequence[AnyField]


@dataclass(frozen=True)
class FeatureColumns:
    """Coded columns of a table, in order of their fields."""

    fields: tuple[AnyField, ...] = ()
    codes: tuple[Shaped[np.ndarray, "R"], ...] = ()
    """Indices into `values`, -1 where missing (int32); numbers as they are, NaN where missing (float64)."""
    values: tuple[pl.Series, ...] = ()
    """The different values of each column, sorted; an empty series for numbers."""

    @classmethod
    def of(cls, fields: Fields, column: Callable[[str], pl.Series], what: str) -> FeatureColumns:
        """Code the columns of a table, each read by its name. Raises `UserError` for
        values that a field cannot be."""
        codes, distinct = [], []
        for field in fields:
            plain = plain_values(field, column(field.name), what)
            distinct.append(NONE if plain.dtype == pl.Float64 else different([plain]))
            codes.append(coded(plain, IdIndex(distinct[-1]).find))
        return cls(tuple(fields), tuple(codes), tuple(distinct))

    def with_missing(self, fields: Fields, rows: int) -> FeatureColumns:
        """Add a column of `rows` missing values for each of the fields that has none."""
        present = {field.name for field in self.fields}
        absent = [field for field in fields if field.name not in present]
        missing = (
            np.full(rows, np.nan) if isinstance(field, Numeric) else np.full(rows, -1, np.int32) for field in absent
        )
        return FeatureColumns((*self.fields, *absent), (*self.codes, *missing), (*self.values, *[NONE] * len(absent)))

    def take(self, rows: Bool[np.ndarray, "R"] | Int64[np.ndarray, "n"]) -> FeatureColumns:
        """Select rows, by mask or by number."""
        return FeatureColumns(self.fields, tuple(codes[rows] for codes in self.codes), self.values)

    def __iter__(self) -> Iterator[tuple[AnyField, np.ndarray, pl.Series]]:
        yield from zip(self.fields, self.codes, self.values, strict=True)


def plain_values(field: AnyField, series: pl.Series, what: str) -> pl.Series:
    """A column as Float64 (a field of numbers; NaN where missing), or as Int64 or text (null where missing)."""
    if isinstance(field, Numeric):
        return pl.Series(field.name, numeric.field_numbers(field, series, what), dtype=pl.Float64)
    if isinstance(field, Categorical):
        return canonical(series, what)
    require_cut(field, series, what)
    elements, lengths = bag_values(series, field, what)
    import pyarrow as pa

    lists = pa.LargeListArray.from_arrays(offsets_of(lengths), elements.cast(pl.String).to_arrow())
    return canonical(pl.Series(field.name, lists).cast(pl.List(pl.String)).list.join(BETWEEN), what)


def different(parts: Sequence[pl.Series]) -> pl.Series:
    """The different values in all of these, sorted, without nulls; whole numbers only where all are."""
    if not parts:
        return NONE
    dtype = pl.Int64 if all(part.dtype == pl.Int64 for part in parts) else pl.String
    return values.distinct(pl.concat([part.drop_nulls().cast(dtype) for part in parts]).alias("value")).sort()


def different_values(fields: Fields, frames: Iterable[tuple[str, pl.DataFrame]]) -> list[pl.Series]:
    """The different values of each column over several frames, each with a name for errors; none of numbers."""
    distinct = [NONE] * len(fields)
    for what, frame in frames:
        for number, field in enumerate(fields):
            plain, known = plain_values(field, frame[field.name], what), distinct[number]
            if plain.dtype != pl.Float64:
                distinct[number] = different([known, plain] if len(known) else [plain])
    return distinct


def coded(plain: pl.Series, find: Callable[[pl.Series], np.ndarray]) -> np.ndarray:
    """The codes of a column of `plain_values`, which `find` looks up; numbers are their own codes."""
    return plain.to_numpy() if plain.dtype == pl.Float64 else find(plain).astype(np.int32)


@dataclass(frozen=True)
class FeatureCoder:
    """Codes columns by the different values of each, which lie in a folder, so that it can be sent
    to other processes."""

    fields: tuple[AnyField, ...]
    folder: Path

    @classmethod
    def write(cls, fields: Fields, known: Sequence[pl.Series], folder: Path) -> FeatureCoder:
        """Write the values of each column to a folder, and return the coder that reads them there."""
        for number, distinct in enumerate(known):
            write_table(pl.DataFrame({"value": distinct}), folder / f"{name_of(number)}.parquet")
        return cls(tuple(fields), folder)

    @cached_property
    def values(self) -> tuple[pl.Series, ...]:
        """The different values of each column (`FeatureColumns.values`)."""
        files = (self.folder / f"{name_of(number)}.parquet" for number in range(len(self.fields)))
        return tuple(read_parquet(file, "the values of a feature")["value"] for file in files)

    @cached_property
    def _find(self) -> list[Callable[[pl.Series], np.ndarray]]:
        return [IdIndex(distinct).find for distinct in self.values]

    def coded(self, frame: pl.DataFrame, what: str) -> dict[str, np.ndarray]:
        """The codes of the rows of a frame, by `name_of`."""
        return {
            name_of(number): coded(plain_values(field, frame[field.name], what), self._find[number])
            for number, field in enumerate(self.fields)
        }

    def columns(self, arrays: dict[str, np.ndarray]) -> FeatureColumns:
        """The columns of the codes that `coded` made, which are taken out of `arrays`."""
        codes = tuple(arrays.pop(name_of(number)) for number in range(len(self.fields)))
        return FeatureColumns(self.fields, codes, self.values)


def name_of(number: int) -> str:
    """The name of a feature's column of codes, by the number of the feature."""
    return f"feature{number}"


def code_types(fields: Fields) -> dict[str, str]:
    """The dtype of each column of codes, by `name_of`."""
    return {name_of(n): "<f8" if isinstance(field, Numeric) else "<i4" for n, field in enumerate(fields)}


def add_columns(
    fit: FieldFit[Features], columns: FeatureColumns, chosen: Bool[np.ndarray, "R"], rows: Int64[np.ndarray, "R"]
) -> None:
    """Add the chosen rows to the statistics of their fields. `rows` are numbers that name each row."""
    for field, codes, known in columns:
        if isinstance(field, Numeric):
            fit.add_numbers(field, codes[chosen], rows[chosen])
            continue
        counts = np.bincount(codes[chosen] + 1, minlength=len(known) + 1)[1:]
        if isinstance(field, BagOf | SequenceOf):
            known, lengths = _in_lists(field, known)
            counts = np.repeat(counts, lengths)
        fit.add_values(field, known, counts)


def encode(columns: FeatureColumns, encoder: FeatureEncoder) -> FeatureTable:
    """Encode the columns that are of an encoder: each different value once, then by the codes of the rows."""
    codes = {field.name: column for field, column, _ in columns}
    known = {field.name: distinct for field, _, distinct in columns}
    rows = len(next(iter(codes.values()))) if codes else 0
    categorical = np.zeros((rows, len(encoder.categorical)), np.int32)
    for at, field in enumerate(encoder.categorical):
        if isinstance(field, Numeric):
            categorical[:, at] = encoder.bucket_ids(field, codes[field.name])
        else:
            ids = encoder.lookup(field).ids(known[field.name])
            categorical[:, at] = np.concatenate([[MISSING], ids])[codes[field.name] + 1]
    numbers = np.zeros((rows, len(encoder.numeric)), np.float32)
    for at, number in enumerate(encoder.numeric):
        fitted = encoder.fitted.get(number.name, {})
        numbers[:, at] = numeric.transform_numbers(number, fitted, codes[number.name], "the features")
    lists, bags = np.zeros((rows, len(encoder.multivalued)), np.int32), []
    for at, several in enumerate(encoder.multivalued):
        lists[:, at] = codes[several.name] + 1  # list 0 is the empty one
        elements, lengths = _in_lists(several, known[several.name])
        ids = encoder.lookup(several).ids(elements)
        bags.append(Jagged.from_lengths(ids, np.concatenate([np.zeros(1, np.int64), lengths])))
    return FeatureTable(categorical, numbers, lists, tuple(bags))


def _in_lists(field: BagOf | SequenceOf, texts: pl.Series) -> tuple[pl.Series, Int64[np.ndarray, "R"]]:
    """The elements of the lists in texts that `plain_values` made, behind each other,
    and how many each list has."""
    return bag_values(texts.str.split(BETWEEN), field.model_copy(update={"separator": None}), "the features")
