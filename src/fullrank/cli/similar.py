"""`fullrank similar`: the items most like an item."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fullrank.cli.ids import known_ids
from fullrank.cli.options import AsJson, ColumnFilters, Device, ItemTable, Overwrite, RunFolder, check_out
from fullrank.cli.output import Output
from fullrank.core.errors import UserError
from fullrank.core.tables import check_suffix, write_table


def add(app: typer.Typer) -> None:
    app.command("similar")(similar)


def similar(
    run: RunFolder,
    item: Annotated[list[str], typer.Option("--item", metavar="ID", help="An item; may be repeated.")],
    k: Annotated[int, typer.Option("--k", "-k", metavar="K", help="Items for each.")] = 10,
    exclude: Annotated[
        str | None, typer.Option("--exclude", metavar="ID,ID,...", help="Items that are not to be listed.")
    ] = None,
    allow: Annotated[
        str | None, typer.Option("--allow", metavar="ID,ID,...", help="The only items that may be listed.")
    ] = None,
    filters: ColumnFilters = None,
    items: ItemTable = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write them there (.parquet, .csv or .jsonl).")
    ] = None,
    overwrite: Overwrite = False,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """List the items most like an item.

    The score is the cosine of the vectors that the model learned; of item_to_item, how often both occur together, and
    of transition_graph, the link between them. popularity and recency know no likeness.

    \b
    fullrank similar runs/sasrec --item 5 -k 10
    fullrank similar runs/sasrec --item 5 --item 7 --filters in_stock=true --json
    """
    if out is not None:
        check_suffix(out, "--out ")
    check_out(out, overwrite)
    if items is not None and not filters:
        raise UserError("--items is about --filters, which is not given", code="option-without-effect")
    from fullrank import api
    from fullrank.cli.column_filters import parse_filters
    from fullrank.inference.column_filters import item_columns

    output = Output(as_json)
    predictor = api.load(run, device=device)
    catalog = predictor.catalog
    wanted = parse_filters(filters, item_columns(catalog, items)) if filters else None
    found = predictor.similar(
        catalog.parse(item), k, exclude=known_ids("--exclude", exclude, catalog),
        allow=known_ids("--allow", allow, catalog), filters=wanted, item_table=items, titles=True,
    )  # fmt: skip
    if out is not None:
        write_table(found, out)
        output.say(f"{len(found):,} similar items of {len(item):,} written to {out}")
        output.finish({"run": run, "k": k, "out": out, "rows": len(found)})
        return
    names = [name for name in ("rank", "similar", "score", "title") if name in found.columns]
    for group in found.partition_by("item", maintain_order=True):
        cells = [[row["rank"], str(row["similar"]), *(row[name] for name in names[2:])] for row in group.to_dicts()]
        output.table(names, cells, title=f"item {group['item'][0]}")
    output.finish({"run": run, "k": k, "similar": found.to_dicts()})
