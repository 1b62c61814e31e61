"""`fullrank recommend`: histories of item ids in, ranked items with their titles out."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fullrank.cli.ids import known_ids, unknown_ids, user_ids
from fullrank.cli.in_shell import in_shell
from fullrank.cli.options import (
    EVALUATION,
    REASONING,
    AsJson,
    ColumnFilters,
    Device,
    EngineOption,
    ItemTable,
    Master,
    Overwrite,
    Parts,
    RayAddress,
    UserStore,
    Workers,
    check_out,
    chosen,
    engine_settings,
    given,
    spec_options,
)
from fullrank.cli.output import Output
from fullrank.cli.recommend_parts import PartsCall, recommend_parts
from fullrank.cli.told_early import check_runs, check_store
from fullrank.core.errors import UserError
from fullrank.core.tables import check_suffix, write_table

if TYPE_CHECKING:
    import polars as pl

    from fullrank.data.events.catalog import Catalog
    from fullrank.data.frames import InputTable

COLUMNS = ("--user-col", "--item-col", "--time-col")
SHOWN = 10
"""Histories printed; the others are counted."""


def add(app: typer.Typer) -> None:
    app.command("recommend", cls=spec_options(EVALUATION, REASONING))(recommend)


def recommend(
    context: typer.Context,
    run: Annotated[
        Path | None, typer.Argument(metavar="RUN", callback=check_runs, help="A run folder; not with --url.")
    ] = None,
    history: Annotated[
        list[str] | None,
        typer.Option("--history", metavar="ID,ID,...", help="Items of one user, oldest first; may be repeated."),
    ] = None,
    histories: Annotated[
        Path | None, typer.Option("--histories", metavar="FILE", help="A table of events (.parquet, .csv, .jsonl).")
    ] = None,
    users: Annotated[
        str | None,
        typer.Option("--users", metavar="ID,ID,...|FILE", help="Users of --data, with all their events there."),
    ] = None,
    data: UserStore = None,
    unknown_users: Annotated[
        str | None,
        typer.Option(
            "--unknown-users", metavar="error|popular|skip", help="Users whom --data does not have.  [default: error]"
        ),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option("--url", metavar="URL", help="Ask the service there (`fullrank serve`) in place of a run."),
    ] = None,
    user_id: Annotated[
        str | None, typer.Option("--user", metavar="ID", help="With --url: a user whose events the service has stored.")
    ] = None,
    key: Annotated[
        str | None,
        typer.Option("--key", metavar="KEY", envvar="FULLRANK_KEY", help="With --url: an API key of the service."),
    ] = None,
    k: Annotated[int, typer.Option("--k", "-k", metavar="K", help="Items per history.")] = 10,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Write them there (.parquet, .csv or .jsonl); in parts, a folder."),
    ] = None,
    unknown: Annotated[
        str, typer.Option("--unknown", metavar="skip|error", help="Items that the model does not know.")
    ] = "skip",
    empty: Annotated[
        str, typer.Option("--empty", metavar="popular|error", help="Histories without a known item.")
    ] = "popular",
    untimed: Annotated[
        str,
        typer.Option(
            "--untimed",
            metavar="auto|error|even",
            help="Histories without times, for a model that reads them: refused, or taken as of now, a day between "
            "events; auto takes --history so, with a note, and refuses a table.",
        ),
    ] = "auto",
    seen: Annotated[
        str, typer.Option("--seen", metavar="exclude|keep", help="Whether the history's own items may be recommended.")
    ] = "exclude",
    exclude: Annotated[
        str | None, typer.Option("--exclude", metavar="ID,ID,...", help="Items that are not to be recommended.")
    ] = None,
    allow: Annotated[
        str | None, typer.Option("--allow", metavar="ID,ID,...", help="The only items that may be recommended.")
    ] = None,
    filters: ColumnFilters = None,
    items: ItemTable = None,
    user: Annotated[
        str | None, typer.Option("--user-col", metavar="NAME", help="User column of FILE.  [default: user_id]")
    ] = None,
    item: Annotated[
        str | None, typer.Option("--item-col", metavar="NAME", help="Item column of FILE.  [default: item_id]")
    ] = None,
    when: Annotated[
        str | None,
        typer.Option(
            "--time-col", metavar="NAME", help="Time column of FILE.  [default: timestamp, else order of rows]"
        ),
    ] = None,
    time_unit: Annotated[
        str | None, typer.Option("--time-unit", metavar="UNIT", help="Of numbers in it: s, ms, us, ns.  [default: s]")
    ] = None,
    decoding: Annotated[
        str | None,
        typer.Option(
            "--decoding",
            metavar="exact|graph|beam|pruned",
            help="How a run that generates semantic ids finds its items.  [default: as in its evaluation]",
        ),
    ] = None,
    engine: EngineOption = None,
    parts: Parts = None,
    master: Master = None,
    ray: RayAddress = None,
    workers: Workers = None,
    overwrite: Overwrite = False,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Recommend items for histories or known users.

    Users need not have been in the training data: a history is all that is asked for. Where it holds no item that the
    model knows, the most popular items stand in, which the column `source` says. A run that reasons may take fewer or
    more steps than it was trained with.

    With --engine, --workers or --parts every user of a store (--data) or of a table (--histories) gets a list, in
    Parquet files below the folder --out. A call that was cut off goes on with the parts that are missing.

    \b
    fullrank recommend runs/sasrec --history 2,3,5 --k 5
    fullrank recommend runs/sasrec --history 2,3,5 --history 7 --json
    fullrank recommend runs/sasrec --history 2,3,5 --exclude 11,12
    fullrank recommend runs/sasrec --histories today.parquet --k 20 --out answers.parquet
    fullrank recommend runs/sasrec --users 17,42 --filters genre=Comedy --filters 'year>=2000'
    fullrank recommend runs/sasrec --data data/shop --workers 8 --out lists
    fullrank recommend runs/sasrec --histories logs/ --engine spark --master spark://host:7077 --out lists
    fullrank recommend --url http://127.0.0.1:8000 --user 42 --k 5
    """
    if (run is None) == (url is None):
        raise UserError(
            "give a RUN folder, or --url of a service: one of the two",
            code="missing-option" if run is None else "options-exclude-each",
        )
    how = engine_settings(engine, parts, master, ray, workers)
    if url is not None:
        _check_remote(
            context, histories=histories, users=users, data=data, filters=filters or None, items=items, out=out,
            decoding=decoding, overwrite=overwrite or None, **how, **{"unknown-users": unknown_users},
        )  # fmt: skip
        _ask_service(url, key, user_id, history, k, seen, exclude, allow, Output(as_json))
        return
    assert run is not None
    for flag, given_too in (("--user", user_id), ("--key", key)):
        if given_too is not None and not (flag == "--key" and "FULLRANK_KEY" in os.environ):
            raise UserError(f"{flag} is of a service, which --url names; leave it out", code="option-without-effect")
    policies = {
        "unknown": chosen("--unknown", unknown, ("skip", "error")),
        "empty": chosen("--empty", empty, ("popular", "error")),
        "untimed": chosen("--untimed", untimed, ("auto", "error", "even")),
        "seen": chosen("--seen", seen, ("exclude", "keep")),
    }
    unit = chosen("--time-unit", time_unit or "s", ("s", "ms", "us", "ns"))
    budget = {path.removeprefix("reasoning."): value for path, value in given(context).items()}
    search = {} if decoding is None else {"kind": chosen("--decoding", decoding, ("exact", "graph", "beam", "pruned"))}
    if items is not None and not filters:
        raise UserError("--items is about --filters, which is not given", code="option-without-effect")
    if how:
        single = {"--history": history, "--users": users, "--unknown-users": unknown_users}
        table = {"--user-col": user, "--time-col": when, "--time-unit": time_unit}
        recommend_parts(PartsCall(
            Output(as_json), run, histories, data, out, how, policies, budget, search, k, exclude, allow, filters,
            items, (user, item, when, unit), device, overwrite,
        ), single, table)  # fmt: skip
        return
    ways = sum(one is not None for one in (history, histories, users))
    if ways != 1:
        raise UserError(
            "give histories by --history ID,ID,... or by --histories FILE, or --users of a store: one of the three",
            code="options-exclude-each" if ways else "missing-option",
        )
    for flag, text in (("--data", data), ("--unknown-users", unknown_users)):
        if text is not None and users is None:
            raise UserError(f"{flag} is about --users, which is not given", code="option-without-effect")
    named = {"--user-col": user, "--item-col": item, "--time-col": when, "--time-unit": time_unit}
    for flag, name in named.items():
        if name is not None and histories is None and not (users is not None and flag == "--user-col"):
            raise UserError(
                f"{flag} is about a column of --histories FILE, which is not given", code="option-without-effect"
            )
    strangers = chosen("--unknown-users", unknown_users or "error", ("error", "popular", "skip"))
    if out is not None:
        check_suffix(out, "--out ")
    check_out(out, overwrite)
    from fullrank.core.specs_alone import ask_alone

    check_store(data)
    ask_alone(
        "fullrank.inference.list_options", lambda there: there.ListOptions.of({"k": k, "seen": seen, "empty": empty})
    )
    source = None if histories is None else _source(histories, (user, item, when))
    from fullrank import api
    from fullrank.cli.column_filters import parse_filters
    from fullrank.data.events.store import Store
    from fullrank.inference.column_filters import item_columns
    from fullrank.inference.requests import check_columns
    from fullrank.run import Run, event_store_of

    output = Output(as_json)
    opened = Run.open(run)
    predictor = api.load(opened, device=device)
    catalog = predictor.catalog
    columns = check_columns((user or "user_id", item or "item_id", when or "timestamp"))
    asked: dict[str, Any] = {"columns": columns, "time_unit": unit}
    missing = []
    if users is not None:
        store = event_store_of(opened) if data is None else Store.open(data)
        asked |= {"users": user_ids(users, store, columns[0]), "data": store, "unknown_users": strangers}
        asked["columns"] = ("user_id", columns[1], "timestamp")  # --user-col was of the file of users
    else:
        events = _listed(history or [], catalog) if source is None else _table(source, columns, catalog)
        missing = unknown_ids(events, columns[1], catalog)
        asked |= {"histories": events}
    wanted = parse_filters(filters, item_columns(catalog, items, columns[1])) if filters else None
    with warnings.catch_warnings(record=True) as doubts:
        warnings.simplefilter("always", UserWarning)
        answers = predictor.recommend(
            **asked, k=k, exclude=known_ids("--exclude", exclude, catalog), allow=known_ids("--allow", allow, catalog),
            filters=wanted, item_table=items, titles=True, budget=budget, decoding=search, **policies,
        )  # fmt: skip
    for doubt in doubts:
        output.say(f"note: {in_shell(str(doubt.message), ('--empty', '--untimed'))}")
    if missing:
        output.say(
            f"not known to the model and left out: {', '.join(map(str, missing[:5]))}{' ...' if missing[5:] else ''}"
        )
    result: dict[str, Any] = {
        "run": opened.path,
        "k": k,
        "policies": policies,
        "reasoning": budget,
        **({"decoding": search["kind"]} if search else {}),
        **({"filters": wanted} if wanted else {}),
        **({} if users is None else {"unknown_users": strangers}),
        "unknown_items": missing,
    }
    if out is not None:
        write_table(answers, out)
        output.say(f"{len(answers):,} recommendations for {answers['user'].n_unique():,} histories written to {out}")
        output.finish({**result, "out": out, "rows": len(answers)})
        return
    _print(output, answers, named=history is None)
    output.finish({**result, "recommendations": answers.to_dicts()})


