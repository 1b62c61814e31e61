"""Schema of an impressions table: the label, the fields that a ranker reads, group, time and split.

A `Schema` is written by hand (YAML, JSON, Python) or inferred (`infer.py`). `FieldInfo`
is what a ranker is told of a field once it is fitted. Ids of a field: 0 missing, 1
unknown, 2 and up its values.

The split says which impressions are trained on: at random by place, by time, or as a column says. A
rule gives every row a part: 0 train, 1 validation, 2 test. It sees a table in chunks and needs
memory for one.
"""

from __future__ import annotations

import datetime
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import polars as pl
from jaxtyping import Int64
from pydantic import Field, field_validator, model_validator

from fullrank.core.constraints import (
    MOST_BINS,
    Count,
    Length,
    Seconds,
    SeedNumber,
    Share,
    Value,
    needs,
    once,
    only_with,
)
from fullrank.core.errors import UserError, in_context, no_effect, no_such
from fullrank.core.random import uniform_of_rows
from fullrank.core.readers import read_text
from fullrank.core.spec import Spec, by_kind, later, read_tree
from fullrank.data.events.splits import check_moments, needs_times
from fullrank.data.values import Unit, iso_seconds, refuse, without_categories, wrong_type

PARTS = ("train", "validation", "test")
_ALIASES = {"train": 0, "training": 0, "validation": 1, "valid": 1, "val": 1, "dev": 1, "test": 2}
Shares = tuple[Share, Share, Share]


class _Shared(Spec):
    shares: Shares = (0.8, 0.1, 0.1)
    """Shares of train, validation and test; they sum to 1."""

    @field_validator("shares")
    @classmethod
    def _sound_shares(cls, shares: Shares) -> Shares:
        if min(shares) < 0 or shares[0] <= 0 or abs(sum(shares) - 1) > 1e-9:
            raise UserError(
                f"shares {shares} must be at least 0, with something to train on, and sum to 1", code="wrong-shares"
            )
        return shares


class RandomSplit(_Shared):
    """Random by row, from a hash of seed and row number: the same in any chunks."""

    kind: Literal["random"] = "random"
    seed: SeedNumber = 0
    """Which of the random splits."""

    def parts(self, rows: Int64[np.ndarray, "R"]) -> np.ndarray:
        """The part of each row number: int8 [R]."""
        drawn = uniform_of_rows(self.seed, rows)
        first, second = self.shares[0], self.shares[0] + self.shares[1]
        return ((drawn >= first).astype(np.int8) + (drawn >= second)).astype(np.int8)


class TemporalSplit(_Shared):
    """The earliest rows are trained on, the latest tested. Rows of equal time keep input order, also at the borders.

    The borders are shares of the rows, or two moments, such as those by which a
    store of events was split.
    """

    kind: Literal["temporal"] = "temporal"
    validation_from: Annotated[Seconds | str | None, needs("test_from")] = None
    """The first moment of validation, in seconds since 1970 or ISO 8601; None: by `shares`."""
    test_from: Annotated[Seconds | str | None, needs("validation_from")] = None
    """The first moment of the test, likewise."""

    @field_validator("validation_from", "test_from", mode="before")
    @classmethod
    def _as_text(cls, moment: Any) -> Any:
        return moment.isoformat() if isinstance(moment, (datetime.date, datetime.datetime)) else moment

    @model_validator(mode="after")
    def _sound(self) -> TemporalSplit:
        if self.moments is not None:
            if self.shares != type(self).model_fields["shares"].default:
                raise no_effect("shares", "with validation_from and test_from")
            check_moments(self, *self.moments)
        return self

    @property
    def moments(self) -> tuple[int, int] | None:
        """The first seconds of validation and of the test, where they are given."""
        if self.validation_from is None or self.test_from is None:
            return None
        first, second = (iso_seconds(m) if isinstance(m, str) else m for m in (self.validation_from, self.test_from))
        return first, second


