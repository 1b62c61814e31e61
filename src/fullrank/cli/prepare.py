"""`fullrank prepare`, `prepare-impressions` and `download`: from a table or a public data set to a store.

A store is what models train on; `download` fetches the files of a data set from its publisher.

None loads torch.
"""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fullrank.cli.early_checks import check_store
from fullrank.cli.errors import in_shell
from fullrank.cli.option_groups import TimeUnit, WrittenBySettings, column_names
from fullrank.cli.options import (
    Settings,
    Word,
    argument,
    choice,
    names_of,
    option,
    shortcuts,
    spec_options,
    typed_settings,
)
from fullrank.cli.output import Output, seconds
from fullrank.cli.stores import print_sizes, suggest_training, warn
from fullrank.cli.verbs import verb
from fullrank.core.errors import UserError, brief, command_line, did_you_mean, unknown

if TYPE_CHECKING:
    from fullrank.data.events.store import Store
    from fullrank.data.impressions.schema import AnyField, FieldInfo
    from fullrank.data.impressions.store import ImpressionStore
    from fullrank.data.sources import EventSource, ImpressionSource


DOWNLOADS = Path("downloads")
"""Where files lie by default: downloads/SOURCE."""
FLAGS = {
    "columns.user": "--user-col",
    "columns.item": "--item-col",
    "columns.time": "--time-col",
    "columns.time_unit": "",
    "columns.rating": "--rating-col",
    "columns.weight": "--weight-col",
    "columns.type": "--type-col",
    "missing": "",
    "event_types": "--event-type",
    "min_rating": "",
    "duplicates": "",
    "k_core": "",
    "split": "",
    "features.event": "--event-features NAME,NAME",
    "features.request": "--request-features NAME,NAME",
    "features.user": "--user-features NAME,NAME",
}
"""Setting of `Prepare` -> its option; an empty one is the setting's own name."""


@dataclass(frozen=True, kw_only=True)
class StoreOut(WrittenBySettings):
    """Options of the verbs that write a store."""

    out: Annotated[Path, option("FOLDER", "The store to write.")]
    parts: Annotated[
        int | None,
        option(
            "N",
            "Write a store in so many parts, out of core: the table is read in pieces, and a preparation that was "
            "killed goes on.  [default: in one]",
        ),
    ] = None
    engine: Annotated[Word, choice("embedded|spark", "What prepares parts: this process, or Spark.")] = "embedded"
    master: Annotated[str | None, option("URL", "Spark's address, such as local[2] or spark://host:7077.")] = None
    separator: Annotated[
        str | None, option("CHAR", "Between the columns of a text file (tab is one).  [default: found]")
    ] = None

    def keywords(self) -> dict[str, Any]:
        """The typed options as keywords of the library."""
        names = ("parts", "engine", "master", "separator", "overwrite")
        return {name: getattr(self, name) for name in names} | {"progress": True}


@verb()
def download(
    source: Annotated[str, argument("SOURCE", "A public data set; `fullrank list sources` names all.")],
    output: Output,
    out: Annotated[Path | None, option("FOLDER", "Where the files go.  [default: downloads/SOURCE]")] = None,
    settings: Settings = None,
) -> None:
    """Download a public data set.

    Files are checked where the publisher gives a size or a checksum. Run it again to go on with a
    download that was cut off; files that are complete are kept. --set changes the source's own
    settings (`fullrank schema --kind SOURCE` lists them).

    \b
    fullrank download movielens --set variant=20m
    fullrank prepare movielens --set source.variant=20m --out data/ml-20m
    """
    from fullrank.data.download import download as fetch

    spec = named_source(source, settings or [])
    source_settings: Any = getattr(spec, "dump", dict)()
    folder = out or DOWNLOADS / source
    files = fetch(spec, folder, progress=sys.stderr.isatty())
    if not files:
        verb = "prepare" if hasattr(spec, "read") else "prepare-impressions"
        output.say(f"{source} has no files to download: `fullrank {verb} {source} --out data/{source}` makes it")
    for file in files:
        output.say(f"{file}  {file.stat().st_size:,} bytes")
    output.finish({"source": source_settings, "folder": folder, "files": files})


