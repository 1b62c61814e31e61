"""`fullrank recommend`, `recommend-parts`, `similar` and `vectors`: ranked items, and the vectors behind them.

Items for histories or known users, for all users in parts, or like an item; vectors of
items or of users in a file.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fullrank.cli.early_checks import check_store
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
from fullrank.cli.option_groups import EngineOptions, TableColumns, TableOut, UserCol, WrittenByModel, column_names
from fullrank.cli.options import (
    History,
    RunFolder,
    UserStore,
    Word,
    check_out,
    check_owner,
    choice,
    option,
    typed_settings,
)
from fullrank.cli.output import Output, seconds
from fullrank.cli.verbs import verb
from fullrank.core.tables import write_table

if TYPE_CHECKING:
    import polars as pl

    from fullrank.data.events.catalog import Catalog
    from fullrank.data.frames import InputTable


KnownFile = Annotated[
    Path | None, option("FILE", "A table of what is known of users and of the requests that are answered.")
]
VECTOR_SUFFIXES = (".parquet", ".jsonl")
"""Suffixes of a file of vectors: a CSV file has no arrays."""
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

    Users need not have been in the training data: a history is all that is asked for. Where it
    holds no item that the model knows, the most popular items stand in, which the column `source`
    says. A run that reasons may take fewer or more steps than it was trained with. Lists of all
    users of a store: `fullrank recommend-parts`; of a service: `fullrank ask`.

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
    check_owner("--users", users, data=data, unknown_users=unknown_users)
    table = "a column of --histories FILE"
    check_owner(table, histories, **vars(replace(names, user_col=None)))
    check_owner(f"{table}, --users or --features", histories or users or features, user_col=names.user_col)
    strangers = unknown_users or "error"
    output.check()
    check_store(data)
    check_lists(typed_settings(context))
    source = None if histories is None else _source(histories, names)
    import polars as pl

    from fullrank import api
    from fullrank.data.column_names import EventColumns
    from fullrank.data.events.store import Store
    from fullrank.run import Run, event_store_of

    opened = Run.open(run)
    predictor = api.load(opened, device=output.device)
    catalog = predictor.catalog
    request: Any = names.keywords()
    columns = EventColumns.of(request).names
    missing = []
    if users is not None:
        store = event_store_of(opened) if data is None else Store.open(data)
        # --user-col was of the file of users, and of that of features
        request = {"users": user_ids(users, store, columns[0]), "data": store, "unknown_users": strangers}
        request |= column_names(item_col=names.item_col, user_col=None if features is None else names.user_col)
    else:
        listed = _parse_histories(history or [], catalog)
        items = pl.Series([i for ids in listed for i in ids]) if source is None else _items(source, columns[1], catalog)
        missing = unknown_ids(items, catalog)
        request |= {"histories": listed if source is None else histories}
    request["features"] = features
    lists, budget = list_keywords(typed_settings(context), catalog, columns[1]), budget_of(typed_settings(context))
    with _warnings_as_notes(output, "--empty", "--untimed", "--features"):
        answers = predictor.recommend(**request, **lists, titles=True, budget=budget)
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


def _parse_histories(history: list[str], catalog: Catalog) -> list[list[Any]]:
    """Lists of external ids from `2,3,5`; an empty text is an empty history."""
    return [catalog.parse(ids).to_list() if ids else [] for ids in map(words_of, history)]


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
    """The distinct items of a table of histories, in the catalogue's type (a
    CSV file knows text alone)."""
    from fullrank.data.values import without_fractions

    items = source.read([column])[column]
    source.require_rows(len(items))
    source.require_one_kind(column)
    items = items.drop_nulls().unique(maintain_order=True)  # missing ones are refused where histories are read
    return without_fractions(items) if source.typed else catalog.parse(items.to_list())


@contextmanager
def _warnings_as_notes(output: Output, *options: str) -> Iterator[None]:
    """Print warnings of the library in the block as notes, in the words of a
    shell that has these options."""
    with warnings.catch_warnings(record=True) as doubts:
        warnings.simplefilter("always", UserWarning)
        yield
    output.notes(in_shell(str(doubt.message), options) for doubt in doubts if issubclass(doubt.category, UserWarning))
    for doubt in doubts:
        if not issubclass(doubt.category, UserWarning):  # of numpy and the like: as Python shows it
            warnings.showwarning(doubt.message, doubt.category, doubt.filename, doubt.lineno)


def _print(output: Output, answers: pl.DataFrame, *, named: bool) -> None:
    """Print a table for each of the first `SHOWN` users."""
    if answers.is_empty():
        output.say("no user has a list: nothing is left to recommend")
    groups = answers.partition_by("user", maintain_order=True)
    columns = ("rank", "item", "score", "source", "steps", "title")
    names = [name for name in columns if name in answers.columns]
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

    Users are those of a store or of a table. The lists lie in Parquet files below the folder --out.
    A call that was cut off goes on with the parts that are missing.

    \b
    fullrank recommend-parts runs/sasrec --data data/shop --workers 8 --out lists
    fullrank recommend-parts runs/sasrec --histories logs/ --engine spark --master spark://host:7077 --out lists
    """
    engine_keywords = engine.keywords()
    from fullrank.core.checks import check_one_way

    check_one_way({"--data, a store of all users,": data, "--histories FILE": histories})
    typed, table = typed_settings(context), "a column of --histories FILE"
    check_owner(table, histories, **vars(replace(columns, item_col=None, user_col=None)))
    check_owner(f"{table} or --features", histories or features, user_col=columns.user_col)
    check_owner(f"{table} or of --items", histories or typed.get("item_table"), item_col=columns.item_col)
    check_lists(typed)
    from fullrank import api
    from fullrank.run import Run

    opened = Run.open(run)
    lists: dict[str, Any] = list_keywords(typed, opened.catalog, columns.item_col or "item_id")
    with _warnings_as_notes(output, "--empty", "--features"), output.progress(f"recommend to {out}") as tick:
        written = api.recommend_parts(
            opened,
            out,
            histories,
            data=data,
            features=features,
            titles=True,
            budget=budget_of(typed),
            device=output.device,
            overwrite=output.overwrite,
            progress=tick,
            **columns.keywords(),
            **lists,
            **engine_keywords,
        )
    resumed = f", {written.resumed:,} of them by an earlier call" if written.resumed else ""
    output.say(
        f"{written.rows:,} recommendations for {written.users:,} users written to {written.folder} in "
        f"{written.parts:,} parts{resumed}, in {seconds(output.spent)}"
    )
    output.finish(
        {
            "run": opened.path,
            "out": written.path,
            **policies_of(lists),
            "parts": written.parts,
            "resumed": written.resumed,
            "users": written.users,
            "rows": written.rows,
            "popular": written.popular,
            "seconds": output.spent,
        }
    )


