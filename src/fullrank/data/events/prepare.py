"""From a table of events to a store (a prepared dataset): read, filter, split, write.

Filters are pure functions, events to events; the manifest gets the counts after each.

The memory that a file of events takes is estimated first: a file of 2 MB can hold 200 million rows,
since compression writes equal rows once. A table that would take more than is free, or more than
`MOST` and a thousand times its file, is read in pieces and becomes a store in parts (`stream.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from logging import INFO
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict, Unpack

import polars as pl
from pydantic import Field

from fullrank.core.checks import public, takes, with_defaults
from fullrank.core.errors import UserError, no_effect
from fullrank.core.files import JsonObject, without_dots
from fullrank.core.locks import folder_lock
from fullrank.core.log import logger, shown_at
from fullrank.core.memory import available_bytes, gibibytes
from fullrank.data.column_names import TimeColumn, keywords_said, with_keywords
from fullrank.data.events import spark, splits
from fullrank.data.events.feature_kinds import with_kinds
from fullrank.data.events.filters import Missing, Prepare, Say, filters, k_core, note_filter
from fullrank.data.events.part_work import SPILL, Counted
from fullrank.data.events.parts import MOST_PARTS
from fullrank.data.events.pieces import SUFFIX
from fullrank.data.events.store import Store, require_replaceable_store
from fullrank.data.events.stream import Beside, identity_of, make_parts, read_pieces
from fullrank.data.events.table import Columns, read_events, require_columns
from fullrank.data.events.write import write_store
from fullrank.data.frames import InputTable, input_name
from fullrank.data.values import Unit
from fullrank.parallel.folder import unfinished

log = logger(__name__)

Engine = Literal["embedded", "spark"]
"""The engine of a preparation in parts: this process, or Spark."""
ROW_OF_TEXT, ROW = 95, 65
"""Bytes at the peak for each event of a text file and of others, measured on five million."""
FEATURE = 40
"""Bytes at the peak for each event and feature: a text as polars views it, and codes twice."""
SAID = 2**30
"""Bytes of an estimate from which on it is logged."""
MOST, MOST_RATIO = 2**32, 1000
"""A table in memory may take so many bytes, or so many times those of its file, whichever is more."""
SHORTEST = 4
"""Bytes of the shortest row of a text file."""
INFLATED = 1032
"""How many times its own size a .gz file can hold."""

__all__ = ["Columns", "Prepare", "Store", "prepare"]


class TableKeywords(TypedDict, total=False):
    """How a table is read and its store is written, as keywords of `prepare` and `prepare_impressions`."""

    user_col: str | None
    time_col: TimeColumn
    time_unit: Unit | None
    separator: str | None
    set: Sequence[str]
    parts: Annotated[int, Field(ge=1, le=MOST_PARTS)] | None
    engine: Engine
    master: str | None
    overwrite: bool
    progress: bool
    notes: Sequence[str]


class EventKeywords(TableKeywords, total=False):
    """The keywords of `prepare`: those of every table, and those of events."""

    item_col: str | None
    rating_col: str | None
    weight_col: str | None
    type_col: str | None
    missing: Missing | None
    event_features: Sequence[str | Mapping[str, Any]] | None
    request_features: Sequence[str | Mapping[str, Any]] | None
    user_features: Sequence[str | Mapping[str, Any]] | None
    items_id: str | None


SETTINGS = {
    "user_col": "columns.user",
    "item_col": "columns.item",
    "time_col": "columns.time",
    "time_unit": "columns.time_unit",
    "rating_col": "columns.rating",
    "weight_col": "columns.weight",
    "type_col": "columns.type",
    "missing": "missing",
    "event_features": "features.event",
    "request_features": "features.request",
    "user_features": "features.user",
}
"""Keyword -> the setting of `Prepare` that it sets."""
STORE_DEFAULTS: dict[str, Any] = {
    "set": (),
    "parts": None,
    "engine": "embedded",
    "master": None,
    "overwrite": False,
    "progress": False,
    "notes": (),
}
"""Defaults of the `TableKeywords` that are no setting of a spec."""
DEFAULTS = dict.fromkeys(SETTINGS) | {"time_col": ..., "separator": None, "items_id": None} | STORE_DEFAULTS
"""Defaults of `EventKeywords`."""


@public
@takes(EventKeywords, DEFAULTS, checked=True)
def prepare(
    events: Any,
    out: str | Path,
    *,
    items: Any = None,
    users: Any = None,
    spec: Prepare = Prepare(),
    **keywords: Unpack[EventKeywords],
) -> Store:
    """Read events, filter and split them, and write a store at `out`; with `overwrite`, in place of an older one.

    `events`, `items` and `users` are paths (.parquet, .csv[.gz], .tsv[.gz], .jsonl; a folder of
    Parquet files) or DataFrames of any engine that narwhals reads. `user_col`, `item_col`,
    `time_col` (None: the rows are in order) and so on name the columns of the events, in place of
    `user_id`, `item_id` and `timestamp`: they are `columns` of `spec`, and `set` changes any of
    its settings (`["k_core=5"]`). `missing="drop"` leaves out rows without a user, an item or a
    time, and says how many. `separator` is that of a text file of events; without it, it is
    inferred from the first line.

    A table of items is joined on its column `items_id`; without it, and for users, on the column of
    the name that the event table uses, else on `item_id` or `user_id`. `event_features` are columns
    of the events that are known with each of them (rating), `request_features` those known before
    (device), `user_features` columns of the table of users: names, whose kind is found and logged,
    or mappings (`{"kind": "numeric", "name": "age"}`). `progress` prints one line per step to
    stderr; `notes` (facts of a source about its data) go into the manifest.

    A table that takes more memory than is free is prepared in parts, which is logged. With `parts`
    the store is written in so many parts (`data/events/parts.py`), and the table is read in pieces,
    so that neither has to fit into memory; a preparation in parts that was killed goes on when it
    is called again. ``engine="spark"`` (extra `spark`) does it on the Spark session that is there,
    or on one of `master`, such as ``local[2]`` or ``spark://host:7077``; `events` are Parquet or a
    Spark DataFrame, and the store is the same. Equal times keep input order, which is the engine's:
    Spark promises none, so add a column that decides ties there.

    Raises `UserError` with one sentence for anything that cannot be read or would be empty.
    """
    folder, options = without_dots(out), with_defaults(keywords, DEFAULTS)
    check_engine(options)
    parts, items_id = options["parts"], options["items_id"]
    if items_id is not None and items is None:
        raise no_effect(f"items_id={items_id!r}", "without a table of items", "give items, or leave it out")
    spec = with_keywords(spec, keywords_said(SETTINGS, options), options["set"])
    with folder_lock(folder, "prepare"):
        require_replaceable_store(folder, overwrite=options["overwrite"])
        level = shown_at(options["progress"])

        def say(step: str, facts: JsonObject) -> None:
            counts = ", ".join(f"{facts[name]:,} {name}" for name in ("events", "users", "items") if name in facts)
            log.log(level, f"{step}: {counts}" if counts else step)

        source = InputTable(events, "events", separator=options["separator"])
        require_columns(source, spec.columns_read)
        tables = {"events": events, "items": items, "users": users}
        inputs = {role: input_name(table) for role, table in tables.items() if table is not None}
        beside = Beside(items, users, items_id, source.typed, tuple(options["notes"]), inputs)
        if spec.features.all:
            spec = spec.model_copy(update={"features": with_kinds(spec.features, source, spec.columns, users)})
        fitting = _parts_to_fit(source, spec) if parts is None else None
        if fitting is not None:
            parts = fitting.parts
        if parts is None:
            _prepare_whole(source, folder, spec, beside, say)
        else:
            read: Callable[[Path], JsonObject] = partial(read_pieces, source, spec, parts)
            runner = None
            if options["engine"] == "spark":
                runner = spark.runner_on_spark(source, options["master"])
                read = partial(spark.read_on_spark, runner.session, source.table, spec, parts)
            request = {"spec": spec.dump(), "parts": parts, "input": identity_of(events)}
            if users is not None:  # the parts hold what is known of their users
                request["users"] = identity_of(users)
                request["input"] = None if request["users"] is None else request["input"]
            with unfinished(folder, request) as work:
                if work.state is None:
                    state = work.note(read(work.scratch))
                else:
                    state = work.state
                    say("go on with what was read before", {"events": state["events"]})
                if fitting is not None:
                    fitting.require(work.scratch / SPILL)
                make_parts(work, spec, parts, beside, state, say, runner)
        store = Store.open(folder, verify=False)  # the hashes were taken just now
        say(f"wrote {str(folder)!r}", store.manifest["counts"])
    if level < INFO:  # doubts are logged even where steps are not; the command line prints all notes itself
        for note in store.manifest["notes"]:
            if note not in options["notes"]:
                log.info(f"note: {note}")
    return store


def check_engine(keywords: TableKeywords) -> None:
    """Raise `UserError` unless `parts`, `engine` and `master` go together."""
    on_spark = keywords["engine"] == "spark"
    if on_spark and keywords["parts"] is None:
        raise UserError("the engine spark writes stores in parts: say parts=, in how many", code="missing-setting")
    if keywords["master"] is not None and not on_spark:
        raise no_effect("master", "without Spark", "say engine='spark' too")


def _prepare_whole(source: InputTable, out: Path, spec: Prepare, beside: Beside, say: Say) -> None:
    events = read_events(source, spec.columns_read, missing=spec.missing, features=spec.features.of_events)
    split, until, steps = spec.split, None, list[JsonObject]()
    if isinstance(split, splits.RollingTime):
        split, until = split.at(events.time)
    for name, facts, keep in filters(spec, until):
        events = keep(events)
        note_filter(steps, say, name, facts, Counted.of(events).facts())
    per_user, per_item = spec.per_user_and_item
    if max(per_user, per_item) > 1:
        events, rounds = k_core(events, per_user, per_item)
        facts = {"per_user": per_user, "per_item": per_item, "rounds": rounds}
        note_filter(steps, say, "k_core", facts, Counted.of(events).facts())
    rule = split.at(events.time) if isinstance(split, splits.GlobalTime) else split
    table = replace(events, notes=(*beside.notes, *events.notes)).compact()
    catalogue = beside.catalogue(spec, table.item_ids)
    people = beside.people(spec, table.user_ids)
    say("split and write", {})
    write_store(out, table, catalogue, people, spec, rule, {"filters": steps, "inputs": beside.inputs})


@dataclass(frozen=True)
class Fitting:
    """A plan to prepare a table in parts that fit memory: their number, and the bytes that one may take."""

    parts: int
    room: int

    def require(self, folder: Path) -> None:
        """Raise `UserError` where a part was spilled into `folder` that takes more: a user lies in one part."""
        for items in folder.glob(f"*/item{SUFFIX}"):
            events = items.stat().st_size // 4
            if events * ROW > self.room:
                raise UserError(
                    f"{events:,} events lie in one of {self.parts:,} parts, since the events of a user do: it takes "
                    f"about {gibibytes(events * ROW)} of memory and may take {gibibytes(self.room)}. Is there an id "
                    "for all who have none? drop its rows",
                    code="too-large-for-memory",
                )


def _parts_to_fit(source: InputTable, spec: Prepare) -> Fitting | None:
    """A plan for a table on disk that does not fit memory in one; None for a table that fits.

    Rows are counted where there may be many.
    """
    native = source.frame.to_native()
    if source.path is None or not isinstance(native, pl.LazyFrame):
        return None
    row = (ROW if source.typed else ROW_OF_TEXT) + FEATURE * len(spec.features.of_events)
    size = sum(size for _, size, _ in identity_of(source.path))
    text = not (source.sliced or source.path.is_dir())
    if text and size * (INFLATED if source.path.suffix == ".gz" else 1) // SHORTEST * row < SAID:
        return None
    rows = int(source.attempt(lambda: native.select(pl.len()).collect(engine="streaming").item()))
    needed, free = rows * row, available_bytes()
    room = max(MOST, MOST_RATIO * size)
    if free is not None:
        room = min(free, room)
    if needed < min(SAID, room):
        return None
    estimate = f"{source.name} has {rows:,} rows; to prepare them in one takes about {gibibytes(needed)} of memory"
    if needed <= room:
        log.info(estimate)
        return None
    count = min(max(2, -(-needed // SAID)), MOST_PARTS)
    limit = "free" if room == free else "the most for a file of that size"
    log.info(f"{estimate}, and {gibibytes(room)} are {limit}: it is read in pieces, to a store in {count:,} parts")
    return Fitting(count, room)
