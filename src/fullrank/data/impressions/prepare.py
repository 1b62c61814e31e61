"""From a table of impressions to a store that rankers train on: schema, split, vocabularies, arrays.

Without a schema one is inferred from the names and types of the columns, for a first try;
what was decided is said.

A store is one part, or several; a part is a stretch of input rows, read twice, once to fit and once
to encode. What has to be known of all rows is added up over the parts: the counts of values and
groups, exact moments of numbers, a sample for quantiles that the row numbers pick, and how many
rows precede a moment (`PartTasks`). So tasks may run anywhere, and the store does not depend on how
many parts there are. Memory holds the different values, and one chunk. A killed preparation goes on
behind what was read and fitted, with the parts that are written (`parallel/folder.py`).

Spark numbers the rows of a table, in the order of the files by name and of the rows in them (of a
DataFrame that is none of files, in the order of its partitions), and puts the columns that are read
into a folder, part by part. What happens to a part is what happens in one process (`part_work.py`),
so the store is the same, to the fingerprint. The workers need this library, and ``OUT.preparing``
on a file system that they and the driver share.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack
from urllib.parse import unquote

import numpy as np
import polars as pl
from pydantic import TypeAdapter

from fullrank.core.checks import check_path, check_type, public, takes, with_defaults
from fullrank.core.errors import UserError
from fullrank.core.files import JsonObject, whole_folder, without_dots, write_json
from fullrank.core.locks import folder_lock
from fullrank.core.log import logger, shown_at
from fullrank.core.readers import read_json
from fullrank.core.spec import read_setting
from fullrank.data import manifest as manifests
from fullrank.data.column_names import check_said_once, keywords_said
from fullrank.data.events import parts
from fullrank.data.events.parts import require_replaceable_store
from fullrank.data.events.prepare import STORE_DEFAULTS, TableKeywords, check_engine
from fullrank.data.events.spark import ORDER, ordered_frame, runner_on_spark
from fullrank.data.events.store import Store
from fullrank.data.events.stream import identity_of
from fullrank.data.frames import Chunks, InputTable, input_name, require_rows
from fullrank.data.impressions import encoder_files
from fullrank.data.impressions.arrays import BLOCKS, TABLES, fingerprint
from fullrank.data.impressions.infer import infer, summary
from fullrank.data.impressions.joined import JoinedRows, UserColumns, taken_over
from fullrank.data.impressions.part_work import (
    FITTED,
    HASHES,
    Borders,
    CutRows,
    PartRows,
    PartTasks,
    find_borders,
)
from fullrank.data.impressions.schema import Schema, TemporalSplit, schema_tree
from fullrank.data.impressions.store import FORMS, ImpressionStore, is_file_name
from fullrank.data.impressions.write import Say, write_store_manifest, write_tables
from fullrank.parallel import Local, Runner, Threads
from fullrank.parallel.folder import unfinished
from fullrank.parallel.spark import as_user_error

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


log = logger(__name__)

_FILE, _ROW = ORDER
_PART = "_fullrank_part"
"""Column that says the part of an impression."""


class ImpressionKeywords(TableKeywords, total=False):
    """The keywords of `prepare_impressions`: those of every table, label and users."""

    label: str | None
    users: Any
    features_of: Store | str | Path | None


SETTINGS = {"label": "label", "user_col": "group", "time_col": "time", "time_unit": "time_unit"}
"""Keyword -> the setting of `Schema` that it is."""
DEFAULTS = dict.fromkeys([*SETTINGS, "users", "features_of"]) | {"time_col": ..., "separator": None} | STORE_DEFAULTS
"""Defaults of `ImpressionKeywords`."""


@public
@takes(ImpressionKeywords, DEFAULTS, checked=True)
def prepare_impressions(
    impressions: Any,
    out: str | Path,
    *,
    schema: Schema | Mapping[str, Any] | str | Path | None = None,
    **keywords: Unpack[ImpressionKeywords],
) -> ImpressionStore:
    """Write a store of impressions at `out`, in place of an older one with `overwrite`.

    `impressions` is a path (.parquet, .csv[.gz], .tsv[.gz], .jsonl; a folder of Parquet files) or a
    DataFrame of any engine that narwhals reads. `separator` is that of a text file; without it, it
    is found in the first line.

    `schema` is one, a mapping, or a YAML or JSON file. What neither it nor `label`, `user_col`
    (the schema's `group`), `time_col` (None: there is none) and `time_unit` say is inferred from
    names and types where it names no fields, and the decisions are printed to stderr; `set`
    changes any setting of the schema.

    `users` is a table with a row for each user, found by `user_col`: fields that the impressions
    lack are its columns. `features_of` is a store of events whose features become fields, unless
    the schema names them: those of users (of its own table, without `users`) and of requests, and
    as sequences those of past events, of columns of lists.

    The table is read in chunks, twice: memory depends on the number of distinct values, not of
    rows. `notes` are kept in the manifest. With `parts` the store is written in so many parts, each
    of some input rows in a row, and a preparation that was killed goes on when it is called again.
    ``engine="spark"`` (extra `spark`) does it on the Spark session that is there, or on one of
    `master`, such as ``local[2]`` or ``spark://host:7077``; `impressions` are Parquet or a Spark
    DataFrame, and the store is the same.

    Raises `UserError` with one sentence for whatever cannot be read as the schema says;
    `out` is then as it was.
    """
    folder, options = without_dots(out), with_defaults(keywords, DEFAULTS)
    check_engine(options)
    parts, engine = options["parts"], options["engine"]
    tree, settings = _schema_tree(schema, keywords_said(SETTINGS, options), options["set"])
    with folder_lock(folder, "prepare-impressions"):
        require_replaceable_store(folder, FORMS, is_file_name, overwrite=options["overwrite"])
        source = InputTable(impressions, "impressions", separator=options["separator"])
        facts = {"input": input_name(impressions), "notes": list(options["notes"])}
        if inferred := not isinstance(tree, Schema):
            tree = infer(source, tree)
            log.info(summary(tree))
        spec, more = taken_over(
            tree.override(*settings), source, options["users"], options["features_of"], inferred=inferred
        )
        read = [column for column in spec.columns if column not in more.names]
        for column in read:
            source.require(column, "name it with label=, user_col= or time_col=, or correct the schema")
        say: Say = partial(log.log, shown_at(options["progress"]))
        if parts is None:
            _prepare_whole(source, folder, spec, read, more, facts, say)
        else:
            request = {"schema": spec.dump(), "parts": parts, "engine": engine, "typed": source.typed}
            request["input"] = identity_of(impressions)
            if more.names:
                request["users"] = [more.names, identity_of(more.origin)]
            rows_in: Callable[..., PartRows] = partial(CutRows.of_table, source, read, parts)
            runner: Runner = Threads()
            if engine == "spark":
                runner = runner_on_spark(source, options["master"])
                rows_in = partial(rows_on_spark, runner.session, source.table, read, parts)
            with unfinished(folder, request) as work:
                rows = more.beside(rows_in(work.scratch, read=work.state is not None), work.scratch)
                require_rows(rows.name, rows.rows)
                if work.state is not None:
                    say("go on with what was read before")
                work.note({})
                _write_parts(PartTasks(work.path, work.scratch, rows, spec, source.typed), runner, facts, say)
        store = ImpressionStore.open(folder, verify=False)  # the hashes were taken just now
        for note in store.encoder.notes:
            log.info(f"note: {note}")
        say(f"wrote {str(folder)!r}: {len(store):,} rows")
        return store


def _schema_tree(
    schema: Any, keywords: Mapping[str, tuple[str, Any]], settings: Sequence[str]
) -> tuple[Schema | JsonObject, list[str]]:
    """A schema, or a part of one, with the keywords in it; and the settings that change it later.

    Raises `UserError` where a column is named both ways.
    """
    if isinstance(schema, str | Path):
        schema = schema_tree(check_path("schema", schema))
    if isinstance(schema, Schema):
        known: JsonObject = {name: getattr(schema, name) for name in schema.model_fields_set}
    else:
        demand = "a fr.Schema, a mapping, or the path of a file"
        known = dict(check_type("schema", {} if schema is None else schema, Mapping, demand))
    plain = dict(map(read_setting, settings))
    for name, (key, _) in keywords.items():
        check_said_once(key, {f"{name}=": True, "the schema": key in known, "set=": key in plain})
    changes = dict(keywords.values())
    if isinstance(schema, Schema):
        return (Schema.parse(schema.dump() | changes) if changes else schema), list(settings)
    if "fields" in known:
        return Schema.parse(known | changes), list(settings)
    # what the rest is inferred from has to be known before; `split.kind=temporal`
    # changes what was inferred
    early = {path: value for path, value in plain.items() if path in Schema.model_fields}
    late = [text for text in settings if text.partition("=")[0].strip() not in early]
    return known | changes | early, late


def _prepare_whole(
    source: InputTable, out: Path, schema: Schema, read: list[str], more: UserColumns, facts: JsonObject, say: Say
) -> None:
    with whole_folder(out) as folder:
        scratch = folder / "scratch"  # inside, so that a killed process leaves one folder, which the next one removes
        scratch.mkdir()
        rows = more.beside(CutRows.of_table(source, read, 1, scratch), scratch)
        source.require_rows(rows.rows)
        tasks = PartTasks(folder, scratch, rows, schema, source.typed, exact=False)
        fitted, borders = _fitted(tasks, Local(), say)
        say("encode and write")
        tasks.encode(0, borders, folder)
        shutil.rmtree(scratch)
        write_store_manifest(folder, tasks.encoder, fitted["counts"], facts)


def _write_parts(tasks: PartTasks, runner: Runner, facts: JsonObject, say: Say) -> None:
    """The parts, and the manifest of all."""
    fitted, borders = _fitted(tasks, runner, say)
    folder, count = tasks.work, tasks.rows.count
    say(f"encode and write {count:,} parts")
    runner.total(partial(tasks.write, borders=borders), range(count))
    written, hashes = parts.written_parts(folder, count, HASHES)
    files = manifests.hash_files(folder, [name for name in TABLES if (folder / name).is_file()])
    tree = {
        "schema": fitted["schema"],
        "fields": [asdict(field) for field in tasks.encoder.fields],
        "fitted": fitted["fitted"],
        "counts": fitted["counts"],
        **facts,
        "fingerprint": fingerprint(folder, files, tasks.schema, parts.bucket_lines(hashes)),
        "parts": parts.described(written),
    }
    manifests.write_manifest(folder, FORMS[1], tree, files)


def _fitted(tasks: PartTasks, runner: Runner, say: Say) -> tuple[JsonObject, Borders | None]:
    """The fitted state and borders that parts are written by. Vocabularies and groups lie in the
    folder of work, where an earlier process has not left all of it already."""
    path = tasks.scratch / FITTED
    if not path.is_file():
        numbers = range(tasks.rows.count)
        borders, split = None, tasks.schema.split
        if isinstance(split, TemporalSplit) and split.moments is not None:
            borders = Borders.at(split.moments, len(numbers))
        elif isinstance(split, TemporalSplit):
            borders = find_borders(
                tasks.rows.rows,
                len(numbers),
                split.shares,
                runner.total(tasks.span, numbers),
                lambda moments: runner.total(partial(tasks.before, moments=moments), numbers),
                lambda moments: runner.total(partial(tasks.equal, moments=moments), numbers),
            )
        say(f"fit {tasks.rows.rows:,} rows")
        fit = runner.total(partial(tasks.fit, borders=borders), numbers)
        fit.check(tasks.rows.name)
        if isinstance(tasks.rows, JoinedRows):
            tasks.rows.require_some(fit.counted.missing)
        write_tables(tasks.work, fit, fit.groups())
        state = encoder_files.encoder_state(fit.encoder()) | {"counts": fit.counts()}
        write_json(path, state | {"borders": None if borders is None else asdict(borders)})
    fitted = read_json(path)
    return fitted, TypeAdapter(Borders | None).validate_python(fitted["borders"])


@dataclass(frozen=True)
class RowFiles(PartRows):
    """The rows of a table as Parquet files in a folder, those of each part in one of its own."""

    folder: Path

    def of(self, number: int, columns: Sequence[str]) -> Iterator[tuple[int, pl.DataFrame]]:
        first, stop = self.stretch(number)
        if first == stop:
            return
        (file,) = (self.folder / f"{_PART}={number}").glob("*.parquet")
        chunks = Chunks(InputTable(file, "impressions"), [_ROW, *columns], self.folder)
        for start, frame in chunks:
            numbers = frame[_ROW].to_numpy()
            if chunks.rows != stop - first or not np.array_equal(numbers, first + start + np.arange(len(frame))):
                raise UserError(
                    f"the rows of {self.name} came in another order when they were read again; write them to Parquet "
                    "files first, or sort them",
                    code="table-changed",
                )
            yield first + start, frame.drop(_ROW)


def rows_on_spark(
    session: SparkSession, table: Any, columns: Sequence[str], count: int, scratch: Path, *, read: bool
) -> RowFiles:
    """The rows of a table in `scratch`, where Spark puts them unless they were `read` already."""
    folder = scratch / "rows"
    with as_user_error():
        frame, name = ordered_frame(session, table, columns, "impressions")
        sizes = {row[0]: row[1] for row in frame.groupBy(_FILE).count().collect()}
        rows = sum(sizes.values())
        if rows and not read:
            _write(frame, sizes, rows, count, folder)
    return RowFiles(name, rows, count, folder)


def _write(frame: DataFrame, sizes: dict[str, int], rows: int, count: int, folder: Path) -> None:
    """Number the rows through all files, and write those of each part, in order."""
    from pyspark.sql import functions as F

    names = sorted(sizes, key=unquote)
    first = np.cumsum([0, *(sizes[name] for name in names)])[:-1].tolist()
    starts = frame.sparkSession.createDataFrame(list(zip(names, first, strict=True)), f"{_FILE} string, first long")
    numbered = frame.join(F.broadcast(starts), _FILE).withColumn(_ROW, F.col(_ROW) + F.col("first"))
    block = f"(({_ROW} + 1) * {BLOCKS}L - 1) div {rows}L"  # the inverse of `block_edges`
    parts = numbered.drop(_FILE, "first").withColumn(_PART, F.expr(f"cast(({block}) * {count}L div {BLOCKS}L as int)"))
    sent = parts.repartition(count, _PART).sortWithinPartitions(_PART, _ROW)
    one_file = sent.write.mode("overwrite").option("maxRecordsPerFile", 0)  # for each part
    one_file.partitionBy(_PART).parquet(folder.resolve().as_uri())
