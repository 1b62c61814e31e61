"""From a table of impressions to a store that rankers train on: schema, split, vocabularies, arrays.

Without a schema one is inferred from the names and types of the columns, for a first try; what was decided is said.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import narwhals as nw
import polars as pl

from fullrank.core.checks import check_path, check_texts
from fullrank.core.errors import UserError
from fullrank.core.files import require_replaceable, whole_folder, without_dots
from fullrank.core.locks import folder_lock
from fullrank.core.log import logger, shown_at
from fullrank.data.frames import Chunks, InputTable
from fullrank.data.impressions.fields import AnyField, BagOf, Categorical, Numeric, Schema
from fullrank.data.impressions.splits import GivenSplit, ImpressionSplit, RandomSplit, TemporalSplit
from fullrank.data.impressions.store import ImpressionStore, is_own
from fullrank.data.impressions.write import write_impressions
from fullrank.data.manifest import is_store, require_outside_stores

log = logger(__name__)

LABELS = ("label", "click", "clicked", "is_click", "target", "y")
GROUPS = ("user", "user_id", "userid", "uid", "session", "session_id")
TIMES = ("timestamp", "time", "datetime", "date", "event_time", "ts")
SPLITS = ("split", "part", "fold")
LOOK = 1_000
"""Rows that are looked at."""


def prepare_impressions(
    impressions: Any,
    out: str | Path,
    *,
    schema: Schema | Mapping[str, Any] | str | Path | None = None,
    progress: bool = False,
    notes: Sequence[str] = (),
) -> ImpressionStore:
    """Write a store of impressions at `out`; one that is there is replaced at the end.

    `impressions` is a path (.parquet, .csv[.gz], .tsv[.gz], .jsonl; a folder of Parquet files) or a DataFrame of any
    engine that narwhals reads. `schema` is one, a mapping, or a YAML or JSON file; without it, it is inferred from
    names and types, and the decisions are printed to stderr. The table is read in chunks, twice: memory depends on the
    number of distinct values, not of rows. `notes` are kept in the manifest.
    Raises `UserError` with one sentence for whatever cannot be read as the schema says; `out` is then as it was.
    """
    place = without_dots(check_path("out", out))
    check_texts("notes", notes, '["what is known of the data"]')
    with folder_lock(place, "prepare-impressions"):
        return _prepare_locked(impressions, place, schema, shown_at(progress), notes)


def _prepare_locked(
    impressions: Any,
    place: Path,
    schema: Schema | Mapping[str, Any] | str | Path | None,
    level: int,
    notes: Sequence[str],
) -> ImpressionStore:
    require_outside_stores(place)
    require_replaceable(place, "store of impressions", lambda folder: is_store(folder, "ranking"), is_own)

    def say(line: str) -> None:
        log.log(level, line)

    source = InputTable(impressions, "impressions")
    if schema is None:
        spec = infer(source)
        log.info(summary(spec))
    else:
        spec = Schema.read(check_path("schema", schema)) if isinstance(schema, str | Path) else Schema.parse(schema)
    for column in spec.columns:
        source.require(column, "correct the schema")
    facts = {"input": _name(impressions), "notes": list(notes)}
    with whole_folder(place) as folder:
        scratch = folder / "scratch"  # inside, so that a killed process leaves one folder, which the next one removes
        scratch.mkdir()
        chunks = Chunks(source, spec.columns, scratch)
        if chunks.rows == 0:
            raise UserError(f"{source.name} has no rows", code="empty-table")
        write_impressions(folder, scratch, chunks, spec, source.typed, facts, say)
    store = ImpressionStore.open(place, verify=False)  # the hashes were taken just now
    say(f"wrote {str(place)!r}: {len(store):,} rows")
    return store


def _name(table: Any) -> str:
    if isinstance(table, (str, Path)):
        return Path(table).name
    return f"{type(table).__module__.split('.')[0]}.{type(table).__name__}"


def infer(source: InputTable) -> Schema:
    """Label, group, time and split by their usual names; the other columns by type: fractions are numeric, lists bags,
    the rest categorical. Raises `UserError` where no column has a usual label name, or none is left as a field."""
    label = _named(source, LABELS)
    if label is None:
        raise UserError(
            f"{source.name} has no column called {', '.join(LABELS)} (columns: {', '.join(source.columns)}); "
            "name the label in a schema",
            code="no-label-column",
        )
    head = source.frame.head(LOOK)
    frame = source.infer(source.attempt(lambda: _polars(head)), ())
    time, column = _named(source, TIMES), _named(source, SPLITS)
    column = column if column is not None and frame[column].dtype == pl.String else None  # `fold` may be a number
    fields = [_field(frame[name]) for name in source.columns if name not in (label, time, column)]
    if not fields:
        raise UserError(f"{source.name} has no column besides {label!r} that could be a field", code="no-field-columns")
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


def _named(source: InputTable, usual: tuple[str, ...]) -> str | None:
    return next((name for want in usual for name in source.columns if name.lower() == want), None)


def _polars(frame: object) -> pl.DataFrame:
    if isinstance(frame, nw.LazyFrame):
        frame = frame.collect(backend="polars")
    assert isinstance(frame, nw.DataFrame)
    return frame.to_polars()
