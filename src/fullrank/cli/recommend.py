"""`fullrank recommend` and `recommend-parts`: ranked items for histories or known users, or for all users at once."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
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
    policies_of,
    unknown_ids,
    user_ids,
    words_of,
)
from fullrank.cli.option_groups import EngineOptions, TableColumns, TableOut, WrittenByModel, column_names
from fullrank.cli.options import History, RunFolder, UserStore, Word, check_beside, choice, given, option
from fullrank.cli.output import Output, seconds
from fullrank.cli.told_early import check_store
from fullrank.cli.verbs import verb
from fullrank.core.tables import write_table

if TYPE_CHECKING:
    import polars as pl

    from fullrank.data.events.catalog import Catalog
    from fullrank.data.frames import InputTable


KnownFile = Annotated[
    Path | None, option("FILE", "A table of what is known of users and of the requests that are answered.")
]
SHOWN = 10
"""Histories printed; the others are counted."""


@verb(cls=list_options())
def recommend(
    context: typer.Context,
    run: RunFolder,
    names: TableColumns,
    output: TableOut,
    history: History = None,
    histories: Annotated[Path | None, option("FILE", "A table of events (.parquet, .csv, .jsonl).")] = None,
    users: Annotated[str | None, option("ID,ID,...|FILE", "Users of --data, with all their events there.")] = None,
    data: UserStore = None,
    unknown_users: Annotated[
        Word | None, choice("error|popular|skip", "Users whom --data does not have.  [default: error]")
    ] = None,
    features: KnownFile = None,
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
    fullrank recommend runs/featured --histories today.parquet --features users.parquet
    """
    from fullrank.core.checks import check_one_way

    ways = {"--history ID,ID,...": history, "--histories FILE": histories, "--users of a store": users}
    check_one_way(ways, needed=True)
    check_beside("--users", users, data=data, unknown_users=unknown_users)
    table = "a column of --histories FILE"
    check_beside(table, histories, **vars(replace(names, user_col=None)))
    check_beside(f"{table}, --users or --features", histories or users or features, user_col=names.user_col)
    strangers = unknown_users or "error"
    output.check()
    check_store(data)
    check_lists(given(context))
    source = None if histories is None else _source(histories, names)
    import polars as pl

    from fullrank import api
    from fullrank.data.column_names import EventColumns
    from fullrank.data.events.store import Store
    from fullrank.run import Run, event_store_of

    opened = Run.open(run)
    predictor = api.load(opened, device=output.device)
    catalog = predictor.catalog
    asked: Any = names.keywords()
    columns = EventColumns.of(asked).names
    missing = []
    if users is not None:
        store = event_store_of(opened) if data is None else Store.open(data)
        # --user-col was of the file of users, and of that of features
        asked = {"users": user_ids(users, store, columns[0]), "data": store, "unknown_users": strangers}
        asked |= column_names(item_col=names.item_col, user_col=None if features is None else names.user_col)
    else:
        listed = _listed(history or [], catalog)
        items = (
            pl.Series([i for some in listed for i in some]) if source is None else _items(source, columns[1], catalog)
        )
        missing = unknown_ids(items, catalog)
        asked |= {"histories": listed if source is None else histories}
    asked["features"] = features
    lists, budget = list_keywords(given(context), catalog, columns[1]), budget_of(given(context))
    with _doubts(output, "--empty", "--untimed", "--features"):
        answers = predictor.recommend(**asked, **lists, titles=True, budget=budget)
    if missing:
        output.say(
            f"not known to the model and left out: {', '.join(map(str, missing[:5]))}{' ...' if missing[5:] else ''}"
        )
    result: dict[str, Any] = {
        "run": opened.path,
        **policies_of(lists),
        "reasoning": budget,
        **{name: lists[name] for name in ("decoding", "filters") if name in lists},
        **({} if users is None else {"unknown_users": strangers}),
        "unknown_items": missing,
    }
    if output.out is not None:
        write_table(answers, output.out)
        output.say(
            f"{len(answers):,} recommendations for {answers['user'].n_unique():,} histories written to {output.out}"
        )
        output.finish({**result, "out": output.out, "rows": len(answers)})
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


