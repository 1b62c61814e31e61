"""`fullrank recommend` and `recommend-parts`: ranked items for histories or known users, or for all users at once."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fullrank.cli.errors import in_shell
from fullrank.cli.list_options import (
    budget_of,
    check_lists,
    list_keywords,
    list_options,
    settled,
    unknown_ids,
    user_ids,
    words_of,
)
from fullrank.cli.option_groups import EngineOptions, TableColumns, TableOut, column_names, flat
from fullrank.cli.options import (
    AsJson,
    Device,
    History,
    Overwrite,
    RunFolder,
    UserStore,
    Word,
    check_beside,
    choice,
    given,
    option,
)
from fullrank.cli.output import Output, seconds
from fullrank.cli.told_early import check_store
from fullrank.core.errors import UserError
from fullrank.core.tables import write_table

if TYPE_CHECKING:
    import polars as pl

    from fullrank.data.events.catalog import Catalog
    from fullrank.data.frames import InputTable


SHOWN = 10
"""Histories printed; the others are counted."""


def add(app: typer.Typer) -> None:
    app.command("recommend", cls=list_options())(flat(recommend))
    app.command("recommend-parts", cls=list_options())(flat(recommend_parts))


def recommend(
    context: typer.Context,
    run: RunFolder,
    names: TableColumns,
    to: TableOut,
    history: History = None,
    histories: Annotated[
        Path | None, option("--histories", "FILE", "A table of events (.parquet, .csv, .jsonl).")
    ] = None,
    users: Annotated[
        str | None,
        option("--users", "ID,ID,...|FILE", "Users of --data, with all their events there."),
    ] = None,
    data: UserStore = None,
    unknown_users: Annotated[
        Word | None,
        choice("--unknown-users", "error|popular|skip", "Users whom --data does not have.  [default: error]"),
    ] = None,
) -> None:
    """Recommend items for histories or known users.

    Users need not have been in the training data: a history is all that is asked for. Where it holds no item that the
    model knows, the most popular items stand in, which the column `source` says. A run that reasons may take fewer or
    more steps than it was trained with. Lists of all users of a store: `fullrank recommend-parts`; of a service:
    `fullrank ask`.

    \b
    fullrank recommend runs/sasrec --history 2,3,5 --k 5
    fullrank recommend runs/sasrec --history 2,3,5 --history 7 --json
    fullrank recommend runs/sasrec --history 2,3,5 --exclude 11,12
    fullrank recommend runs/sasrec --histories today.parquet --k 20 --out answers.parquet
    fullrank recommend runs/sasrec --users 17,42 --filters genre=Comedy --filters 'year>=2000'
    """
    from fullrank.core.checks import check_one_way

    ways = {"--history ID,ID,...": history, "--histories FILE": histories, "--users of a store": users}
    check_one_way(ways, needed=True)
    check_beside("--users", users, data=data, unknown_users=unknown_users)
    table = "a column of --histories FILE"
    check_beside(table, histories, **vars(replace(names, user_col=None)))
    check_beside(table, histories or users, user_col=names.user_col)
    strangers = unknown_users or "error"
    to.check()
    check_store(data)
    check_lists(given(context))
    source = None if histories is None else _source(histories, names)
    from fullrank import api
    from fullrank.data.column_names import EventColumns
    from fullrank.data.events.store import Store
    from fullrank.run import Run, event_store_of

    output = Output(to.as_json)
    opened = Run.open(run)
    predictor = api.load(opened, device=to.device)
    catalog = predictor.catalog
    asked: Any = names.keywords()
    columns = EventColumns.of(asked).names
    missing = []
    if users is not None:
        store = event_store_of(opened) if data is None else Store.open(data)
        # --user-col was of the file of users
        asked = {"users": user_ids(users, store, columns[0]), "data": store, "unknown_users": strangers}
        asked |= column_names(item_col=names.item_col)
    else:
        events = _listed(history or [], catalog) if source is None else _table(source, columns, catalog)
        missing = unknown_ids(events, columns[1], catalog)
        asked |= {"histories": events}
    lists, budget = list_keywords(given(context), catalog, columns[1]), budget_of(given(context))
    with warnings.catch_warnings(record=True) as doubts:
        warnings.simplefilter("always", UserWarning)
        answers = predictor.recommend(**asked, **lists, titles=True, budget=budget)
    output.notes(in_shell(str(doubt.message), ("--empty", "--untimed")) for doubt in doubts)
    if missing:
        output.say(
            f"not known to the model and left out: {', '.join(map(str, missing[:5]))}{' ...' if missing[5:] else ''}"
        )
    result: dict[str, Any] = {
        "run": opened.path,
        **settled(lists),
        "reasoning": budget,
        **{name: lists[name] for name in ("decoding", "filters") if name in lists},
        **({} if users is None else {"unknown_users": strangers}),
        "unknown_items": missing,
    }
    if to.out is not None:
        write_table(answers, to.out)
        output.say(f"{len(answers):,} recommendations for {answers['user'].n_unique():,} histories written to {to.out}")
        output.finish({**result, "out": to.out, "rows": len(answers)})
        return
    _print(output, answers, named=history is None)
    output.finish({**result, "recommendations": answers.to_dicts()})


def _listed(history: list[str], catalog: Catalog) -> list[list[Any]]:
    """Lists of external ids from `2,3,5`; an empty text is an empty history."""
    return [catalog.parse(some).to_list() if some else [] for some in map(words_of, history)]


def _source(path: Path, names: TableColumns) -> InputTable:
    """The file of histories, which has the columns that are named, and those of users and items."""
    from fullrank.data.frames import InputTable

    source = InputTable(path, "histories")
    source.require(names.user_col or "user_id", "name it with --user-col")
    source.require(names.item_col or "item_id", "name it with --item-col")
    if names.time_col:
        source.require(names.time_col, "name it with --time-col")
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
    values.refuse(text.is_null(), text, source.name, "missing ids", code="missing-ids")
    frame = frame.with_columns(catalog.parse(text.cast(pl.String).to_list()).alias(columns[1]))
    if columns[2] in frame.columns:  # times are read as `prepare` reads them in such a file
        frame = frame.with_columns(values.moments(frame[columns[2]], source.name, typed=False))
    return frame


def _print(output: Output, answers: pl.DataFrame, *, named: bool) -> None:
    if answers.is_empty():
        output.say("no user has a list: nothing is left to recommend")
    groups = answers.partition_by("user", maintain_order=True)
    told = ("rank", "item", "score", "source", "steps", "title")
    names = [name for name in told if name in answers.columns]
    for group in groups[:SHOWN]:
        title = None if len(groups) == 1 and not named else f"user {group['user'][0]}"
        cells = [[row["rank"], str(row["item"]), *(row[name] for name in names[2:])] for row in group.to_dicts()]
        output.table(names, cells, title=title)
    if len(groups) > SHOWN:
        output.say(f"... and {len(groups) - SHOWN:,} more; --out FILE keeps them all")


def recommend_parts(
    context: typer.Context,
    run: RunFolder,
    out: Annotated[Path, option("--out", "FOLDER", "Write the lists below it, in Parquet files.")],
    columns: TableColumns,
    engine: EngineOptions,
    histories: Annotated[
        Path | None,
        option("--histories", "FILE", "A table of events, or a folder of them, in place of --data."),
    ] = None,
    data: UserStore = None,
    overwrite: Overwrite = False,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Recommend items for all users, in parts.

    Users are those of a store or of a table. The lists lie in Parquet files below the folder --out. A call that was cut
    off goes on with the parts that are missing.

    \b
    fullrank recommend-parts runs/sasrec --data data/shop --workers 8 --out lists
    fullrank recommend-parts runs/sasrec --histories logs/ --engine spark --master spark://host:7077 --out lists
    """
    how = engine.keywords()
    from fullrank.core.checks import check_one_way

    check_one_way({"--data, a store of all users,": data, "--histories FILE": histories})
    typed, table = given(context), "a column of --histories FILE"
    check_beside(table, histories, **vars(replace(columns, item_col=None)))
    check_beside(f"{table} or of --items", histories or typed.get("item_table"), item_col=columns.item_col)
    check_lists(typed)
    from fullrank import api
    from fullrank.run import Run

    output = Output(as_json)
    opened = Run.open(run)
    lists: dict[str, Any] = list_keywords(typed, opened.catalog, columns.item_col or "item_id")
    with warnings.catch_warnings(record=True) as doubts, output.progress(f"recommend to {out}") as tick:
        warnings.simplefilter("always", UserWarning)
        made = api.recommend_parts(
            opened, out, histories, data=data, titles=True, budget=budget_of(typed), device=device, overwrite=overwrite,
            progress=tick, **columns.keywords(), **lists, **how,
        )  # fmt: skip
    messages = (str(doubt.message) for doubt in doubts if doubt.category is UserWarning)
    output.notes(in_shell(message, ("--empty",)) for message in messages)
    resumed = f", {made.resumed:,} of them by an earlier call" if made.resumed else ""
    output.say(
        f"{made.rows:,} recommendations for {made.users:,} users written to {made.folder} in {made.parts:,} parts"
        f"{resumed}, in {seconds(output.spent)}"
    )
    output.finish({
        "run": opened.path, "out": made.path, **settled(lists), "parts": made.parts,
        "resumed": made.resumed, "users": made.users, "rows": made.rows, "popular": made.popular,
        "seconds": output.spent,
    })  # fmt: skip
