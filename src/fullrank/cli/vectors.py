"""`fullrank vectors`: the vectors of items or of users, written to a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from fullrank.cli.ids import user_ids
from fullrank.cli.option_groups import UserCol
from fullrank.cli.options import AsJson, Device, Overwrite, RunFolder, UserStore, check_beside, check_out, option
from fullrank.cli.output import Output
from fullrank.cli.told_early import check_store

SUFFIXES = (".parquet", ".jsonl")
"""A CSV file has no arrays."""


def vectors(
    run: RunFolder,
    out: Annotated[Path, option("--out", "FILE", "Write them there (.parquet or .jsonl).")],
    users: Annotated[
        str | None,
        option("--users", "ID,ID,...|FILE", "Vectors of these users, in place of those of items."),
    ] = None,
    data: UserStore = None,
    user: UserCol = None,
    overwrite: Overwrite = False,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Write the vectors of all items, or of users.

    The inner product of a user's vector and an item's is the score. Columns are item_id (or user) and vector, an array
    of numbers. Models that score otherwise (semantic ids, item_to_item) have none.

    \b
    fullrank vectors runs/sasrec --out items.parquet
    fullrank vectors runs/sasrec --users users.parquet --data data/shop --out users-vectors.parquet
    """
    check_out(out, overwrite, suffixes=SUFFIXES)
    check_beside("--users", users, data=data, user_col=user)
    check_store(data)
    from fullrank import api
    from fullrank.core.tables import write_table
    from fullrank.data.events.store import Store
    from fullrank.run import Run, event_store_of, require_problem

    output = Output(as_json)
    opened = Run.open(run)
    require_problem(opened, "retrieval", "name such a run")
    predictor = api.load(opened, device=device)
    if users is None:
        found = predictor.item_vector_table()
    else:
        store = event_store_of(opened) if data is None else Store.open(data)
        found = predictor.user_vector_table(users=user_ids(users, store, user or "user_id"), data=store)
    write_table(found, out)
    kind, size = "items" if users is None else "users", found["vector"].dtype.shape[0]  # type: ignore[attr-defined]
    output.say(f"vectors of {len(found):,} {kind}, {size} numbers each, written to {out}")
    output.finish({"run": run, "of": kind, "rows": len(found), "size": size, "out": out})
