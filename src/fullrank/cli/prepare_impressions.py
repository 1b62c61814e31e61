"""`fullrank prepare-impressions`: a table of impressions, or a public data set, to a store that rankers train on."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fullrank.cli.download import DOWNLOADS, named_source
from fullrank.cli.options import AsJson, Settings
from fullrank.cli.output import Output, seconds
from fullrank.core.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from fullrank.data.impressions.store import ImpressionStore


def add(app: typer.Typer) -> None:
    app.command("prepare-impressions")(prepare_impressions)


def prepare_impressions(
    impressions: Annotated[
        str,
        typer.Argument(
            metavar="IMPRESSIONS",
            help="A table of impressions (.parquet, .csv, .tsv, .jsonl, or a folder of .parquet), or the name of a "
            "source (`fullrank list sources`; ./NAME means the file).",
        ),
    ],
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="[FOLDER]", help="Where a source's files lie.  [default: downloads/SOURCE]"),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FOLDER", help="The store to write; one there is replaced.")
    ] = None,
    schema: Annotated[
        Path | None,
        typer.Option(
            "--schema", metavar="FILE", help="YAML or JSON: label, fields, split.  [default: from names and types]"
        ),
    ] = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Turn impressions into a store for rankers.

    An impression is a row with a label (clicked or not) and fields: who, what, where, when. The schema says which
    column is what; `fullrank schema --kind impressions` is its JSON Schema. --set changes settings of the schema, those
    of a source are written --set source.NAME=VALUE.

    \b
    fullrank prepare-impressions impressions.parquet --schema schema.yaml --out data/ctr
    fullrank prepare-impressions log.csv --out data/ctr
    fullrank prepare-impressions criteo downloads/criteo --out data/criteo
    fullrank prepare-impressions planted_clicks --set source.rows=1000000 --out data/toy
    """
    screen = Output(as_json)
    if out is None:
        raise UserError("--out is missing: name the folder of the store to write")
    begun = time.perf_counter()
    store = _prepare(impressions, folder, out, schema, settings or [])
    _report(screen, store, time.perf_counter() - begun)


def _prepare(
    impressions: str, folder: Path | None, out: Path, schema: Path | None, settings: list[str]
) -> ImpressionStore:
    from fullrank.core.registry import kinds
    from fullrank.data.frames import InputTable as Table
    from fullrank.data.impressions.fields import Schema
    from fullrank.data.impressions.prepare import infer
    from fullrank.data.impressions.prepare import prepare_impressions as make
    from fullrank.data.sources import ImpressionSource

    known = kinds("data.sources")
    own = [setting.removeprefix("source.") for setting in settings if setting.startswith("source.")]
    rest = [setting for setting in settings if not setting.startswith("source.")]
    if impressions not in known:
        if folder is not None or own:
            what = "a folder" if folder is not None else "--set source."
            raise UserError(
                f"{what} belongs to a source, and {impressions!r} is none{did_you_mean(impressions, known)}"
            )
        if not Path(impressions).exists() and not Path(impressions).suffix and "/" not in impressions:
            raise UserError(f"{impressions!r} is neither a file nor a source{did_you_mean(impressions, known)}")
        spec = None if schema is None else Schema.read(schema)
        if rest:
            spec = (spec or infer(Table(impressions, "impressions"))).override(*rest)
        return make(impressions, out, schema=spec, progress=True)
    source = named_source(impressions, own)
    if not isinstance(source, ImpressionSource):
        raise UserError(f"the source {impressions!r} holds events: use fullrank prepare {impressions}")
    if folder is not None and not source.files():
        raise UserError(f"the source {impressions!r} generates its data and reads no files: leave out the folder")
    found = source.impressions(folder or DOWNLOADS / impressions)
    spec = (found.schema if schema is None else Schema.read(schema)).override(*rest)
    return make(found.table, out, schema=spec, progress=True, notes=found.notes)


def _report(screen: Output, store: ImpressionStore, spent: float) -> None:
    found = store.manifest
    screen.table(
        ("field", "kind", "ids", "missing"),
        [(f.name, f.kind, f.size or "", found["counts"]["missing"][f.name]) for f in store.fields],
    )
    screen.table(
        ("part", "rows", "positive"),
        [(name, part["rows"], part["positive"]) for name, part in found["counts"]["parts"].items()],
    )
    screen.say(f"{store.path}: {len(store):,} rows, {len(store.fields)} fields, in {seconds(spent)}")
    for note in found["notes"]:
        screen.say(f"note: {note}")
    facts = {key: value for key, value in found.items() if key not in ("files", "format", "fitted")}
    screen.finish({"store": store.path, **facts, "seconds": round(spent, 3)})
