"""Columns of features on their way into a store: coded as they are read, fitted on training events, encoded.

A code is a place among the sorted different values of its column, so filters, parts and files move whole numbers alone,
and each different value is encoded once. A list is a text until then: its values with `BETWEEN` between them.
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
    """Coded columns of some rows, in order of their fields."""

    fields: tuple[AnyField, ...] = ()
    codes: tuple[Shaped[np.ndarray, "R"], ...] = ()
    """Places in `values`, -1 where missing (int32); of numbers themselves, NaN where missing (float64)."""
    values: tuple[pl.Series, ...] = ()
    """The different values of each column, sorted; none of numbers."""

    @classmethod
    def of(cls, fields: Fields, column: Callable[[str], pl.Series], what: str) -> FeatureColumns:
        """Those of a table that gives each `column` by its name. Raises `UserError` for what a field cannot be."""
        plain = [plain_values(field, column(field.name), what) for field in fields]
        each = [different([one]) if one.dtype != pl.Float64 else NONE for one in plain]
        codes = [coded(one, IdIndex(known).find) for one, known in zip(plain, each, strict=True)]
        return cls(tuple(fields), tuple(codes), tuple(each))

    def with_missing(self, fields: Fields, rows: int) -> FeatureColumns:
        """The same with those of the other fields, missing in all rows."""
        here = {field.name for field in self.fields}
        more = [field for field in fields if field.name not in here]
        gone = (np.full(rows, np.nan) if isinstance(field, Numeric) else np.full(rows, -1, np.int32) for field in more)
        return FeatureColumns((*self.fields, *more), (*self.codes, *gone), (*self.values, *[NONE] * len(more)))

    def take(self, rows: Bool[np.ndarray, "R"] | Int64[np.ndarray, "n"]) -> FeatureColumns:
        """Some of the rows, by mask or by number."""
        return FeatureColumns(self.fields, tuple(one[rows] for one in self.codes), self.values)

    def __iter__(self) -> Iterator[tuple[AnyField, np.ndarray, pl.Series]]:
        yield from zip(self.fields, self.codes, self.values, strict=True)


def plain_values(field: AnyField, series: pl.Series, what: str) -> pl.Series:
    """A column as Float64 (numbers; NaN where missing), or as Int64 or text, null where missing."""
    if isinstance(field, Numeric):
        return pl.Series(field.name, numeric.field_numbers(field, series, what), dtype=pl.Float64)
    if isinstance(field, Categorical):
        return canonical(series, what)
    require_cut(field, series, what)
    found, lengths = bag_values(series, field, what)
    import pyarrow as pa

    lists = pa.LargeListArray.from_arrays(offsets_of(lengths), found.cast(pl.String).to_arrow())
    return canonical(pl.Series(field.name, lists).cast(pl.List(pl.String)).list.join(BETWEEN), what)


def different(parts: Sequence[pl.Series]) -> pl.Series:
    """The different values in all of these, sorted, without nulls; as text where one of them is."""
    whole = [one.drop_nulls() if one.dtype == pl.Int64 else one.drop_nulls().cast(pl.String) for one in parts]
    if len({one.dtype for one in whole}) > 1:
        whole = [one.cast(pl.String) for one in whole]
    return values.distinct(pl.concat(whole).alias("value")).sort() if whole else NONE


def different_values(fields: Fields, frames: Iterable[tuple[str, pl.DataFrame]]) -> list[pl.Series]:
    """The different values of each column over some frames, each with a name for errors; none of numbers."""
    found = [NONE] * len(fields)
    for what, frame in frames:
        plain = (plain_values(field, frame[field.name], what) for field in fields)
        found = [known if one.dtype == pl.Float64 else different([known, one]) if len(known) else different([one])
                 for known, one in zip(found, plain, strict=True)]  # fmt: skip
    return found


def coded(plain: pl.Series, find: Callable[[pl.Series], np.ndarray]) -> np.ndarray:
    """A column of `plain_values` as codes; of numbers they are these themselves."""
    return plain.to_numpy() if plain.dtype == pl.Float64 else find(plain).astype(np.int32)


@dataclass(frozen=True)
class FeatureCoder:
    """Codes columns by the different values of each, which lie in a folder: it is sent to whoever reads a table."""

    fields: tuple[AnyField, ...]
    folder: Path

    @classmethod
    def write(cls, fields: Fields, known: Sequence[pl.Series], folder: Path) -> FeatureCoder:
        """One by the values of each column."""
        for number, one in enumerate(known):
            write_table(pl.DataFrame({"value": one}), folder / f"{name_of(number)}.parquet")
        return cls(tuple(fields), folder)

    @cached_property
    def values(self) -> tuple[pl.Series, ...]:
        """Those of each column (`FeatureColumns.values`)."""
        files = (self.folder / f"{name_of(number)}.parquet" for number in range(len(self.fields)))
        return tuple(read_parquet(file, "the values of a feature")["value"] for file in files)

    @cached_property
    def _find(self) -> list[Callable[[pl.Series], np.ndarray]]:
        return [IdIndex(one).find for one in self.values]

    def coded(self, frame: pl.DataFrame, what: str) -> dict[str, np.ndarray]:
        """The codes of some rows, by `name_of`."""
        plain = (plain_values(field, frame[field.name], what) for field in self.fields)
        return {name_of(number): coded(one, self._find[number]) for number, one in enumerate(plain)}

    def columns(self, arrays: dict[str, np.ndarray]) -> FeatureColumns:
        """The columns of what `coded` gave, taken out of `arrays`."""
        codes = tuple(arrays.pop(name_of(number)) for number in range(len(self.fields)))
        return FeatureColumns(self.fields, codes, self.values)


def name_of(number: int) -> str:
    """What the column of the feature of that number is called on its way."""
    return f"feature{number}"


def code_types(fields: Fields) -> dict[str, str]:
    """The dtype of each coded column, by `name_of`."""
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
    """The columns that are of an encoder, by it."""
    codes = {field.name: one for field, one, _ in columns}
    known = {field.name: one for field, _, one in columns}
    rows = len(next(iter(codes.values()))) if codes else 0
    categorical = np.zeros((rows, len(encoder.categorical)), np.int32)
    for at, field in enumerate(encoder.categorical):
        if isinstance(field, Numeric):
            categorical[:, at] = encoder.bucket_ids(field, codes[field.name])
        else:
            ids = encoder.lookup(field).ids(known[field.name])
            categorical[:, at] = np.concatenate([[MISSING], ids])[codes[field.name] + 1]
    numbers = np.zeros((rows, len(encoder.numeric)), np.float32)
    for at, one in enumerate(encoder.numeric):
        fitted = encoder.fitted.get(one.name, {})
        numbers[:, at] = numeric.transform_numbers(one, fitted, codes[one.name], "the features")
    lists, bags = np.zeros((rows, len(encoder.multivalued)), np.int32), []
    for at, several in enumerate(encoder.multivalued):
        lists[:, at] = codes[several.name] + 1  # list 0 is that of no values
        found, lengths = _in_lists(several, known[several.name])
        ids = encoder.lookup(several).ids(found)
        bags.append(Jagged.from_lengths(ids, np.concatenate([np.zeros(1, np.int64), lengths])))
    return FeatureTable(categorical, numbers, lists, tuple(bags))


def _in_lists(field: BagOf | SequenceOf, texts: pl.Series) -> tuple[pl.Series, Int64[np.ndarray, "R"]]:
    """The values of lists that `plain_values` made texts of, behind each other, and how many each has."""
    return bag_values(texts.str.split(BETWEEN), field.model_copy(update={"separator": None}), "the features")
