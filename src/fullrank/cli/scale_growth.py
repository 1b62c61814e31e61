"""`fullrank scale growth`: how the catalogue of a store grows, and what that does to a table. Loads no torch."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fullrank.cli.options import AsJson
from fullrank.cli.output import Output, seconds
from fullrank.core.errors import UserError

if TYPE_CHECKING:
    from fullrank.scaling.growth import Growth


def growth(
    store: Annotated[Path, typer.Argument(metavar="STORE", help="A store of events, as `fullrank prepare` makes it.")],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FOLDER", help="Write report.html and growth.json there.")
    ] = None,
    dim: Annotated[
        int, typer.Option("--dim", metavar="D", min=1, max=1_000_000, help="Numbers in the vector of an item.")
    ] = 64,
    seed: Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Order in which users are added.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Show how the catalogue grows with users and events.

    Users are added in the order in which `fullrank subset` takes them, so the numbers at a share are those of that
    subset. Then the parameters of models with a table of item vectors, and how events are spread over items: Figures 1
    and 3 of SRT for your data. Needs the extra fullrank[report] for --out alone.

    \b
    fullrank scale growth data/shop
    fullrank scale growth data/shop --dim 128 --out reports/growth --json
    """
    from fullrank.scaling.growth import catalogue_growth

    screen = Output(as_json)
    begun = time.perf_counter()
    if out is not None:
        from fullrank.analysis.report.page import check_extra

        check_extra()
        if out.exists() and not out.is_dir():
            raise UserError(f"{out} is a file; name a folder for the report")
    grown = catalogue_growth(store, seed=seed, dim=dim)
    _print(screen, grown)
    found: dict[str, Any] = grown.dump()
    if out is not None:
        found["out"] = str(_report(screen, grown, found, out))
    screen.say(f"in {seconds(time.perf_counter() - begun)}")
    screen.finish(found)


def _print(screen: Output, grown: Growth) -> None:
    import numpy as np

    from fullrank.scaling.growth import short, told

    models = [f"table + {short(other)}" for other in grown.others]
    rows = np.column_stack([grown.users, grown.interactions, grown.items, grown.parameters]).tolist()
    screen.table(("users", "interactions", "items", *models), rows)
    screen.say()
    bins = [(f"{low:,} to {high:,}", count, count / len(grown.per_item)) for low, high, count in grown.histogram]
    screen.table(("events of an item", "items", "share"), bins)
    screen.say()
    for sentence in told(grown):
        screen.say(sentence)


def _report(screen: Output, grown: Growth, found: dict[str, Any], out: Path) -> Path:
    from fullrank.analysis.report.growth import growth_report
    from fullrank.core.files import write_json
    from fullrank.ops.plain import plain

    growth_report(grown).save(out / "report.html")
    write_json(out / "growth.json", plain(found))
    screen.say(f"{out / 'report.html'} and growth.json", wrap=False)
    return out