def named_source(name: str, settings: list[str]) -> EventSource | ImpressionSource:
    """A source by its kind, with dotted settings. Raises `UserError`, naming the nearest, for a kind that is none."""
    from fullrank.core.registry import find, kinds

    if name not in kinds("data.sources"):
        raise unknown("source", name, kinds("data.sources"))
    spec: Any = find(name, "data.sources")
    if any(field.is_required() for field in spec.model_fields.values()):
        raise UserError(
            f"the source {name!r} has settings without a default; choose them in Python", code="missing-setting"
        )
    return spec().override(*settings)


@verb(cls=spec_options("fullrank.data.events.prepare:Prepare", FLAGS))
def prepare(
    context: typer.Context,
    events: Annotated[
        str,
        argument(
            "EVENTS",
            "A table of events: .parquet, .csv, .tsv, .jsonl (text also as .csv.gz and so on), a folder of "
            ".parquet, or the name of a source (`fullrank list sources`; ./NAME means the file).",
        ),
    ],
    output: StoreOut,
    items: Annotated[Path | None, option("FILE", "Table of items: titles, features.")] = None,
    items_id: Annotated[
        str | None, option("NAME", "Column of ids in --items.  [default: as in the events, or item_id]")
    ] = None,
    users: Annotated[Path | None, option("FILE", "Table of users.")] = None,
    folder: Annotated[
        Path | None, option("FOLDER", "Where a source's files lie.  [default: downloads/SOURCE]", "--from")
    ] = None,
) -> None:
    """Turn events into a store for recommenders.

    A store is a prepared dataset: a folder. An event is a row with a user, an item and (usually) a
    time. Ids may be numbers or text; they come back in recommendations. --set reaches every setting
    (`fullrank schema --kind prepare`); those of a source are written --set source.NAME=VALUE.

    \b
    fullrank prepare events.parquet --items items.parquet --out data/shop
    fullrank prepare log.csv --user-col customer --item-col sku --time-col none --out data/shop
    fullrank prepare movielens --k-core 5 --set source.variant=1m --out data/ml-1m
    fullrank prepare events.parquet --users users.parquet --event-features rating --user-features age --out data/shop
    fullrank prepare logs/ --parts 64 --out data/large
    fullrank prepare logs/ --parts 64 --engine spark --master spark://host:7077 --out data/large
    fullrank prepare planted --set source.users=500 --out data/toy
    """
    from fullrank.data.events.prepare import Prepare
    from fullrank.data.events.prepare import prepare as make
    from fullrank.data.sources import EventSource

    source_settings, rest = _split_source_settings(shortcuts(typed_settings(context), output.settings))
    source = _source_or_file(events, source_settings, folder, "--from")
    table: Any = events
    beside: dict[str, Any] = {"items": items, "users": users, "items_id": items_id}
    columns: dict[str, Any] = {}
    if source is not None:
        if any(value is not None for value in beside.values()):
            raise UserError(
                f"the source {events!r} brings its own items and users: leave out --items and --users, and --items-id",
                code="option-without-effect",
            )
        if not isinstance(source, EventSource):
            other = command_line("prepare-impressions", events)
            raise UserError(
                f"the source {events!r} holds impressions for rankers: use {other}", code="wrong-kind-of-source"
            )
        tables = source.read(folder or DOWNLOADS / events)
        table, columns = tables.events, dict(tables.columns)
        beside = {"items": tables.items, "users": tables.users}
    spec = Prepare.parse({"columns": columns}).override(*rest)
    if spec.min_rating is None and "columns.rating" in names_of(rest):  # a source names its own in any case
        raise UserError(
            f"--rating-col {brief(spec.columns.rating)} has no effect without "
            "--min-rating, the least rating that is kept",
            code="setting-without-effect",
        )
    store = make(table, output.out, spec=spec, **beside, **output.keywords())
    _report(output, store)