def _items(source: InputTable, column: str, catalog: Catalog) -> pl.Series:
    """The distinct items of a table of histories, in the catalogue's type (a CSV file knows text alone)."""
    from fullrank.data.values import without_fractions

    items = source.read([column])[column]
    source.require_rows(len(items))
    source.require_one_kind(column)
    items = items.drop_nulls().unique(maintain_order=True)  # missing ones are refused where histories are read
    return without_fractions(items) if source.typed else catalog.parse(items.to_list())


@contextmanager
def _doubts(output: Output, *options: str) -> Iterator[None]:
    """What the library warns of in the block, as notes in the words of a shell that has these options."""
    with warnings.catch_warnings(record=True) as doubts:
        warnings.simplefilter("always", UserWarning)
        yield
    output.notes(in_shell(str(one.message), options) for one in doubts if issubclass(one.category, UserWarning))
    for one in doubts:
        if not issubclass(one.category, UserWarning):  # of numpy and the like: as Python shows it
            warnings.showwarning(one.message, one.category, one.filename, one.lineno)


def _print(output: Output, answers: pl.DataFrame, *, named: bool) -> None:
    if answers.is_empty():
        output.say("no user has a list: nothing is left to recommend")
    groups = answers.partition_by("user", maintain_order=True)
    told = ("rank", "item", "score", "source", "steps", "title")
    names = [name for name in told if name in answers.columns]
    for group in groups[:SHOWN]:
        title = None if len(groups) == 1 and not named else f"user {group['user'][0]}"
        output.table(names, group.select(names).cast({"item": str}).rows(), title=title)
    if len(groups) > SHOWN:
        output.say(f"... and {len(groups) - SHOWN:,} more; --out FILE keeps them all")


@verb(cls=list_options())
def recommend_parts(
    context: typer.Context,
    run: RunFolder,
    out: Annotated[Path, option("FOLDER", "Write the lists below it, in Parquet files.")],
    columns: TableColumns,
    engine: EngineOptions,
    output: WrittenByModel,
    histories: Annotated[
        Path | None, option("FILE", "A table of events, or a folder of them, in place of --data.")
    ] = None,
    data: UserStore = None,
    features: KnownFile = None,
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
    check_beside(table, histories, **vars(replace(columns, item_col=None, user_col=None)))
    check_beside(f"{table} or --features", histories or features, user_col=columns.user_col)
    check_beside(f"{table} or of --items", histories or typed.get("item_table"), item_col=columns.item_col)
    check_lists(typed)
    from fullrank import api
    from fullrank.run import Run

    opened = Run.open(run)
    lists: dict[str, Any] = list_keywords(typed, opened.catalog, columns.item_col or "item_id")
    with _doubts(output, "--empty", "--features"), output.progress(f"recommend to {out}") as tick:
        made = api.recommend_parts(
            opened, out, histories, data=data, features=features, titles=True, budget=budget_of(typed),
            device=output.device, overwrite=output.overwrite, progress=tick, **columns.keywords(), **lists, **how,
        )  # fmt: skip
    resumed = f", {made.resumed:,} of them by an earlier call" if made.resumed else ""
    output.say(
        f"{made.rows:,} recommendations for {made.users:,} users written to {made.folder} in {made.parts:,} parts"
        f"{resumed}, in {seconds(output.spent)}"
    )
    output.finish({
        "run": opened.path, "out": made.path, **policies_of(lists), "parts": made.parts,
        "resumed": made.resumed, "users": made.users, "rows": made.rows, "popular": made.popular,
        "seconds": output.spent,
    })  # fmt: skip
