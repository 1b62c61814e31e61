"""`fullrank predict`: a table of impressions in, the same table with click probabilities out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from fullrank.cli.option_groups import TableOut
from fullrank.cli.options import RunFolder, argument, option
from fullrank.cli.output import Output, seconds

SHOWN = 10
"""Rows printed where there is no --out."""


def predict(
    run: RunFolder,
    impressions: Annotated[
        Path, argument("FILE", "Impressions with the columns that the model reads; no label needed.")
    ],
    to: TableOut,
    column: Annotated[str, option("--column", "NAME", "Name of the new column.")] = "probability",
    list_separator: Annotated[
        str | None,
        option(
            "--list-separator",
            "TEXT",
            "Between the values of a list in a text file, such as '|'.  [default: as the training's schema says]",
        ),
    ] = None,
    data: Annotated[
        Path | None,
        option("--data", "STORE", "The store, where it was moved; needed by runs of format 1 alone."),
    ] = None,
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
    to.check()
    from fullrank import api

    output = Output(to.as_json)
    with output.progress(f"predict {impressions}") as tick:
        how: dict[str, Any] = {"column": column, "list_separator": list_separator, "progress": tick}
        predictor = api.load(run, data=data, device=to.device)
        if to.out is not None:
            done = predictor.predict_file(impressions, to.out, **how)
        else:
            found = predictor.predict(impressions, **how)
    if to.out is not None:
        output.say(f"{done.rows:,} probabilities written to {to.out} in {seconds(output.spent)}")
        output.finish({"run": run, "rows": done.rows, "mean": done.mean, "out": to.out})
        return
    shown = found.head(SHOWN)
    output.table(shown.columns, [list(row) for row in shown.rows()])
    if len(found) > SHOWN:
        output.say(f"... and {len(found) - SHOWN:,} more; --out FILE keeps them all")
    mean = found[column].mean() if len(found) else None
    output.finish({"run": run, "rows": len(found), "mean": mean, "out": None, "predictions": found.to_dicts()})
