"""`fullrank grow`: a trained run that knows new items too."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from fullrank.cli.options import AsJson, RunFolder, Word, choice, option
from fullrank.cli.output import Output


def grow(
    run: RunFolder,
    items: Annotated[Path, option("--items", "FILE", "The new items: ids, and what is known of them.")],
    out: Annotated[Path, option("--out", "FOLDER", "The new run; RUN stays as it is.")],
    start: Annotated[
        Word,
        choice(
            "--start",
            "features|neighbours|mean",
            "Where a new item's vector comes from: its features, the items with the same --like, or all items.",
        ),
    ] = "features",
    like: Annotated[
        str | None, option("--like", "NAME", "Column whose values make items neighbours, for --start neighbours.")
    ] = None,
    codes: Annotated[
        Path | None, option("--codes", "FOLDER", "Semantic ids of old and new items, for a run whose items have them.")
    ] = None,
    item: Annotated[str, option("--item-col", "NAME", "Column of FILE with the ids.")] = "item_id",
    as_json: AsJson = False,
) -> None:
    """Add new items to a trained run, without training.

    The items so far keep their ids, vectors and scores; a new one gets a vector by --start. FILE may hold any of the
    run's columns of items; others are empty.

    \b
    fullrank grow runs/sasrec --items new.parquet --start neighbours --like category --out runs/today
    fullrank grow runs/srt --items new.parquet --out runs/today
    """
    from fullrank.run import Run
    from fullrank.training.grow import grow_catalog

    output = Output(as_json)
    opened = Run.open(run)
    before = opened.catalog.size
    made = grow_catalog(opened, items, out, item=item, start=start, like=like, codes=codes)
    catalog = made.catalog
    output.say(f"{made.path}: {catalog.size:,} items, {catalog.size - before:,} of them new")
    output.finish({
        "run": made.path, "grown_from": run, "items": catalog.size, "new": catalog.size - before, "start": start,
        "id_map_version": catalog.version,
    })  # fmt: skip
