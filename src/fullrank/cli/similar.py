"""`fullrank similar`: the items most like an item."""

from __future__ import annotations

from typing import Annotated

import typer

from fullrank.cli.list_options import check_lists, list_keywords, list_options
from fullrank.cli.options import AsJson, Device, OutTable, Overwrite, RunFolder, check_out, given
from fullrank.cli.output import Output
from fullrank.core.tables import SUFFIXES, write_table


def add(app: typer.Typer) -> None:
    fields = ("k", "exclude", "allow", "filters", "item_table")
    app.command("similar", cls=list_options(only=fields))(similar)


def similar(
    context: typer.Context,
    run: RunFolder,
    item: Annotated[list[str], typer.Option("--item", metavar="ID", help="An item; may be repeated.")],
    out: OutTable = None,
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
    check_out(out, overwrite, suffixes=SUFFIXES)
    check_lists(given(context))
    from fullrank import api

    output = Output(as_json)
    predictor = api.load(run, device=device)
    lists = list_keywords(given(context), predictor.catalog)
    found = predictor.similar(predictor.catalog.parse(item), **lists, titles=True)
    if out is not None:
        write_table(found, out)
        output.say(f"{len(found):,} similar items of {len(item):,} written to {out}")
        output.finish({"run": run, "k": lists.get("k", 10), "out": out, "rows": len(found)})
        return
    names = [name for name in ("rank", "similar", "score", "title") if name in found.columns]
    for group in found.partition_by("item", maintain_order=True):
        cells = [[row["rank"], str(row["similar"]), *(row[name] for name in names[2:])] for row in group.to_dicts()]
        output.table(names, cells, title=f"item {group['item'][0]}")
    output.finish({"run": run, "k": lists.get("k", 10), "similar": found.to_dicts()})