def _split_source_settings(changes: list[str]) -> tuple[list[str], list[str]]:
    """The settings of the source, without their prefix, and the others."""
    of_source = [change for change in changes if change.startswith("source.")]
    return [change.removeprefix("source.") for change in of_source], [c for c in changes if c not in of_source]


def _source_or_file(
    name: str, settings: list[str], folder: Path | None, flag: str
) -> EventSource | ImpressionSource | None:
    """The source of this name; None where it is a file. Refuses settings and a
    folder (`flag`) without effect."""
    from fullrank.core.registry import kinds

    known = kinds("data.sources")
    if name in known:
        source = named_source(name, settings)
        if folder is not None and not source.files():
            raise UserError(
                f"the source {name!r} generates its data and reads no files: leave out {flag}",
                code="option-without-effect",
            )
        return source
    if folder is not None or settings:
        what = flag if folder is not None else "--set source."
        raise UserError(
            f"{what} belongs to a source, and {name!r} is none{did_you_mean(name, known)}", code="option-without-effect"
        )
    if not Path(name).exists() and not Path(name).suffix and "/" not in name:
        raise UserError(
            f"{name!r} is neither a file nor a source{did_you_mean(name, known)} (sources: {', '.join(known)})",
            code="unknown-source",
        )
    return None


def _report(output: Output, store: Store) -> None:
    """Print what a store of events holds, and finish the verb."""
    from fullrank.data.events.feature_kinds import described
    from fullrank.data.events.features import ROLES

    manifest = store.manifest
    filters = manifest.get("filters", [])
    if len(filters) > 1:
        output.table(
            ("after", "events", "users", "items"),
            [[f[k] for k in ("filter", "events", "users", "items")] for f in filters],
        )
    print_sizes(output, store)
    if store.features is not None:
        infos = {info.name: info for info in store.features.fields}
        output.table(
            ("feature", "known with", "kind", "ids"),
            [
                (field.name, role, described(field), infos[field.name].size or "")
                for role in ROLES
                for field in getattr(store.features.schema, role)
            ],
        )
    split = manifest["split"]
    parts = ", ".join(f"{part} {split[part]['events']:,} events" for part in ("train", "validation", "test"))
    output.say(f"split {split['kind']}: {parts}")
    warned = warn(output, store)
    sentences = {finding.said for finding in warned}
    output.notes(in_shell(note, ("--time-unit",)) for note in manifest.get("notes", []) if note not in sentences)
    suggest_training(output, store)
    facts = {key: value for key, value in manifest.items() if key not in ("files", "spec", "format")}
    facts |= {"spec": manifest["spec"], "findings": [asdict(finding) for finding in warned]}
    output.finish({"store": store.path, **facts, "seconds": output.spent})