def _check_remote(context: typer.Context, **local: Any) -> None:
    """Raise `UserError` for options that a service is not asked by."""
    wrong = [f"--{name}" for name, value in local.items() if value is not None]
    flags = {
        "unknown": "--unknown", "empty": "--empty", "untimed": "--untimed", "user": "--user-col", "item": "--item-col",
        "when": "--time-col", "time_unit": "--time-unit", "device": "--device",
    }  # fmt: skip
    for name, flag in flags.items():
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            wrong.append(flag)
    wrong += [f"--{path.replace('.', '-')}" for path in given(context)]
    if wrong:
        raise UserError(
            f"{wrong[0]} has no effect with --url: ask a RUN, or the service's API (`POST /v1/recommend`)",
            code="option-without-effect",
        )


def _ask_service(
    url: str, key: str | None, user: str | None, history: list[str] | None, k: int, seen: str, exclude: str | None,
    allow: str | None, output: Output,
) -> None:  # fmt: skip
    """Print what a service answers for a user, or for each history."""
    from fullrank.serving.client import Client

    if (user is None) == (history is None):
        raise UserError(
            "give --user ID or --history ID,ID,...: one of the two",
            code="missing-option" if user is None else "options-exclude-each",
        )
    lists = {
        name: _words(text) for name, text in (("exclude", exclude), ("allow", allow)) if text is not None
    }  # fmt: skip
    common: dict[str, Any] = {"k": k, "seen": chosen("--seen", seen, ("exclude", "keep")), "titles": True, **lists}
    asked = [{"user": user}] if history is None else [{"history": _words(text)} for text in history]
    client = Client(url, key=key)
    answers = [client.recommend(**one, **common) for one in asked]
    for number, answer in enumerate(answers):
        rows = [
            [at, str(one["item"]), one["score"], one.get("title") or ""] for at, one in enumerate(answer["items"], 1)
        ]
        title = f"version {answer['version']}" if len(answers) == 1 else f"user {number}, version {answer['version']}"
        output.table(["rank", "item", "score", "title"], rows, title=title)
    output.finish({"url": url, "k": k, "answers": answers})


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _listed(history: list[str], catalog: Catalog) -> list[list[Any]]:
    """Lists of external ids from `2,3,5`; an empty text is an empty history."""
    words = [[word for word in text.split(",") if word.strip()] for text in history]
    return [catalog.parse(some).to_list() if some else [] for some in words]


