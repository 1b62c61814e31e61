"""`fullrank similar`: the items most like an item."""

from __future__ import annotations

from typing import Annotated

import typer

from fullrank.cli.list_options import check_lists, list_keywords, list_options
from fullrank.cli.option_groups import TableOut
from fullrank.cli.options import RunFolder, given, option
from fullrank.cli.output import Output
from fullrank.core.tables import write_table

COMMAND = list_options(only=("k", "exclude", "allow", "filters", "item_table"))


def similar(
    context: typer.Context,
    run: RunFolder,
    item: Annotated[list[str], option("--item", "ID", "An item; may be repeated.")],
    to: TableOut,
) -> None:
    """List the items most like an item.

    The score is the cosine of the vectors that the model learned; of item_to_item, how often both occur together, and
    of transition_graph, the link between them. popularity and recency know no likeness.

    \b
    fullrank similar runs/sasrec --item 5 -k 10
    fullrank similar runs/sasrec --item 5 --item 7 --filters in_stock=true --json
    """
    to.check()
    check_lists(given(context))
    from fullrank import api

    output = Output(to.as_json)
    predictor = api.load(run, device=to.device)
    lists = list_keywords(given(context), predictor.catalog)
    found = predictor.similar(predictor.catalog.parse(item), **lists, titles=True)
    if to.out is not None:
        write_table(found, to.out)
        output.say(f"{len(found):,} similar items of {len(item):,} written to {to.out}")
        output.finish({"run": run, "k": lists.get("k", 10), "out": to.out, "rows": len(found)})
        return
    names = [name for name in ("rank", "similar", "score", "title") if name in found.columns]
    for group in found.partition_by("item", maintain_order=True):
        cells = [[row["rank"], str(row["similar"]), *(row[name] for name in names[2:])] for row in group.to_dicts()]
        output.table(names, cells, title=f"item {group['item'][0]}")
    output.finish({"run": run, "k": lists.get("k", 10), "similar": found.to_dicts()})