@verb()
def prepare_impressions(
    impressions: Annotated[
        str,
        argument(
            "IMPRESSIONS",
            "A table of impressions: .parquet, .csv, .tsv, .jsonl (text also as .csv.gz and so on), a folder of "
            ".parquet, or the name of a source (`fullrank list sources`; ./NAME means the file).",
        ),
    ],
    output: StoreOut,
    folder: Annotated[
        Path | None, argument("FOLDER", "Where a source's files lie.  [default: downloads/SOURCE]")
    ] = None,
    schema: Annotated[
        Path | None, option("FILE", "YAML or JSON: label, fields, split.  [default: from names and types]")
    ] = None,
    label: Annotated[str | None, option("NAME", "Column that is predicted: clicked or not.")] = None,
    user_col: Annotated[str | None, option("NAME", "Column of the user, the group of gauc.")] = None,
    time_col: Annotated[str | None, option("NAME|none", "Column of the time; none: the rows have no times.")] = None,
    time_unit: TimeUnit = None,
    users: Annotated[Path | None, option("FILE", "Table of users: columns that the impressions lack.")] = None,
    features_of: Annotated[
        Path | None, option("STORE", "A store of events whose features become fields.", callback=check_store)
    ] = None,
) -> None:
    """Turn impressions into a store for rankers.

    A store is a prepared dataset: a folder. An impression is a row with a label (clicked or not)
    and fields: who, what, where, when. The schema says which column is what; `fullrank schema
    --kind impressions` is its JSON Schema. Without its fields, what --label and the other options
    do not say is taken from names and types. --set changes settings of the schema, those of a
    source are written --set source.NAME=VALUE.

    \b
    fullrank prepare-impressions impressions.parquet --schema schema.yaml --out data/ctr
    fullrank prepare-impressions log.csv --label liked --user-col customer --out data/ctr
    fullrank prepare-impressions criteo downloads/criteo --out data/criteo
    fullrank prepare-impressions clicks.parquet --user-col user_id --features-of data/shop --out data/clicks
    fullrank prepare-impressions clicks/ --schema schema.yaml --parts 64 --out data/large
    fullrank prepare-impressions planted_clicks --set source.rows=1000000 --out data/toy
    """
    from fullrank.data.impressions.prepare import prepare_impressions as make
    from fullrank.data.impressions.schema import Schema
    from fullrank.data.sources import ImpressionSource

    source_settings, rest = _split_source_settings(output.settings or [])
    source = _source_or_file(impressions, source_settings, folder, "the folder")
    keywords = {
        **output.keywords(),
        **column_names(user_col=user_col, time_col=time_col),
        "label": label,
        "time_unit": time_unit,
        "users": users,
        "features_of": features_of,
    }
    if source is None:
        store = make(impressions, output.out, schema=schema, set=rest, **keywords)
    elif isinstance(source, ImpressionSource):
        tables = source.impressions(folder or DOWNLOADS / impressions)
        spec = (tables.schema if schema is None else Schema.read(schema)).override(*rest)
        store = make(tables.table, output.out, schema=spec, notes=tables.notes, **keywords)
    else:
        raise UserError(
            f"the source {impressions!r} holds events: use {command_line('prepare', impressions)}",
            code="wrong-kind-of-source",
        )
    _report_impressions(output, store)


def _kind(info: FieldInfo, field: AnyField, store: ImpressionStore) -> str:
    """A field's kind for the table; of numbers in buckets also how many
    there are, and should have been."""
    if field.kind != "numeric" or info.kind == "numeric":
        return info.kind
    buckets = len(store.encoder.fitted[field.name]["edges"]) + 1
    return f"numeric, {buckets} buckets" + (f" of {field.buckets}" if field.buckets not in (None, buckets) else "")


def _report_impressions(output: Output, store: ImpressionStore) -> None:
    """Print what a store of impressions holds, and finish the verb."""
    manifest = store.manifest
    output.table(
        ("field", "kind", "ids", "missing"),
        [
            (f.name, _kind(f, spec, store), f.size or "", manifest["counts"]["missing"][f.name])
            for f, spec in zip(store.fields, store.schema.fields, strict=True)
        ],
    )
    output.table(
        ("part", "rows", "positive"),
        [(name, part["rows"], part["positive"]) for name, part in manifest["counts"]["parts"].items()],
    )
    output.say(f"{store.path}: {len(store):,} rows, {len(store.fields)} fields, in {seconds(output.spent)}")
    warned = warn(output, store)
    output.notes(manifest["notes"])
    facts = {key: value for key, value in manifest.items() if key not in ("files", "format", "fitted")}
    facts["notes"] = [*manifest["notes"], *store.encoder.notes]  # these were said while it was prepared
    facts["findings"] = [asdict(finding) for finding in warned]
    output.finish({"store": store.path, **facts, "seconds": output.spent})