@verb(cls=list_options(only=("k", "exclude", "allow", "filters", "item_table")))
def similar(
    context: typer.Context,
    run: RunFolder,
    item: Annotated[list[str], option("ID", "An item; may be repeated.")],
    output: TableOut,
) -> None:
    """List the items most like an item.

    The score is the cosine of the vectors that the model learned; of item_to_item, how often both occur
    together, and of transition_graph, the link between them. popularity and recency know no likeness.

    \b
    fullrank similar runs/sasrec --item 5 -k 10
    fullrank similar runs/sasrec --item 5 --item 7 --filters in_stock=true --json
    """
    output.check()
    check_lists(typed_settings(context))
    from fullrank import api

    predictor = api.load(run, device=output.device)
    lists = list_keywords(typed_settings(context), predictor.catalog)
    table = predictor.similar(predictor.catalog.parse(item), **lists, titles=True)
    if output.out is not None:
        write_table(table, output.out)
        output.say(f"{len(table):,} similar items of {len(item):,} written to {output.out}")
        output.finish({"run": run, "k": lists.get("k", 10), "out": output.out, "rows": len(table)})
        return
    names = [name for name in ("rank", "similar", "score", "title") if name in table.columns]
    for group in table.partition_by("item", maintain_order=True):
        output.table(names, group.select(names).cast({"similar": str}).rows(), title=f"item {group['item'][0]}")
    output.finish({"run": run, "k": lists.get("k", 10), "similar": table.to_dicts()})


@verb()
def vectors(
    run: RunFolder,
    out: Annotated[Path, option("FILE", "Write them there (.parquet or .jsonl).")],
    output: WrittenByModel,
    users: Annotated[
        str | None, option("ID,ID,...|FILE", "Vectors of these users, in place of those of items.")
    ] = None,
    data: UserStore = None,
    user_col: UserCol = None,
) -> None:
    """Write the vectors of all items, or of users.

    The inner product of a user's vector and an item's is the score. Columns are item_id (or user) and
    vector, an array of numbers. Models that score otherwise (semantic ids, item_to_item) have none.

    \b
    fullrank vectors runs/sasrec --out items.parquet
    fullrank vectors runs/sasrec --users users.parquet --data data/shop --out users-vectors.parquet
    """
    check_out(out, output.overwrite, suffixes=VECTOR_SUFFIXES)
    check_owner("--users", users, data=data, user_col=user_col)
    check_store(data)
    from fullrank import api
    from fullrank.data.events.store import Store
    from fullrank.run import Run, event_store_of, require_problem

    opened = Run.open(run)
    require_problem(opened, "retrieval", "name such a run")
    predictor = api.load(opened, device=output.device)
    if users is None:
        table = predictor.item_vector_table()
    else:
        store = event_store_of(opened) if data is None else Store.open(data)
        table = predictor.user_vector_table(users=user_ids(users, store, user_col or "user_id"), data=store)
    write_table(table, out)
    dtype: Any = table["vector"].dtype
    kind, size = "items" if users is None else "users", dtype.shape[0]
    output.say(f"vectors of {len(table):,} {kind}, {size} numbers each, written to {out}")
    output.finish({"run": run, "of": kind, "rows": len(table), "size": size, "out": out})
