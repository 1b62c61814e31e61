"""A schema from the names and types of a table's columns, for a first try; what was decided is said."""

from __future__ import annotations

import polars as pl

from fullrank.core.errors import UserError
from fullrank.data.frames import Source
from fullrank.data.impressions.fields import AnyField, BagOf, Categorical, Numeric, Schema
from fullrank.data.impressions.splits import GivenSplit, ImpressionSplit, RandomSplit, TemporalSplit

LABELS = ("label", "click", "clicked", "is_click", "target", "y")
GROUPS = ("user", "user_id", "userid", "uid", "session", "session_id")
TIMES = ("timestamp", "time", "datetime", "date", "event_time", "ts")
SPLITS = ("split", "part", "fold")
LOOK = 1_000
"""Rows that are looked at."""


def infer(source: Source) -> Schema:
    """Label, group, time and split by their usual names; the other columns by type: fractions are numeric, lists bags,
    the rest categorical. Raises `UserError` where no column has a usual label name, or none is left as a field."""
    label = _named(source, LABELS)
    if label is None:
        raise UserError(
            f"{source.name} has no column called {', '.join(LABELS)} (columns: {', '.join(source.columns)}); "
            "name the label in a schema"
        )
    head = source.frame.head(LOOK)
    frame = source.infer(source.guard(lambda: _polars(head)), ())
    time, column = _named(source, TIMES), _named(source, SPLITS)
    column = column if column is not None and frame[column].dtype == pl.String else None
    fields = [_field(frame[name]) for name in source.columns if name not in (label, time, column)]
    if not fields:
        raise UserError(f"{source.name} has no column besides {label!r} that could be a field")
    split: ImpressionSplit = RandomSplit()
    if column is not None:
        split = GivenSplit(column=column)
    elif time is not None:
        split = TemporalSplit()
    return Schema(label=label, fields=tuple(fields), group=_named(source, GROUPS), time=time, split=split)


def summary(schema: Schema) -> str:
    """One line for each decision."""
    kinds: dict[str, list[str]] = {}
    for field in schema.fields:
        kinds.setdefault(field.kind, []).append(field.name)
    lines = [f"label: {schema.label}", *(f"{kind}: {', '.join(names)}" for kind, names in kinds.items())]
    lines += [f"{what}: {name}" for what, name in (("group", schema.group), ("time", schema.time)) if name is not None]
    return "\n".join(["no schema was given; taken from names and types:", *lines, f"split: {schema.split.kind}"])


def _field(column: pl.Series) -> AnyField:
    if isinstance(column.dtype, (pl.List, pl.Array)):
        return BagOf(name=column.name)
    if column.dtype.is_float():
        known = column.fill_nan(None).drop_nulls()
        if not len(known) or bool((known != known.floor()).any()):
            return Numeric(name=column.name)
    return Categorical(name=column.name)


def _named(source: Source, usual: tuple[str, ...]) -> str | None:
    return next((name for want in usual for name in source.columns if name.lower() == want), None)


def _polars(frame: object) -> pl.DataFrame:
    import narwhals as nw

    if isinstance(frame, nw.LazyFrame):
        frame = frame.collect(backend="polars")
    assert isinstance(frame, nw.DataFrame)
    return frame.to_polars()