class GivenSplit(Spec):
    """A column says train, validation (or valid, val, dev) or test."""

    kind: Literal["given"] = "given"
    column: str = Field("split", min_length=1)
    """The column."""

    def parts(self, column: pl.Series, what: str) -> np.ndarray:
        """The part of each row: int8 [R]. Raises `UserError` for any other value."""
        column = without_categories(column)
        if column.dtype != pl.String:
            raise wrong_type(column, what, f"a split column says {', '.join(PARTS)}")
        parts = column.str.strip_chars().str.to_lowercase().replace_strict(_ALIASES, default=None, return_dtype=pl.Int8)
        refuse(
            parts.is_null(),
            column,
            what,
            f"values other than {', '.join(PARTS)} (or valid, val, dev)",
            code="unknown-split",
        )
        return parts.to_numpy()


ImpressionSplit = Annotated[
    Annotated[RandomSplit | TemporalSplit | GivenSplit, Field(discriminator="kind")],
    by_kind("split", RandomSplit, TemporalSplit, GivenSplit),
]
"""A split rule: a spec, a mapping with `kind`, or the bare kind."""


@dataclass
class TimeParts:
    """The part of each row by its time; asked once for every chunk, in input order."""

    borders: list[tuple[Any, int] | None]
    """A time, and how many rows of it come before the border; None lies behind all rows."""

    def parts(self, times: np.ndarray) -> np.ndarray:
        """The part of each row: int8 [R]."""
        part = np.zeros(len(times), np.int8)
        for at, border in enumerate(self.borders):
            if border is not None:
                moment, ties = border
                equal = times == moment
                before = (times < moment) | (equal & (np.cumsum(equal) <= ties))  # the first `ties` of equal times too
                self.borders[at] = moment, max(ties - int(equal.sum()), 0)
                part += ~before
        return part


BUCKETS = 50
"""Buckets of a numeric field where the schema does not say."""


@dataclass(frozen=True)
class FieldInfo:
    """A fitted field, as rankers see it."""

    name: str
    kind: Literal["categorical", "numeric", "bag", "sequence"]
    """How it arrives in `Impressions`; a numeric field in buckets is categorical."""
    size: Annotated[int, Field(ge=0, strict=True)]
    """Number of ids, missing and unknown included; 0 for numeric."""
    shares: str | None = None
    """The categorical field whose table this bag or sequence uses."""


class Categorical(Spec):
    """One value of many: text, whole numbers or booleans."""

    shares: ClassVar[None] = None
    kind: Literal["categorical"] = "categorical"
    name: str = Field(min_length=1)
    """Column of the table."""
    min_count: Annotated[Count, only_with("hash_buckets", None)] = 1
    """Training rows that a value needs to get an id of its own; rarer ones are unknown."""
    hash_buckets: Count | None = None
    """Ids by a stable hash into so many buckets; None gives each value an id."""


class Numeric(Spec):
    """A number. Missing ones become 0 and are marked."""

    shares: ClassVar[None] = None
    kind: Literal["numeric"] = "numeric"
    name: str = Field(min_length=1)
    """Column of the table."""
    transform: Literal["linear", "standard", "log", "bucket"] = "standard"
    """linear: as it is; standard: mean 0 and deviation 1 over the training rows; log: sign(x) log(1
    + |x|); bucket: the quantiles of the training rows as a categorical field."""
    buckets: Annotated[int | None, only_with("transform", "bucket")] = Field(None, ge=2, le=MOST_BINS)
    """Most buckets, 50 by default (needs transform=bucket); equal quantiles merge."""


class _Multivalued(Spec):
    """Settings that bags and sequences share."""

    name: str = Field(min_length=1)
    """Column of the table: lists, or text with a separator."""
    separator: str | None = Field(None, min_length=1)
    """What stands between the values of a text column; None for a column of lists."""
    max_length: Length = 50
    """Most values kept."""
    shares: str | None = None
    """A categorical field whose vocabulary and embedding table it uses."""
    extends: Annotated[bool, only_with("shares")] = later(False)
    """Whether its values get ids in the shared vocabulary too: those that training rows hold at least `min_count` times
    there or here, by the `min_count` of the shared field; False: a value that field never had is unknown."""
    min_count: Annotated[Count, only_with("hash_buckets", None), only_with("shares", None)] = 1
    """Occurrences in training rows that a value needs to get an id of its own."""
    hash_buckets: Annotated[Count | None, only_with("shares", None)] = None
    """Ids by a stable hash into so many buckets; None gives each value its own."""


