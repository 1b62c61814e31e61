"""A schema for a first look: which column of a table is what, from names, types and the first rows.

Text is taken as lists where the evidence is strong: its parts come back more often than whole
values do, and at other places among the parts (in "Berlin, Germany" they do not). A list named like
a history is a sequence.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import polars as pl

from fullrank.core.errors import UserError
from fullrank.core.log import logger
from fullrank.data.frames import InputTable, to_polars
from fullrank.data.impressions.schema import (
    AnyField,
    BagOf,
    Categorical,
    GivenSplit,
    ImpressionSplit,
    Numeric,
    RandomSplit,
    Schema,
    SequenceOf,
    TemporalSplit,
)

log = logger(__name__)

LABELS = ("label", "click", "clicked", "is_click", "target", "y")
GROUPS = ("user", "user_id", "userid", "uid", "session", "session_id")
TIMES = ("timestamp", "time", "datetime", "date", "event_time", "ts")
SPLITS = ("split", "part", "fold")
LOOK = 1_000
"""Rows that are looked at."""
LIST_SEPARATORS = ("|", ";", "^", ",", " ")
"""What may stand between the values of a list; blanks between whole numbers alone."""
LEAST_VALUES, LEAST_SHARE = 20, 0.1
"""Values of a text column, and the share of them with the separator, below which it is no list."""
REPEATS = 2.0
"""How much more often than whole values their parts come back."""
MOVING = 0.5
"""Share of the parts that come back and do so at other places."""
HISTORY = re.compile(r"(^|_)(hist|history|histories|seq|sequence|clicked|viewed)(_|$)")
THOUSANDS = r"^\s*\d{1,3}(,\d{3})+(\.\d+)?\s*$"


def infer(source: InputTable, known: Mapping[str, Any] = MappingProxyType({})) -> Schema:
    """A schema for a table, from the names and types of its columns and its first rows.

    Label, group, time and split are found by their usual names, the other columns by type:
    fractions are numeric, lists (also in text) bags or sequences, the rest categorical. Text that
    may be lists is noted. What is `known` of the schema stays. Raises `UserError` where no column
    has a usual label name, or none is left as a field.
    """
    label = known.get("label", _named(source, LABELS))
    if label is None:
        raise UserError(
            f"{source.name} has no column called {', '.join(LABELS)} (columns: {', '.join(source.columns)}); "
            "name it with label=",
            code="no-label-column",
        )
    head = source.frame.head(LOOK)
    frame = source.infer(source.attempt(lambda: to_polars(head)))
    time, column = known.get("time", _named(source, TIMES)), _named(source, SPLITS)
    column = column if column is not None and frame[column].dtype == pl.String else None  # `fold` may be a number
    if "split" in known:
        rule = known["split"]
        column = rule.get("column") if isinstance(rule, Mapping) else getattr(rule, "column", None)
    fields = [field_of(frame[name]) for name in source.columns if name not in (label, time, column)]
    categorical = [field.name for field in fields if isinstance(field, Categorical)]
    fields = [
        field.model_copy(update={"shares": _target(field, frame, categorical)})
        if isinstance(field, SequenceOf)
        else field
        for field in fields
    ]
    if not fields:
        raise UserError(f"{source.name} has no column besides {label!r} that could be a field", code="no-field-columns")
    split: ImpressionSplit = RandomSplit()
    if column is not None:
        split = GivenSplit(column=column)
    elif time is not None:
        split = TemporalSplit()
    guesses = {"label": label, "fields": fields, "group": _named(source, GROUPS), "time": time, "split": split}
    return Schema.parse(guesses | dict(known))


def summary(schema: Schema) -> str:
    """One line for each decision."""
    kinds: dict[str, list[str]] = {}
    for field in schema.fields:
        kinds.setdefault(field.kind, []).append(field.name)
    lines = [f"label: {schema.label}", *(f"{kind}: {', '.join(names)}" for kind, names in kinds.items())]
    lines += [f"{what}: {name}" for what, name in (("group", schema.group), ("time", schema.time)) if name is not None]
    for field in schema.several():
        cut = "" if field.separator is None else f"text cut at {field.separator!r}, "
        order = ", oldest first" if isinstance(field, SequenceOf) else ""
        target = "" if field.shares is None else f", of the values of {field.shares}"
        lines.append(f"{field.name}: {cut}a {field.kind}{order}{target}")
    more = ["to change any of it, name the fields in a schema (schema=, --schema)"] if any(schema.several()) else []
    whole = ["the schema names no fields; taken from names and types:", *lines, f"split: {schema.split.kind}", *more]
    return "\n".join(whole)


@dataclass(frozen=True)
class ListText:
    """A text column that may hold lists."""

    separator: str
    share: float
    """Share of its values that hold the separator."""
    sure: bool


def list_text(column: pl.Series) -> ListText | None:
    """Whether text is lists, by the separator that most tells; None where nothing says so."""
    values = column.drop_nulls().str.strip_chars()
    values = values.filter(values != "")
    if len(values) < LEAST_VALUES:
        return None
    doubt = None
    for separator in LIST_SEPARATORS:
        share = int(values.str.contains(separator, literal=True).sum()) / len(values)
        if share < LEAST_SHARE or (separator == "," and values.str.contains(THOUSANDS).any()):
            continue
        parts = pl.DataFrame({"part": values.str.split(separator).list.eval(pl.element().str.strip_chars())})
        parts = parts.with_columns(place=pl.int_ranges(pl.col("part").list.len())).explode("part", "place")
        parts = parts.filter(pl.col("part") != "")
        if separator == " " and not parts["part"].str.contains(r"^\d+$").all():
            continue
        counted = parts.group_by("part").agg(count=pl.len(), places=pl.col("place").n_unique())
        again = counted.filter(pl.col("count") > 1)
        if len(parts) / len(counted) < REPEATS * len(values) / values.n_unique():
            continue
        if len(again) and int((again["places"] > 1).sum()) >= MOVING * len(again):
            return ListText(separator, share, True)
        doubt = doubt or ListText(separator, share, False)
    return doubt


def field_of(column: pl.Series) -> AnyField:
    """The field that a column is, by its type and, of text, its values."""
    history = HISTORY.search(column.name.lower()) is not None
    if isinstance(column.dtype, (pl.List, pl.Array)):
        return SequenceOf(name=column.name) if history else BagOf(name=column.name)
    if column.dtype == pl.String and (guess := list_text(column)) is not None:
        if guess.sure:
            return (SequenceOf if history else BagOf)(name=column.name, separator=guess.separator)
        log.info(
            f"note: {column.name!r} has {guess.separator!r} in {guess.share:.0%} of its values and is taken as one "
            f"category; if it holds lists, name it as a field: {{kind: bag, name: {column.name}, separator: "
            f"{guess.separator!r}}}"
        )
    if column.dtype.is_float():
        known = column.fill_nan(None).drop_nulls()
        if not len(known) or (known != known.floor()).any():
            return Numeric(name=column.name)
    return Categorical(name=column.name)


def _target(history: SequenceOf, frame: pl.DataFrame, categorical: Sequence[str]) -> str | None:
    """The categorical field that a history is of: one that it is named after, else the item; None
    where their values have nothing in common."""
    words = {word.rstrip("s") for word in re.split(r"[^a-z0-9]+", history.name.lower())}
    stems = {name: re.sub(r"_?ids?$", "", name.lower()).rstrip("s") for name in categorical}
    named = [name for name in categorical if stems[name] in words]
    column = frame[history.name]
    values = column.explode() if history.separator is None else column.str.split(history.separator).explode()
    values = values.cast(pl.String).str.strip_chars()
    for name in [*named, *(name for name in categorical if stems[name] == "item")]:
        if values.is_in(frame[name].cast(pl.String).implode()).any():
            return name
    return None


def _named(source: InputTable, usual: tuple[str, ...]) -> str | None:
    return next((name for want in usual for name in source.columns if name.lower() == want), None)
