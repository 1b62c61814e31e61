"""`fullrank recommend-parts`: lists of all users of a store or a table, in a folder."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from fullrank.cli.in_shell import in_shell
from fullrank.cli.list_options import budget_of, check_lists, list_keywords, list_options, settled
from fullrank.cli.option_groups import EngineOptions, TableColumns
from fullrank.cli.options import AsJson, Device, Overwrite, RunFolder, UserStore, check_beside, given, option
from fullrank.cli.output import Output, seconds

COMMAND = list_options()


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
