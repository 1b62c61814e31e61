"""`fullrank prepare`: a table of events, or a public data set, to a store that models train on. Loads no torch."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fullrank.cli.download import DOWNLOADS, named_source
from fullrank.cli.options import AsJson, Settings, shortcuts
from fullrank.cli.output import Output, seconds
from fullrank.core.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from fullrank.data.events.store import Store


FLAGS = {
    "columns.time": "--time-col",
    "columns.time_unit": "--time-unit",
    "columns.user": "--user-col",
    "columns.item": "--item-col",
    "columns.rating": "--rating-col",
    "columns.weight": "--weight-col",
    "columns.type": "--type-col",
}
"""Setting -> the option that abbreviates it."""


def add(app: typer.Typer) -> None:
    app.command("prepare")(prepare)


def _column(flag: str, text: str) -> Any:
    return typer.Option(flag, metavar="NAME", help=text)


def prepare(  # long: one parameter for each option
    events: Annotated[
        str,
        typer.Argument(
            metavar="EVENTS",
            help="A table of events (.parquet, .csv, .tsv, .jsonl, or a folder of .parquet), or the name of a source "
            "(`fullrank list sources`; ./NAME means the file).",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="The store to write; one there is replaced.")],
    items: Annotated[
        Path | None, typer.Option("--items", metavar="FILE", help="Table of items: titles, features.")
    ] = None,
    users: Annotated[Path | None, typer.Option("--users", metavar="FILE", help="Table of users.")] = None,
    folder: Annotated[
        Path | None,
        typer.Option("--from", metavar="FOLDER", help="Where a source's files lie.  [default: downloads/SOURCE]"),
    ] = None,
    user: Annotated[str | None, _column("--user-col", "Column of the user.  [default: user_id]")] = None,
    item: Annotated[str | None, _column("--item-col", "Column of the item.  [default: item_id]")] = None,
    when: Annotated[
        str | None,
        _column("--time-col", "Column of the time; `none` where rows are in order.  [default: timestamp]"),
    ] = None,
    time_unit: Annotated[
        str | None, typer.Option("--time-unit", metavar="UNIT", help="Of numbers in it: s, ms, us, ns.  [default: s]")
    ] = None,
    rating: Annotated[str | None, _column("--rating-col", "Column of a rating, for --min-rating.")] = None,
    weight: Annotated[str | None, _column("--weight-col", "Column of a factor for each event.")] = None,
    kind: Annotated[str | None, _column("--type-col", "Column that says what was done (view, buy, ...).")] = None,
    types: Annotated[
        list[str] | None, typer.Option("--event-type", metavar="TYPE", help="Keep this type of event; may be repeated.")
    ] = None,
    min_rating: Annotated[
        float | None, typer.Option("--min-rating", metavar="X", help="Keep events rated at least X.")
    ] = None,
    duplicates: Annotated[
        str | None,
        typer.Option(
            "--duplicates", metavar="keep|first|last", help="Events of the same user and item.  [default: keep]"
        ),
    ] = None,
    k_core: Annotated[
        int | None,
        typer.Option("--k-core", metavar="K", help="Fewest events of each user and each item.  [default: 0, keep all]"),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option("--split", metavar="RULE", help="leave_one_out or global_time.  [default: leave_one_out]"),
    ] = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Turn events into a store for recommenders.

    An event is a row with a user, an item and (usually) a time. Ids may be numbers or text; they come back in
    recommendations. --set reaches every setting (`fullrank schema --kind prepare`); those of a source are written
    --set source.NAME=VALUE.

    \b
    fullrank prepare events.parquet --items items.parquet --out data/shop
    fullrank prepare log.csv --user-col customer --item-col sku --time-col none --out data/shop
    fullrank prepare movielens --k-core 5 --set source.variant=1m --out data/ml-1m
    fullrank prepare planted --set source.users=500 --out data/toy
    """
    screen = Output(as_json)
    named = {
        "columns.user": user, "columns.item": item, "columns.time": when, "columns.time_unit": time_unit,
        "columns.rating": rating, "columns.weight": weight, "columns.type": kind, "event_types": types or None,
        "min_rating": min_rating, "duplicates": duplicates, "k_core": k_core, "split": split,
    }  # fmt: skip
    changes = shortcuts(named, settings)
    if when == "none":
        changes[changes.index('columns.time="none"')] = "columns.time=null"
    begun = time.perf_counter()
    try:
        store = _prepare(events, out, items, users, folder, changes)
    except UserError as error:
        raise UserError(_in_options(str(error))) from error
    spent = time.perf_counter() - begun
    _report(screen, store, spent)