def _source(path: Path, columns: tuple[str | None, ...]) -> InputTable:
    """The file of histories, which has the columns that are named, and those of users and items."""
    from fullrank.data.frames import InputTable

    source = InputTable(path, "histories")
    for name, usual, flag in zip(columns, ("user_id", "item_id", None), COLUMNS, strict=True):
        if found := name or usual:
            source.require(found, f"name it with {flag}")
    return source


def _table(source: InputTable, columns: tuple[str, ...], catalog: Catalog) -> pl.DataFrame:
    """The table of histories, its item ids in the catalogue's type (a CSV file knows text alone)."""
    import polars as pl

    from fullrank.data import values

    frame = source.read([name for name in columns if name in source.columns])
    if frame.is_empty():
        raise UserError(f"{source.name} has no rows", code="empty-table")
    for name in columns[:2]:
        source.require_one_kind(name)
    if source.typed:
        return frame.with_columns(values.without_fractions(frame[name]) for name in columns[:2])
    text = frame[columns[1]]
    values.refuse(text.is_null(), text, f"column {columns[1]!r} of {source.name}", "missing ids", code="missing-ids")
    frame = frame.with_columns(catalog.parse(text.cast(pl.String).to_list()).alias(columns[1]))
    if columns[2] in frame.columns:  # times are read as `prepare` reads them in such a file
        what = f"column {columns[2]!r} of {source.name}"
        frame = frame.with_columns(values.moments(frame[columns[2]], what, typed=False))
    return frame


def _print(output: Output, answers: pl.DataFrame, *, named: bool) -> None:
    groups = answers.partition_by("user", maintain_order=True)
    told = ("rank", "item", "score", "source", "steps", "title")
    names = [name for name in told if name in answers.columns]
    for group in groups[:SHOWN]:
        title = None if len(groups) == 1 and not named else f"user {group['user'][0]}"
        cells = [[row["rank"], str(row["item"]), *(row[name] for name in names[2:])] for row in group.to_dicts()]
        output.table(names, cells, title=title)
    if len(groups) > SHOWN:
        output.say(f"... and {len(groups) - SHOWN:,} more; --out FILE keeps them all")
