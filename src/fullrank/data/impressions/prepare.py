"""From a table of impressions to a store that rankers train on: schema, split, vocabularies, arrays.

Without a schema one is inferred from the names and types of the columns, for a first try; what was decided is said.

Of a store in parts each is a stretch of input rows, read twice, once to fit and once to encode. What has to be known of
all rows is added up: the counts of values and groups, exact moments of numbers, a sample for quantiles that the row
numbers pick, and rows before a moment (`PartTasks`). So whoever runs tasks on parts may run them anywhere, and the
store does not depend on how many parts there are. Memory holds the different values, and one chunk. The work lies in
``OUT.preparing`` until it is done: a killed preparation goes on behind what was read and fitted, with the parts that
are written.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from fullrank.core.checks import check_path, check_type, public
from fullrank.core.files import require_replaceable, whole_folder, without_dots, write_json
from fullrank.core.locks import folder_lock
from fullrank.core.log import logger, shown_at
from fullrank.core.overrides import read_setting
from fullrank.core.readers import read_json
from fullrank.data import manifest as manifests
from fullrank.data.column_names import TimeColumn, check_said_once, keywords_said
from fullrank.data.events import parts, spark
from fullrank.data.events.part_work import PartRunner
from fullrank.data.events.parts import MOST_PARTS
from fullrank.data.events.prepare import Engine, check_engine
from fullrank.data.events.stream import STATE, Here, identity_of, preparing
from fullrank.data.frames import Chunks, InputTable, input_name, require_rows
from fullrank.data.impressions import encoder_files
from fullrank.data.impressions.encoding import FieldEncoder
from fullrank.data.impressions.fields import Schema, schema_tree
from fullrank.data.impressions.fingerprints import TABLES, fingerprint
from fullrank.data.impressions.infer import infer, summary
from fullrank.data.impressions.part_work import (
    FITTED,
    HASHES,
    SCRATCH,
    Borders,
    CutRows,
    PartRows,
    PartTasks,
    find_borders,
)
from fullrank.data.impressions.spark import rows_on_spark
from fullrank.data.impressions.splits import TemporalSplit
from fullrank.data.impressions.store import FORMS, ImpressionStore, is_own
from fullrank.data.impressions.write import Say, write_impressions, write_tables
from fullrank.data.manifest import is_store, require_outside_stores
from fullrank.data.values import Unit

log = logger(__name__)


@dataclass(frozen=True)
class Preparation:
    """A preparation, as a later process knows it again."""

    schema: Schema
    typed: bool
    count: int
    engine: str
    identity: Any
    """What the table is known by (`identity_of`)."""
    facts: dict[str, Any]
    """For the manifest: `input` and `notes`."""

    def dump(self) -> dict[str, Any]:
        found = {"schema": self.schema.dump(), "parts": self.count, "engine": self.engine, "input": self.identity}
        return found | {"typed": self.typed}


@public
def prepare_impressions(
    impressions: Any,
    out: str | Path,
    *,
    schema: Schema | Mapping[str, Any] | str | Path | None = None,
    label: str | None = None,
    user_col: str | None = None,
    time_col: TimeColumn = ...,
    time_unit: Unit | None = None,
    separator: str | None = None,
    set: Sequence[str] = (),
    parts: Annotated[int, Field(ge=1, le=MOST_PARTS)] | None = None,
    engine: Engine = "embedded",
    master: str | None = None,
    overwrite: bool = False,
    progress: bool = False,
    notes: Sequence[str] = (),
) -> ImpressionStore:
    """Write a store of impressions at `out`; with `overwrite`, one that is there is replaced at the end.

    `impressions` is a path (.parquet, .csv[.gz], .tsv[.gz], .jsonl; a folder of Parquet files) or a DataFrame of any
    engine that narwhals reads. `schema` is one, a mapping, or a YAML or JSON file. What neither it nor `label`,
    `user_col` (the schema's `group`), `time_col` (None: there is none) and `time_unit` say is inferred from names and
    types where it names no fields, and the decisions are printed to stderr; `set` changes any setting of the schema.
    `separator` is that of a text file; without it, it is found in the first line. The table is read in chunks, twice:
    memory depends on the number of distinct values, not of rows. `notes` are kept in the manifest.
    With `parts` the store is written in so many parts, each of some input rows in a row, and a preparation that was
    killed goes on when it is called again. ``engine="spark"`` (extra `spark`) does it on the Spark session that is
    there, or on one of `master`, such as ``local[2]`` or ``spark://host:7077``; `impressions` are Parquet or a Spark
    DataFrame, and the store is the same.
    Raises `UserError` with one sentence for whatever cannot be read as the schema says; `out` is then as it was.
    """
    place = without_dots(out)
    check_engine(parts, engine, master)
    named = {
        "label": ("label", label),
        "user_col": ("group", user_col),
        "time_col": ("time", time_col),
        "time_unit": ("time_unit", time_unit),
    }
    tree, settings = _schema_tree(schema, keywords_said(named), set)
    with folder_lock(place, "prepare-impressions"):
        require_outside_stores(place)
        require_replaceable(
            place, "store of impressions", lambda folder: is_store(folder, "ranking"), partial(is_own, place),
            overwrite=overwrite,
        )  # fmt: skip
        source = InputTable(impressions, "impressions", separator=separator)
        facts = {"input": input_name(impressions), "notes": list(notes)}
        if not isinstance(tree, Schema):
            tree = infer(source, tree)
            log.info(summary(tree))
        spec = tree.override(*settings)
        for column in spec.columns:
            source.require(column, "name it with label=, user_col= or time_col=, or correct the schema")
        say: Say = partial(log.log, shown_at(progress))
        if parts is None:
            with whole_folder(place) as folder:
                write_impressions(folder, source, spec, facts, say)
        else:
            asked = Preparation(spec, source.typed, parts, engine, identity_of(impressions), facts)
            _prepare_parts(*_reader(source, spec, parts, engine, master), place, asked, say)
        store = ImpressionStore.open(place, verify=False)  # the hashes were taken just now
        for note in store.encoder.notes:
            log.info(f"note: {note}")
        say(f"wrote {str(place)!r}: {len(store):,} rows")
        return store


def _schema_tree(
    schema: Any, given: Mapping[str, tuple[str, Any]], settings: Sequence[str]
) -> tuple[Schema | dict[str, Any], list[str]]:
    """A schema, or what is said of one, with the keywords in it; and the dotted settings that change it afterwards.

    Raises `UserError` where a column is named both ways.
    """
    if isinstance(schema, str | Path):
        schema = schema_tree(check_path("schema", schema))
    if isinstance(schema, Schema):
        known: dict[str, Any] = {name: getattr(schema, name) for name in schema.model_fields_set}
    else:
        asked = "a fr.Schema, a mapping, or the path of a file"
        known = dict(check_type("schema", {} if schema is None else schema, Mapping, asked))
    plain = dict(map(read_setting, settings))
    for name, (key, _) in given.items():
        check_said_once(key, {f"{name}=": True, "the schema": key in known, "set=": key in plain})
    changes = {key: value for key, value in given.values()}
    if isinstance(schema, Schema) or "fields" in known:
        whole = schema if isinstance(schema, Schema) else Schema.parse({**known, **changes})
        return (Schema.parse(whole.dump() | changes) if changes else whole), list(settings)
    # what the rest is inferred from has to be known before; `split.kind=temporal` changes what was inferred
    early = {path: value for path, value in plain.items() if path in Schema.model_fields}
    late = [text for text in settings if text.partition("=")[0].strip() not in early]
    return known | changes | early, late


def _reader(
    source: InputTable, schema: Schema, count: int, engine: Engine, master: str | None
) -> tuple[Callable[..., PartRows], PartRunner]:
    """What gives the rows of a table part by part, and what runs tasks on parts."""
    if engine != "spark":
        columns = schema.columns  # what cannot be read from the middle lies in the folder once it was read
        return lambda scratch, read: CutRows(Chunks(source, columns, scratch, spooled=read), count), Here()
    spark.require_readable(source)
    session = spark.session_of(source.table, master)
    return partial(rows_on_spark, session, source.table, schema, count), spark.OnSpark(session)


def _prepare_parts(
    rows_in: Callable[..., PartRows], runner: PartRunner, place: Path, asked: Preparation, say: Say
) -> None:
    """Write a store of so many parts at `place`. The caller holds its lock, and has found that it may be written.

    `rows_in(scratch, read=)` gives the rows of the table; `read`: they lie in the folder, an earlier process put them.
    """
    with preparing(place, asked.dump()) as (work, state):
        (work / SCRATCH).mkdir(exist_ok=True)
        rows = rows_in(work / SCRATCH, read=state is not None)
        require_rows(rows.name, rows.rows)
        if state is not None:
            say("go on with what was read before")
        write_json(work / STATE, asked.dump())
        tasks = PartTasks(work, rows, asked.schema, asked.typed)
        if not (work / SCRATCH / FITTED).is_file():
            _fit(tasks, asked, runner, say)
        fitted = read_json(work / SCRATCH / FITTED)
        say(f"encode and write {asked.count:,} parts")
        borders = TypeAdapter(Borders | None).validate_python(fitted["borders"])
        runner.total(partial(tasks.write, borders=borders), range(asked.count))
        _write_whole(work, asked, fitted)
        (work / STATE).unlink()
        shutil.rmtree(work / SCRATCH)


def _fit(tasks: PartTasks, asked: Preparation, runner: PartRunner, say: Say) -> None:
    """Leave in the folder of work what the parts are written by: vocabularies, groups, statistics, borders."""
    borders = _borders(tasks, asked, runner)
    say(f"fit {tasks.rows.rows:,} rows")
    fit = runner.total(partial(tasks.fit, borders=borders), range(asked.count))
    fit.check(tasks.rows.name)
    write_tables(tasks.work, fit, fit.groups())
    found = encoder_files.encoder_state(fit.encoder()) | {"counts": fit.counts()}
    write_json(tasks.work / SCRATCH / FITTED, found | {"borders": None if borders is None else asdict(borders)})


def _borders(tasks: PartTasks, asked: Preparation, runner: PartRunner) -> Borders | None:
    split, numbers = asked.schema.split, range(asked.count)
    if not isinstance(split, TemporalSplit):
        return None
    if split.moments is not None:
        return Borders.at(split.moments, asked.count)
    return find_borders(
        tasks.rows.rows,
        asked.count,
        split.shares,
        runner.total(tasks.span, numbers),
        lambda moments: runner.total(partial(tasks.before, moments=moments), numbers),
        lambda moments: runner.total(partial(tasks.equal, moments=moments, count=asked.count), numbers),
    )


def _write_whole(folder: Path, asked: Preparation, fitted: dict[str, Any]) -> None:
    """The manifest of a folder that holds all parts."""
    own = parts.manifests_of(folder, asked.count)
    hashes = {int(block): digest for part in own for block, digest in part[HASHES].items()}
    encoder: FieldEncoder = encoder_files.restore_encoder(folder / manifests.NAME, fitted)
    files = manifests.hash_files(folder, [name for name in TABLES if (folder / name).is_file()])
    tree = {
        "schema": fitted["schema"],
        "fields": [asdict(field) for field in encoder.fields],
        "fitted": fitted["fitted"],
        "counts": fitted["counts"],
        **asked.facts,
        "fingerprint": fingerprint(folder, files, asked.schema, parts.bucket_lines(hashes)),
        "parts": parts.described(own),
    }
    manifests.write_manifest(folder, FORMS[1], tree, files)
