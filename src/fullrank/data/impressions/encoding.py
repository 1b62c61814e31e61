"""Rows of a table as the ids and numbers of a fitted schema, and these as the tensors that rankers read.

The same code encodes a store and new impressions, by the encoder of a store or of a trained run.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np
import polars as pl
from jaxtyping import Int32, Int64, UInt8

from fullrank.core.checks import check_that
from fullrank.core.errors import UserError, no_effect
from fullrank.core.jagged import Jagged
from fullrank.data import values
from fullrank.data.features import Encoded
from fullrank.data.frames import InputTable
from fullrank.data.impressions import numeric
from fullrank.data.impressions.schema import (
    AnyField,
    BagOf,
    Categorical,
    FieldInfo,
    FieldSet,
    Numeric,
    Schema,
    SequenceOf,
)
from fullrank.data.impressions.vocabulary import FIRST, MISSING, Hashed, Vocabulary, canonical
from fullrank.data.values import wrong_type

if TYPE_CHECKING:
    from torch import Tensor

    from fullrank.data.batch import Impressions

Lookup = Vocabulary | Hashed
S = TypeVar("S", bound=FieldSet)
Labels = UInt8[np.ndarray, "R"]
"""A label for each row, 0 or 1."""
_HEAD = 1_000
"""Rows by which it is judged whether a column of texts repeats the same ones."""


class FieldEncoder(Generic[S]):
    """A fitted schema: `lookups` by name of a categorical or multi-valued field, `fitted` by name of a numeric one."""

    def __init__(self, schema: S, lookups: Mapping[str, Lookup], fitted: Mapping[str, numeric.Fitted]):
        self.schema, self.lookups, self.fitted = schema, dict(lookups), dict(fitted)
        self.fields = tuple(self._info(field) for field in schema.declared)
        self.categorical = [field for field in schema.declared if is_categorical(field)]
        self.numeric = [field for field in schema.declared if isinstance(field, Numeric) and not is_categorical(field)]
        self.multivalued = list(schema.several())

    def lookup(self, field: AnyField) -> Lookup:
        """The vocabulary or hash that gives a categorical field, bag or sequence its ids."""
        return self.lookups[vocabulary_owner(field)]

    @property
    def notes(self) -> list[str]:
        """Numbers that have fewer buckets than their schema asks for, as sentences."""
        notes = []
        for field in self.schema.declared:
            if isinstance(field, Numeric) and field.buckets is not None:
                count = len(self.fitted[field.name]["edges"]) + 1
                if count < field.buckets:
                    notes.append(
                        f"the field {field.name!r} has {count} buckets of the {field.buckets} asked for: its most "
                        "frequent values fill several each, and equal quantiles are one"
                    )
        return notes

    def with_separator(self, separator: str | None) -> FieldEncoder[S]:
        """An encoder that cuts texts of lists at `separator`; None keeps the schema's.

        Raises `UserError` where there are none.
        """
        if separator is None:
            return self
        demand = ": give what stands between the values of a list, such as '|'"
        sound = isinstance(separator, str) and separator != ""
        check_that(sound, "list_separator", separator, demand, code="not-a-separator")
        if not self.multivalued:
            raise no_effect("list_separator", "since the model reads no lists (bags or sequences)")
        fields = tuple(
            field.model_copy(update={"separator": separator}) if isinstance(field, BagOf | SequenceOf) else field
            for field in self.schema.declared
        )
        return FieldEncoder(self.schema.model_copy(update={"fields": fields}), self.lookups, self.fitted)

    def encode(self, frame: pl.DataFrame, what: str) -> Encoded:
        """The rows of a frame that has the columns of the fields. `what` names it in errors."""
        categorical = np.zeros((len(frame), len(self.categorical)), np.int32)
        for at, field in enumerate(self.categorical):
            if isinstance(field, Numeric):
                categorical[:, at] = self.bucket_ids(field, numeric.parse_numbers(frame[field.name], what))
            else:
                categorical[:, at] = self.lookup(field).ids(canonical(frame[field.name], what))
        plain = np.zeros((len(frame), len(self.numeric)), np.float32)
        for at, field in enumerate(self.numeric):
            parsed = numeric.parse_numbers(frame[field.name], what)
            plain[:, at] = numeric.transform_numbers(field, self.fitted.get(field.name, {}), parsed, what)
        bags = []
        for field in self.multivalued:
            elements, lengths = bag_values(frame[field.name], field, what)
            bags.append(Jagged.from_lengths(self.lookup(field).ids(elements), lengths))
        return Encoded(categorical, plain, tuple(bags))

    def bucket_ids(self, field: Numeric, numbers: numeric.Numbers) -> Int64[np.ndarray, "R"]:
        """The ids of numbers, NaN where missing, of a field in buckets."""
        ids = np.searchsorted(np.asarray(self.fitted[field.name]["edges"], np.float64), numbers, side="right") + FIRST
        return np.where(np.isnan(numbers), MISSING, ids)

    def _info(self, field: AnyField) -> FieldInfo:
        if isinstance(field, Numeric):
            if not is_categorical(field):
                return FieldInfo(field.name, "numeric", 0)
            return FieldInfo(field.name, "categorical", len(self.fitted[field.name]["edges"]) + 1 + FIRST)
        shares = None if isinstance(field, Categorical) else field.shares
        return FieldInfo(field.name, field.kind, self.lookup(field).size, shares)


def is_categorical(field: AnyField) -> bool:
    """Whether a field is a column of `Impressions.categorical`: numbers in buckets are."""
    return isinstance(field, Categorical) or (isinstance(field, Numeric) and field.transform == "bucket")


def vocabulary_owner(field: AnyField) -> str:
    """The name of the field whose vocabulary it uses."""
    return field.shares or field.name


def read_labels(series: pl.Series, threshold: float | None, what: str) -> Labels:
    """Labels 0 and 1. Raises `UserError` for missing and, without a threshold, other ones."""
    numbers = values.finite_numbers(series, what)
    if threshold is not None:
        return (numbers >= threshold).astype(np.uint8)
    values.refuse(
        pl.Series((numbers != 0) & (numbers != 1)),
        series,
        what,
        "labels that are neither 0 nor 1 (stars and the like: set label_threshold)",
        code="wrong-labels",
    )
    return numbers.astype(np.uint8)


def require_cut(field: BagOf | SequenceOf, series: pl.Series, what: str) -> None:
    """Raise `UserError` where a column of lists is to be cut at a separator."""
    if field.separator is not None and isinstance(series.dtype, pl.List | pl.Array):
        raise no_effect(f"separator={field.separator!r}", f"since {values.called(series, what)} holds lists")


def bag_values(series: pl.Series, field: BagOf | SequenceOf, what: str) -> tuple[pl.Series, Int64[np.ndarray, "R"]]:
    """The canonical values of a bag or sequence, row after row, and how many each row has.

    Missing ones are dropped unless the field keeps them. Raises `UserError` for text without a
    separator and for columns that are neither text nor lists. A schema that splits the text of a
    store takes lists of new impressions as they are.
    """
    head = series.head(_HEAD)
    if series.dtype == pl.String and 2 * head.n_unique() < len(head):
        text = series.fill_null("")
        texts = text.unique()
        if 4 * len(texts) < len(text):  # the same lists again and again: each is read once
            code = text.cast(pl.Enum(texts)).to_physical().to_numpy()
            elements, lengths = bag_values(texts, field, what)
            return elements[Jagged.from_lengths(np.arange(len(elements)), lengths).take(code).flat()], lengths[code]
    series = _lists(series, field, what)
    sizes = series.list.len().fill_null(0).to_numpy().astype(np.int64)
    elements = canonical(series.filter(sizes > 0).explode(), what)
    row = np.repeat(np.arange(len(series)), sizes)
    if not field.keep_missing:
        present = elements.is_not_null().to_numpy()
        elements, row = elements.filter(present), row[present]
    lengths = np.bincount(row, minlength=len(series)).astype(np.int64)
    if len(lengths) and int(lengths.max()) > field.max_length:
        position = np.arange(len(row)) - (np.cumsum(lengths) - lengths)[row]  # of each value in its row
        if isinstance(field, SequenceOf):  # counted from the end: the newest are kept
            position = lengths[row] - 1 - position
        elements = elements.filter(position < field.max_length)
        lengths = np.minimum(lengths, field.max_length)
    return elements, lengths


def _lists(series: pl.Series, field: BagOf | SequenceOf, what: str) -> pl.Series:
    series = values.without_categories(series)
    if series.dtype == pl.Null:
        return series.cast(pl.List(pl.String))
    if series.dtype == pl.String:
        if field.separator is None:
            raise UserError(
                f"{values.called(series, what)} is text and the {field.kind} {field.name!r} has no separator: say what "
                "stands between its values (separator: '|' in the schema, list_separator= in predict), or give a "
                "column of lists",
                code="missing-separator",
            )
        events = series.set(series == "", None)  # no text is no value, and not a missing one
        return events.str.split(field.separator).list.eval(pl.element().str.strip_chars())
    if isinstance(series.dtype, pl.Array):
        series = series.arr.to_list()
    if not isinstance(series.dtype, pl.List):
        raise wrong_type(series, what, f"a {field.kind} is a column of lists, or text")
    return series


def require_fields(source: InputTable, schema: Schema, others: Collection[str] = ()) -> None:
    """Raise `UserError` unless a table has the column of every field, but of `others`."""
    for field in schema.fields:
        if field.name not in others:
            source.require(field.name, "the model reads it: add it (a column of nulls says that it is missing)")


def transform(
    encoder: FieldEncoder[S],
    frame: pl.DataFrame,
    what: str,
    *,
    labels: Labels | None = None,
    groups: Int32[np.ndarray, "R"] | None = None,
) -> Impressions:
    """New rows as the tensors that a ranker reads, in the frame's order, by a fitted encoder.

    The frame has the columns of the fields. `what` names it in errors.
    """
    encoded = encoder.encode(frame, what)
    return to_tensors(
        encoded.categorical, encoded.numeric, encoded.bags, labels=labels, groups=groups, rows=np.arange(len(frame))
    )


def known_labels(schema: Schema, frame: pl.DataFrame, what: str) -> Labels | None:
    """The labels of a frame; None where it has no such column, or one with gaps."""
    if schema.label not in frame.columns or frame[schema.label].null_count():
        return None
    return read_labels(frame[schema.label], schema.label_threshold, what)


def known_groups(column: pl.Series, known: pl.Series) -> Int32[np.ndarray, "R"] | None:
    """Numbers of groups: positions among `known`, then new ones. None where one is missing."""
    group = canonical(column, "the impressions").cast(pl.String)
    if group.null_count():
        return None
    ids = Vocabulary(known.cast(pl.String)).ids(group) - FIRST
    new = ids < 0
    # numbered by value, so that equal new groups share a number, whatever the order of the rows
    ids[new] = len(known) + group.filter(new).rank("dense").to_numpy().astype(np.int32) - 1
    return ids


def to_tensors(
    categorical: np.ndarray,
    numeric: np.ndarray,
    bags: Sequence[Jagged],
    *,
    labels: np.ndarray | None,
    groups: np.ndarray | None,
    rows: np.ndarray,
) -> Impressions:
    """A batch. `numeric` is NaN where missing; a row of a bag is the ids of one impression."""
    from fullrank.data.batch import Bag, Impressions  # loads torch, which preparing a store does without

    missing = np.isnan(numeric)
    return Impressions(
        categorical=_tensor(categorical, np.int64),
        numeric=_tensor(np.where(missing, np.float32(0), numeric), np.float32),
        missing=_tensor(missing, np.bool_),
        bags=tuple(Bag(_tensor(bag.padded(), np.int64), _tensor(bag.lengths, np.int64)) for bag in bags),
        labels=None if labels is None else _tensor(labels, np.float32),
        rows=_tensor(rows, np.int64),
        groups=None if groups is None else _tensor(groups, np.int64),
    )


def _tensor(array: np.ndarray, dtype: type) -> Tensor:
    import torch

    # Writable, which mapped files are not: torch would share their memory and warn.
    # `require` copies only then.
    return torch.from_numpy(np.require(array, dtype, ["C", "W"]))
