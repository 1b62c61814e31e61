"""`fullrank predict`: a table of impressions in, the same table with click probabilities out."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from fullrank.cli.options import AsJson, Device, OutTable, Overwrite, RunFolder, check_out, find_store
from fullrank.cli.output import Output, seconds
from fullrank.core.tables import SUFFIXES

SHOWN = 10
"""Rows printed where there is no --out."""


def add(app: typer.Typer) -> None:
    app.command("predict")(predict)


def predict(
    run: RunFolder,
    impressions: Annotated[
        Path, typer.Argument(metavar="FILE", help="Impressions with the columns that the model reads; no label needed.")
    ],
    out: OutTable = None,
    column: Annotated[str, typer.Option("--column", metavar="NAME", help="Name of the new column.")] = "probability",
    list_separator: Annotated[
        str | None,
        typer.Option(
            "--list-separator",
            metavar="TEXT",
            help="Between the values of a list in a text file, such as '|'.  [default: as the training's schema says]",
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option("--data", metavar="STORE", help="The store, of runs of format 1, where it was moved."),
    ] = None,
    overwrite: Overwrite = False,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Predict click probabilities of new impressions.

    All columns of the table are kept. A value that training did not see counts as unknown, an empty one as missing.
    With --out the table may be larger than memory, and the file appears whole or not at all.

    A list (genres, a history) is a list there, or text: it is cut where the schema of the training cut it, or at
    --list-separator.

    \b
    fullrank predict runs/rankelastor today.parquet --out predictions.parquet
    fullrank predict runs/rankelastor today.csv --column ctr
    fullrank predict runs/din today.csv --list-separator '|' --out predictions.csv
    """
    check_out(out, overwrite, suffixes=SUFFIXES)
    from fullrank import api
    from fullrank.run import Run

    output = Output(as_json)
    begun = time.perf_counter()
    opened = Run.open(run)
    where = find_store(opened, data) if opened.needs_store else data
    with output.progress(f"predict {impressions}") as tick:
        how: dict[str, Any] = {
            "data": where, "column": column, "list_separator": list_separator, "device": device, "progress": tick,
        }  # fmt: skip
        if out is not None:
            done = api.predict_file(opened, impressions, out, **how)
        else:
            found = api.predict(opened, impressions, **how)
    if out is not None:
        output.say(f"{done.rows:,} probabilities written to {out} in {seconds(time.perf_counter() - begun)}")
        output.finish({"run": run, "rows": done.rows, "mean": done.mean, "out": out})
        return
    shown = found.head(SHOWN)
    output.table(shown.columns, [list(row) for row in shown.rows()])
    if len(found) > SHOWN:
        output.say(f"... and {len(found) - SHOWN:,} more; --out FILE keeps them all")
    mean = found[column].mean() if len(found) else None
    output.finish({"run": run, "rows": len(found), "mean": mean, "out": None, "predictions": found.to_dicts()})
