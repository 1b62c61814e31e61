"""`fullrank cascade`: a retriever's candidates in a ranker's order, measured before and after."""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fullrank.cli.options import AsJson, Device, Overwrite, Settings, Split, check_out
from fullrank.cli.output import Output, seconds
from fullrank.cli.told_early import check_runs, check_store
from fullrank.core.errors import UserError

if TYPE_CHECKING:
    from fullrank.cascade import CascadeResult


def add(app: typer.Typer) -> None:
    app.command("cascade")(cascade)


def cascade(
    retriever: Annotated[
        Path, typer.Argument(metavar="RETRIEVER", callback=check_runs, help="A run that recommends items.")
    ],
    ranker: Annotated[Path, typer.Argument(metavar="RANKER", callback=check_runs, help="A run of a ranking model.")],
    split: Split = "test",
    candidates: Annotated[
        int, typer.Option("--candidates", metavar="N", help="Items of each user that the ranker puts in order.")
    ] = 100,
    blend: Annotated[
        float, typer.Option("--blend", metavar="SHARE", help="The retriever's share in the order: 0 none, 1 all.")
    ] = 0.0,
    users: Annotated[
        Path | None, typer.Option("--users", metavar="FILE", help="Columns of users.  [default: the store's]")
    ] = None,
    items: Annotated[
        Path | None, typer.Option("--items", metavar="FILE", help="Columns of items.  [default: the catalogue's]")
    ] = None,
    context: Annotated[
        list[str] | None,
        typer.Option("--context", metavar="NAME=VALUE", help="A field that is the same for all; may be repeated."),
    ] = None,
    contexts: Annotated[
        Path | None, typer.Option("--context-table", metavar="FILE", help="Such fields, with a row for each user.")
    ] = None,
    user: Annotated[str | None, typer.Option("--user", metavar="NAME", help="The ranker's column of user ids.")] = None,
    item: Annotated[str | None, typer.Option("--item", metavar="NAME", help="The ranker's column of item ids.")] = None,
    store: Annotated[
        Path | None,
        typer.Option(
            "--store", metavar="STORE", callback=check_store, help="The retriever's store, where it was moved."
        ),
    ] = None,
    impressions: Annotated[
        Path | None,
        typer.Option(
            "--impressions", metavar="STORE", callback=check_store, help="The ranker's store, where it was moved."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FOLDER", help="Save cascade.json and both evaluations there.")
    ] = None,
    overwrite: Overwrite = False,
    device: Device = "auto",
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Let a ranker order a retriever's candidates.

    What that brings is measured: recall and nDCG of the retriever's lists and of the re-ranked ones, on the same users,
    with the paired difference and its interval. Split the events and the impressions at the same moments, or the ranker
    may have been trained on the targets; where the times say so, a note does. Recommendations by a cascade:
    fr.Cascade(...).recommend in Python.

    \b
    fullrank cascade runs/sasrec runs/dcnv2 --items movies.parquet --users users.parquet
    fullrank cascade runs/sasrec runs/dcnv2 --context hour=20 --context weekday=6 --candidates 200
    fullrank cascade runs/sasrec runs/dcnv2 --split validation --blend 0.5
    """
    if context and contexts is not None:
        raise UserError(
            "give the context by --context NAME=VALUE or by --context-table FILE, one of the two",
            code="options-exclude-each",
        )
    from fullrank.cascade import Cascade, CascadeResult
    from fullrank.core.overrides import read_setting

    output = Output(as_json)
    begun = time.perf_counter()
    if out is not None:
        CascadeResult.check_folder(out)
    check_out(out, overwrite, "cascade.json")
    made = Cascade(
        retriever, ranker, users=users, items=items, user=user, item=item, store=store, impressions=impressions,
        device=device,
    )  # fmt: skip
    given: Any = contexts if contexts is not None else dict(map(read_setting, context or []))
    with output.progress(f"cascade {retriever} {ranker}") as tick, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the notes say the same
        found = made.evaluate(
            split, candidates=candidates, context=given, blend=blend, set=settings or (), progress=tick
        )  # fmt: skip
    if out is not None:
        found.save(out)
    show(output, found)
    spent = time.perf_counter() - begun
    output.say(f"{found.facts['users']:,} users of the {split} split; in {seconds(spent)}")
    output.finish({"retriever": retriever, "ranker": ranker, **found.dump(), "seconds": round(spent, 3)})


def show(output: Output, found: CascadeResult) -> None:
    """The differences, what a perfect ranker could reach, and the notes."""
    rows = [
        [c.metric, c.a, c.b, f"{c.difference:+.4f}", f"{c.interval[0]:+.4f} {c.interval[1]:+.4f}", c.p]
        for c in found.differences.values()
    ]
    level = found.before.protocol["bootstrap"]["level"]
    output.table(("metric", "before", "after", "difference", f"{100 * level:g} % interval", "p"), rows)
    count = found.facts["candidates"]
    output.say(f"recall of the {count} candidates, which no ranker exceeds: {found.ceiling:.4f}")
    for note in found.notes:
        output.say(f"note: {note}")