class BagOf(_Multivalued):
    """Several values in no order, such as genres: the first `max_length` are kept."""

    keep_missing: ClassVar[bool] = False
    kind: Literal["bag"] = "bag"


class SequenceOf(_Multivalued):
    """A behaviour history, oldest first: the last `max_length` are kept."""

    kind: Literal["sequence"] = "sequence"
    keep_missing: bool = later(False)
    """A missing value is an event of the missing id, so that what is known of events, such as
    ratings, stays beside their items; False leaves it out."""


AnyField = Annotated[
    Annotated[Categorical | Numeric | BagOf | SequenceOf, Field(discriminator="kind")],
    by_kind("kind of field", Categorical, Numeric, BagOf, SequenceOf, text="name", usual="categorical"),
]
"""A field: a spec, a mapping (`kind` defaults to categorical), or a categorical column's name."""


class FieldSet(Spec):
    """Fields that are fitted and encoded together."""

    @property
    @abstractmethod
    def declared(self) -> tuple[AnyField, ...]:
        """Every field, in order."""

    def several(self) -> Iterator[BagOf | SequenceOf]:
        """The multi-valued fields, bags and sequences, in order."""
        yield from (field for field in self.declared if isinstance(field, BagOf | SequenceOf))

    def check_shared(self) -> None:
        """Raise `UserError` unless each field that `shares` a vocabulary names one."""
        owners = [field.name for field in self.declared if isinstance(field, Categorical)]
        hashed = [f.name for f in self.declared if isinstance(f, Categorical) and f.hash_buckets is not None]
        for field in self.several():
            if field.shares is not None and field.shares not in owners:
                what = f"field {field.name!r}: shares names no categorical field, given"
                raise no_such(what, field.shares, owners, "categorical", code="unknown-categorical-field")
            if field.extends and field.shares in hashed:
                raise no_effect(f"field {field.name!r}: extends", f"with {field.shares!r} hashed, without a vocabulary")


class Schema(FieldSet):
    """The columns of a table of impressions, and how its rows are split."""

    label: str = "label"
    """Column of what is predicted: 0 or 1."""
    label_threshold: Value | None = None
    """The label is 1 where the column is at least this (4 for stars); None: it holds 0 and 1."""
    fields: Annotated[tuple[AnyField, ...], once("field", lambda fields: [field.name for field in fields])] = Field(
        min_length=1
    )
    """What a ranker reads, in order."""
    group: str | None = None
    """Column of whose impression it is, for metrics by group; it may be a field too."""
    time: str | None = None
    """Column of when; the temporal split needs it."""
    time_unit: Annotated[Unit, only_with("time")] = "s"
    """What a number in the time column counts."""
    split: ImpressionSplit = Field(default_factory=RandomSplit)
    """Which rows are trained on: random, temporal (by `time`) or given (a column)."""

    @model_validator(mode="after")
    def _sound(self) -> Schema:
        names = [field.name for field in self.fields]
        if self.label in names:
            raise UserError(
                f"the label {self.label!r} is also a field: a model would read what it predicts",
                code="label-is-a-field",
            )
        if isinstance(self.split, GivenSplit) and self.split.column in (*names, self.label):
            raise UserError(
                f"the split column {self.split.column!r} is also a field or the label; take it out there",
                code="split-column-is-a-field",
            )
        if self.time is None and isinstance(self.split, TemporalSplit):
            raise needs_times("temporal", "time", "random")
        self.check_shared()
        return self

    @property
    def declared(self) -> tuple[AnyField, ...]:
        return self.fields

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column that is read, each once."""
        split = self.split.column if isinstance(self.split, GivenSplit) else None
        names = [self.label, *(field.name for field in self.fields), self.group, self.time, split]
        return tuple(dict.fromkeys(name for name in names if name is not None))

    @classmethod
    def read(cls, path: str | Path) -> Schema:
        """A schema from a YAML or JSON file."""
        return cls.parse(schema_tree(path))


def schema_tree(path: str | Path) -> Any:
    """The plain data of a YAML or JSON file, which may say a part of a schema alone."""
    with in_context(f"the schema {str(path)!r} cannot be read: "):
        return read_tree(read_text(path))