def _prepare(
    events: str, out: Path, items: Path | None, users: Path | None, folder: Path | None, changes: list[str]
) -> Store:
    from fullrank.core.registry import kinds
    from fullrank.data.events.prepare import Prepare
    from fullrank.data.events.prepare import prepare as make
    from fullrank.data.sources import EventSource

    known = kinds("data.sources")
    own = [c.removeprefix("source.") for c in changes if c.startswith("source.")]
    rest = [c for c in changes if not c.startswith("source.")]
    if events not in known:
        if folder is not None or own:
            what = "--from" if folder is not None else "--set source."
            raise UserError(f"{what} belongs to a source, and {events!r} is none{did_you_mean(events, known)}")
        if not Path(events).exists() and not Path(events).suffix and "/" not in events:
            raise UserError(
                f"{events!r} is neither a file nor a source{did_you_mean(events, known)} (sources: {', '.join(known)})"
            )
        return make(events, out, items=items, users=users, spec=Prepare().override(*rest), progress=True)
    if items is not None or users is not None:
        raise UserError(f"the source {events!r} brings its own items and users: leave out --items and --users")
    source = named_source(events, own)
    if not isinstance(source, EventSource):
        raise UserError(
            f"the source {events!r} holds impressions for rankers: use fullrank prepare-impressions {events}"
        )
    if folder is not None and not source.files():
        raise UserError(f"the source {events!r} generates its data and reads no files: leave out --from")
    tables = source.read(folder or DOWNLOADS / events)
    spec = Prepare.parse({"columns": dict(tables.columns)}).override(*rest)
    return make(tables.events, out, items=tables.items, users=tables.users, spec=spec, progress=True)


def _in_options(sentence: str) -> str:
    """A sentence that says `columns.user` with the option that a person types."""
    for path, flag in FLAGS.items():
        whole = rf"(?<![\w.]){re.escape(path)}(?!\w|\.\w)"  # not the beginning of a longer (or misspelt) setting
        sentence = re.sub(whole, flag, re.sub(f"{whole}=", f"{flag} ", sentence))
    return sentence.replace("--time-col None", "--time-col none")


def _report(screen: Output, store: Store, spent: float) -> None:
    found = store.manifest
    filters = found.get("filters", [])
    if len(filters) > 1:
        screen.table(
            ("after", "events", "users", "items"),
            [[f[k] for k in ("filter", "events", "users", "items")] for f in filters],
        )
    screen.say(
        f"{store.path}: {store.num_events:,} events of {store.num_users:,} users on {store.num_items:,} items, "
        f"in {seconds(spent)}"
    )
    split = found["split"]
    parts = ", ".join(f"{part} {split[part]['events']:,} events" for part in ("train", "validation", "test"))
    screen.say(f"split {split['kind']}: {parts}")
    if split.get("leak"):
        screen.say(f"note: {split['leak']}")
    for note in found.get("notes", []):
        screen.say(f"note: {note}")
    screen.say(f"train a model: fullrank train sasrec --data {store.path} --out runs/sasrec", wrap=False)
    facts = {key: value for key, value in found.items() if key not in ("files", "spec", "format")}
    screen.finish({"store": store.path, **facts, "spec": found["spec"], "seconds": round(spent, 3)})
