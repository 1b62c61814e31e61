"""What the columns of an impressions table are: the label, the fields that a ranker reads, group, time and split.

A `Schema` is written by hand (YAML, JSON, Python) or inferred (`infer.py`). `FieldInfo` is what a ranker is told
of a field once it is fitted. Ids of a field: 0 missing, 1 unknown, 2 and up its values.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from fullrank.core.constraints import MOST_BINS, MOST_COUNT, MOST_LENGTH, MOST_VALUE, once, only_with
from fullrank.core.errors import UserError, in_context, no_effect, no_such
from fullrank.core.readers import read_text
from fullrank.core.spec import Spec, later, read_tree
from fullrank.data.events.splits import by_kind
from fullrank.data.impressions.splits import GivenSplit, ImpressionSplit, RandomSplit, TemporalSplit
from fullrank.data.values import Unit

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
    min_count: Annotated[int, only_with("hash_buckets", None)] = Field(1, ge=1, le=MOST_COUNT)
    """Training rows that a value needs to get an id of its own; rarer ones are unknown."""
    hash_buckets: int | None = Field(None, ge=1, le=MOST_COUNT)
    """Ids by a stable hash into so many buckets, without a vocabulary; None gives each value its own."""


class Numeric(Spec):
    """A number. Missing ones become 0 and are marked."""

    shares: ClassVar[None] = None
    kind: Literal["numeric"] = "numeric"
    name: str = Field(min_length=1)
    """Column of the table."""
    transform: Literal["linear", "standard", "log", "bucket"] = "standard"
    """linear: as it is; standard: mean 0 and deviation 1 over the training rows; log: sign(x) log(1 + |x|);
    bucket: the quantiles of the training rows as a categorical field."""
    buckets: Annotated[int | None, only_with("transform", "bucket")] = Field(None, ge=2, le=MOST_BINS)
    """Most buckets (needs transform=bucket, which takes 50 where this is None); equal quantiles are one."""


class _Multivalued(Spec):
    """What the multi-valued fields, bags and sequences, have in common."""

    name: str = Field(min_length=1)
    """Column of the table: lists, or text with a separator."""
    separator: str | None = Field(None, min_length=1)
    """What stands between the values of a text column; None for a column of lists."""
    max_length: int = Field(50, ge=1, le=MOST_LENGTH)
    """Most values kept."""
    shares: str | None = None
    """A categorical field whose vocabulary and embedding table it uses."""
    extends: Annotated[bool, only_with("shares")] = later(False)
    """Its values get ids in the shared vocabulary too: those that training rows hold `min_count` times there or here,
    the `min_count` of that field; False: what that field never was is unknown."""
    min_count: Annotated[int, only_with("hash_buckets", None), only_with("shares", None)] = Field(
        1, ge=1, le=MOST_COUNT
    )
    """Occurrences in training rows that a value needs to get an id of its own."""
    hash_buckets: Annotated[int | None, only_with("shares", None)] = Field(None, ge=1, le=MOST_COUNT)
    """Ids by a stable hash into so many buckets; None gives each value its own."""


class BagOf(_Multivalued):
    """Several values in no order, such as genres: the first `max_length` are kept."""

    kind: Literal["bag"] = "bag"


class SequenceOf(_Multivalued):
    """A behaviour history, oldest first: the last `max_length` are kept."""

    kind: Literal["sequence"] = "sequence"


AnyField = Annotated[
    Annotated[Categorical | Numeric | BagOf | SequenceOf, Field(discriminator="kind")],
    by_kind("kind of field", Categorical, Numeric, BagOf, SequenceOf, text="name", usual="categorical"),
]
"""A field: a spec, a mapping (`kind` is categorical where it has none), or the bare name of a categorical column."""


class Schema(Spec):
    """The columns of a table of impressions, and how its rows are split."""

    label: str = "label"
    """Column of what is predicted: 0 or 1."""
    label_threshold: float | None = Field(None, ge=-MOST_VALUE, le=MOST_VALUE)
    """The label is 1 where the column is at least this (4 for stars); None: it holds 0 and 1."""
    fields: Annotated[tuple[AnyField, ...], once("field", lambda fields: [one.name for one in fields])] = Field(
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
            raise UserError("the temporal split needs `time`, the name of the time column", code="split-needs-times")
        owners = [field.name for field in self.fields if isinstance(field, Categorical)]
        hashed = [f.name for f in self.fields if isinstance(f, Categorical) and f.hash_buckets is not None]
        for field in self.several():
            if field.shares is not None and field.shares not in owners:
                what = f"field {field.name!r}: shares names no categorical field, given"
                raise no_such(what, field.shares, owners, "categorical", code="unknown-categorical-field")
            if field.extends and field.shares in hashed:
                raise no_effect(f"field {field.name!r}: extends", f"with {field.shares!r} hashed, without a vocabulary")
        return self

    def several(self) -> Iterator[BagOf | SequenceOf]:
        """The multi-valued fields, bags and sequences, in order."""
        yield from (field for field in self.fields if isinstance(field, BagOf | SequenceOf))

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
