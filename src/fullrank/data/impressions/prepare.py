"""From a table of impressions to a store that rankers train on: schema, split, vocabularies, arrays.

Without a schema one is inferred from the names and types of the columns, for a first try; what was decided is said.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from fullrank.core.checks import check_path, check_type, public
from fullrank.core.errors import UserError
from fullrank.core.files import require_replaceable, whole_folder, without_dots
from fullrank.core.locks import folder_lock
from fullrank.core.log import logger, shown_at
from fullrank.core.overrides import read_setting
from fullrank.data.column_names import TimeColumn
from fullrank.data.events import spark
from fullrank.data.events.part_work import PartRunner
from fullrank.data.events.parts import MOST_PARTS
from fullrank.data.events.prepare import Engine, check_engine
from fullrank.data.events.stream import Here, identity_of
from fullrank.data.frames import Chunks, InputTable
from fullrank.data.impressions import stream
from fullrank.data.impressions.fields import Schema, schema_tree
from fullrank.data.impressions.infer import infer, summary
from fullrank.data.impressions.part_work import PartRows
from fullrank.data.impressions.spark import rows_on_spark
from fullrank.data.impressions.store import ImpressionStore, is_own
from fullrank.data.impressions.write import write_impressions
from fullrank.data.manifest import is_store, require_outside_stores
from fullrank.data.values import Unit

log = logger(__name__)


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
    place = without_dots(Path(out))
    check_engine(parts, engine, master)
    named = {
        "label": ("label", label),
        "user_col": ("group", user_col),
        "time_col": ("time", time_col),
        "time_unit": ("time_unit", time_unit),
    }
    given = {name: one for name, one in named.items() if one[1] is not (... if name == "time_col" else None)}
    tree, settings = _schema_tree(schema, given, set)
    with folder_lock(place, "prepare-impressions"):
        require_outside_stores(place)
        require_replaceable(
            place, "store of impressions", lambda folder: is_store(folder, "ranking"), partial(is_own, place),
            overwrite=overwrite,
        )  # fmt: skip
        source = InputTable(impressions, "impressions", separator=separator)
        facts = {"input": _name(impressions), "notes": list(notes)}
        spec, level = _completed(source, tree).override(*settings), shown_at(progress)
        if parts is None:
            return _prepare_locked(source, place, spec, level, facts)
        asked = stream.Preparation(spec, source.typed, parts, engine, identity_of(impressions), facts)
        return _prepare_parts(impressions, source, place, asked, level, master)


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
        if key in known or key in plain:
            where = "the schema" if key in known else "set="
            raise UserError(f"{key} is given twice, by {name}= and by {where}; keep one", code="given-twice")
    changes = {key: value for key, value in given.values()}
    if isinstance(schema, Schema) or "fields" in known:
        whole = schema if isinstance(schema, Schema) else Schema.parse({**known, **changes})
        return (Schema.parse(whole.dump() | changes) if changes else whole), list(settings)
    # what the rest is inferred from has to be known before; `split.kind=temporal` changes what was inferred
    early = {path: value for path, value in plain.items() if path in Schema.model_fields}
    late = [text for text in settings if text.partition("=")[0].strip() not in early]
    return known | changes | early, late


def _completed(source: InputTable, tree: Schema | dict[str, Any]) -> Schema:
    """The schema, with what it leaves open inferred, which is logged."""
    if isinstance(tree, Schema):
        return tree
    spec = infer(source, tree)
    log.info(summary(spec))
    return spec


def _prepare_locked(
    source: InputTable, place: Path, spec: Schema, level: int, facts: dict[str, Any]
) -> ImpressionStore:

    def say(line: str) -> None:
        log.log(level, line)

    _require_columns(source, spec)
    with whole_folder(place) as folder:
        scratch = folder / "scratch"  # inside, so that a killed process leaves one folder, which the next one removes
        scratch.mkdir()
        chunks = Chunks(source, spec.columns, scratch)
        source.require_rows(chunks.rows)
        write_impressions(folder, scratch, chunks, spec, source.typed, facts, say)
    return _opened(place, say)


def _prepare_parts(
    table: Any, source: InputTable, place: Path, asked: stream.Preparation, level: int, master: str | None
) -> ImpressionStore:

    def say(line: str) -> None:
        log.log(level, line)

    _require_columns(source, asked.schema)
    rows_in: Callable[..., PartRows] = partial(stream.cut_rows, source, asked.schema, asked.count)
    runner: PartRunner = Here()
    if asked.engine == "spark":
        spark.require_readable(source)
        session = spark.session_of(table, master)
        rows_in, runner = partial(rows_on_spark, session, table, asked.schema, asked.count), spark.OnSpark(session)
    stream.prepare_impression_parts(rows_in, runner, place, asked, say)
    return _opened(place, say)


def _opened(place: Path, say: Callable[[str], None]) -> ImpressionStore:
    store = ImpressionStore.open(place, verify=False)  # the hashes were taken just now
    for note in store.encoder.notes:
        log.info(f"note: {note}")
    say(f"wrote {str(place)!r}: {len(store):,} rows")
    return store


def _require_columns(source: InputTable, spec: Schema) -> None:
    for column in spec.columns:
        source.require(column, "correct the schema, or name it with label=, user_col= or time_col=")


def _name(table: Any) -> str:
    if isinstance(table, (str, Path)):
        return Path(table).name
    return f"{type(table).__module__.split('.')[0]}.{type(table).__name__}"
