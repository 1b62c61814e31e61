"""The first pass over impressions: vocabularies and statistics of training rows, and counts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar

import numpy as np
import polars as pl
from jaxtyping import Int8, Int64

from fullrank.core.errors import UserError
from fullrank.core.files import JsonObject
from fullrank.data import values
from fullrank.data.impressions import numeric
from fullrank.data.impressions.encoding import FieldEncoder, Lookup, S, bag_values, read_labels, require_cut
from fullrank.data.impressions.schema import PARTS, AnyField, Categorical, Numeric, Schema
from fullrank.data.impressions.vocabulary import Counts, Hashed, Vocabulary, as_whole_numbers, canonical

F = TypeVar("F", bound="FieldFit[Any]")


@dataclass
class RowCounts:
    """Counts of rows in train, validation and test."""

    rows: Int64[np.ndarray, "3"]
    positive: Int64[np.ndarray, "3"]
    lengths: Int64[np.ndarray, "bags 3"]
    """Values of each bag."""
    missing: dict[str, int]
    """Rows without a value, by field."""

    @classmethod
    def none(cls, schema: Schema) -> RowCounts:
        bags = len(list(schema.several()))
        zero = np.zeros(len(PARTS), np.int64)
        missing = {field.name: 0 for field in schema.fields}
        return cls(zero, zero.copy(), np.zeros((bags, len(PARTS)), np.int64), missing)

    def __add__(self, other: RowCounts) -> RowCounts:
        missing = {name: count + other.missing[name] for name, count in self.missing.items()}
        return RowCounts(self.rows + other.rows, self.positive + other.positive, self.lengths + other.lengths, missing)

    def dump(self) -> JsonObject:
        """Plain data, for JSON."""
        return {name: getattr(self, name).tolist() for name in ("rows", "positive", "lengths")} | {
            "missing": self.missing
        }

    @classmethod
    def restore(cls, tree: JsonObject) -> RowCounts:
        """The inverse of `dump`."""
        rows, positive, lengths = (np.array(tree[name], np.int64) for name in ("rows", "positive", "lengths"))
        return cls(rows, positive, lengths.reshape(-1, len(PARTS)), tree["missing"])

    def manifest(self, groups: int | None) -> JsonObject:
        """The counts as a manifest has them; `groups` are those of the whole table."""
        return {
            "rows": int(self.rows.sum()),
            "parts": {
                part: {"rows": int(rows), "positive": int(positive)}
                for part, rows, positive in zip(PARTS, self.rows, self.positive, strict=True)
            },
            "missing": self.missing,
            "bag_values": self.lengths.sum(axis=1).tolist(),
            "groups": groups,
        }


class FieldFit(Generic[S]):
    """The statistics by which fields are encoded.

    `typed` is False for files without types (CSV). Statistics that are `exact` add up in
    any order, to the last bit.
    """

    def __init__(self, schema: S, typed: bool, *, exact: bool = False):
        self.schema, self.typed = schema, typed
        self.multivalued = list(schema.several())
        self._values = {field.name: Counts() for field in schema.declared if _counts_values(field)}
        """Counts by field, for fields with a vocabulary and those that extend one."""
        numbers = {field.name: numeric.statistics_of(field, exact=exact) for field in schema.declared}
        self._numbers: dict[str, Any] = {name: each for name, each in numbers.items() if each is not None}

    def __add__(self: F, other: F) -> F:
        """The statistics of the rows of both, which have to be `exact`."""
        whole = type(self)(self.schema, self.typed, exact=True)
        whole._values = {name: counts + other._values[name] for name, counts in self._values.items()}
        whole._numbers = {name: numbers + other._numbers[name] for name, numbers in self._numbers.items()}
        return whole

    def add_numbers(self, field: Numeric, numbers: numeric.Numbers, rows: Int64[np.ndarray, "R"]) -> None:
        """Numbers of training rows, NaN where missing; `rows` name each."""
        if field.name in self._numbers:
            self._numbers[field.name].add(numbers, rows)

    def add_values(self, field: AnyField, elements: pl.Series, counts: Int64[np.ndarray, "n"] | None = None) -> None:
        """Count canonical values of training rows, once each or `counts` times."""
        if field.name in self._values and counts is None:
            self._values[field.name].add(elements)
        elif field.name in self._values and counts is not None:
            self._values[field.name].add_counted(elements, counts)

    @cached_property
    def vocabularies(self) -> dict[str, pl.DataFrame]:
        """`value` and `count` in the order of ids, by field, once all rows are counted."""
        tables = {}
        for field in self.schema.declared:
            if field.name not in self._values or isinstance(field, Numeric) or field.shares is not None:
                continue
            more = [self._values[bag.name] for bag in self.multivalued if bag.extends and bag.shares == field.name]
            tables[field.name] = self._values[field.name].table(*more, least=field.min_count, numbers=not self.typed)
        return tables

    def encoder(self) -> FieldEncoder[S]:
        """The fitted schema."""
        lookups: dict[str, Lookup] = {name: Vocabulary(table["value"]) for name, table in self.vocabularies.items()}
        for field in self.schema.declared:
            if not isinstance(field, Numeric) and field.hash_buckets is not None:
                lookups[field.name] = Hashed(field.hash_buckets)
        return FieldEncoder(self.schema, lookups, {name: numbers.fitted() for name, numbers in self._numbers.items()})


class Fit(FieldFit[Schema]):
    """The statistics of a table of impressions, gathered chunk by chunk."""

    def __init__(self, schema: Schema, typed: bool, *, exact: bool = False):
        super().__init__(schema, typed, exact=exact)
        self.counted = RowCounts.none(schema)
        self._groups = Counts()

    def __add__(self, other: Fit) -> Fit:
        whole = super().__add__(other)
        whole.counted = self.counted + other.counted
        whole._groups = self._groups + other._groups
        return whole

    def add(self, start: int, frame: pl.DataFrame, part: Int8[np.ndarray, "R"], what: str) -> None:
        """More rows. Raises `UserError` for whatever cannot be read as the schema says."""
        schema, train, counted = self.schema, part == 0, self.counted
        clicked = read_labels(frame[schema.label], schema.label_threshold, what)
        counted.rows += np.bincount(part, minlength=len(PARTS))
        counted.positive += np.bincount(part[clicked == 1], minlength=len(PARTS))
        rows = np.flatnonzero(train) + start
        for field in schema.fields:
            if isinstance(field, Numeric):
                numbers = numeric.field_numbers(field, frame[field.name], what)
                counted.missing[field.name] += int(np.isnan(numbers).sum())
                self.add_numbers(field, numbers[train], rows)
            elif isinstance(field, Categorical):
                elements = canonical(frame[field.name], what)
                counted.missing[field.name] += elements.null_count()
                self.add_values(field, elements.filter(train))
        for at, bag in enumerate(self.multivalued):
            column = frame[bag.name]
            require_cut(bag, column, what)
            elements, lengths = bag_values(column, bag, what)
            counted.missing[bag.name] += int((lengths == 0).sum())
            counted.lengths[at] += np.bincount(part, weights=lengths, minlength=len(PARTS)).astype(np.int64)
            self.add_values(bag, elements.filter(np.repeat(train, lengths)))
        if schema.group is not None:
            group = canonical(frame[schema.group], what)
            values.refuse(group.is_null(), frame[schema.group], what, "missing groups", code="missing-groups")
            self._groups.add(group)
        if schema.time is not None:
            values.seconds(frame[schema.time], what, schema.time_unit, typed=self.typed)

    def check(self, name: str) -> None:
        """Raise `UserError` where nothing can be trained or measured."""
        both = self.counted.rows, self.counted.positive
        for part, rows, positive in zip(PARTS, *(each.tolist() for each in both), strict=True):
            if rows == 0 and part == "train":
                raise UserError(
                    f"the {self.schema.split.kind} split leaves no training rows of {name}", code="empty-split"
                )
            if rows > 0 and positive in (0, rows):
                raise UserError(
                    f"all {rows:,} {part} rows of {name} have the label {int(positive > 0)}: nothing can be "
                    f"{'learned' if part == 'train' else 'measured'} there; check `label` and the split",
                    code="constant-labels",
                )

    def groups(self) -> pl.Series | None:
        """Every group, sorted, whole numbers or text as they came; None without a group column."""
        if self.schema.group is None:
            return None
        groups = self._groups.table()["value"]
        whole = as_whole_numbers(groups) if self._groups.whole or not self.typed else None
        return (groups if whole is None else whole).sort()

    def counts(self) -> JsonObject:
        """The counts as the manifest has them."""
        return self.counted.manifest(len(groups) if (groups := self.groups()) is not None else None)


def _counts_values(field: AnyField) -> bool:
    if isinstance(field, Numeric) or field.hash_buckets is not None:
        return False
    return isinstance(field, Categorical) or field.shares is None or field.extends
