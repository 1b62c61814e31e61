"""`fullrank similar` and `vectors`: the items most like an item, and the vectors of items or of users in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fullrank.cli.list_options import check_lists, list_keywords, list_options, user_ids
from fullrank.cli.option_groups import TableOut, UserCol, WrittenByModel
from fullrank.cli.options import RunFolder, UserStore, check_beside, check_out, given, option
from fullrank.cli.told_early import check_store
from fullrank.cli.verbs import verb
from fullrank.core.tables import write_table

SUFFIXES = (".parquet", ".jsonl")
"""Of a file of vectors: a CSV file has no arrays."""


@verb(cls=list_options(only=("k", "exclude", "allow", "filters", "item_table")))
def similar(
    context: typer.Context,
    run: RunFolder,
    item: Annotated[list[str], option("ID", "An item; may be repeated.")],
    output: TableOut,
) -> None:
    """List the items most like an item.

    The score is the cosine of the vectors that the model learned; of item_to_item, how often both occur together, and
    of transition_graph, the link between them. popularity and recency know no likeness.

    \b
    fullrank similar runs/sasrec --item 5 -k 10
    fullrank similar runs/sasrec --item 5 --item 7 --filters in_stock=true --json
    """
    output.check()
    check_lists(given(context))
    from fullrank import api

    predictor = api.load(run, device=output.device)
    lists = list_keywords(given(context), predictor.catalog)
    found = predictor.similar(predictor.catalog.parse(item), **lists, titles=True)
    if output.out is not None:
        write_table(found, output.out)
        output.say(f"{len(found):,} similar items of {len(item):,} written to {output.out}")
        output.finish({"run": run, "k": lists.get("k", 10), "out": output.out, "rows": len(found)})
        return
    names = [name for name in ("rank", "similar", "score", "title") if name in found.columns]
    for group in found.partition_by("item", maintain_order=True):
        output.table(names, group.select(names).cast({"similar": str}).rows(), title=f"item {group['item'][0]}")
    output.finish({"run": run, "k": lists.get("k", 10), "similar": found.to_dicts()})


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

    The inner product of a user's vector and an item's is the score. Columns are item_id (or user) and vector, an array
    of numbers. Models that score otherwise (semantic ids, item_to_item) have none.

    \b
    fullrank vectors runs/sasrec --out items.parquet
    fullrank vectors runs/sasrec --users users.parquet --data data/shop --out users-vectors.parquet
    """
    check_out(out, output.overwrite, suffixes=SUFFIXES)
    check_beside("--users", users, data=data, user_col=user_col)
    check_store(data)
    from fullrank import api
    from fullrank.data.events.store import Store
    from fullrank.run import Run, event_store_of, require_problem

    opened = Run.open(run)
    require_problem(opened, "retrieval", "name such a run")
    predictor = api.load(opened, device=output.device)
    if users is None:
        found = predictor.item_vector_table()
    else:
        store = event_store_of(opened) if data is None else Store.open(data)
        found = predictor.user_vector_table(users=user_ids(users, store, user_col or "user_id"), data=store)
    write_table(found, out)
    kind, size = "items" if users is None else "users", found["vector"].dtype.shape[0]  # type: ignore[attr-defined]
    output.say(f"vectors of {len(found):,} {kind}, {size} numbers each, written to {out}")
    output.finish({"run": run, "of": kind, "rows": len(found), "size": size, "out": out})
