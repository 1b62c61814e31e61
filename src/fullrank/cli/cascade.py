"""`fullrank cascade`: a retriever's candidates in a ranker's order, measured before and after."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from fullrank.cli.options import AsJson, Device, Overwrite, Settings, Split, argument, check_out, option
from fullrank.cli.output import Output, seconds
from fullrank.cli.told_early import check_runs, check_store

if TYPE_CHECKING:
    from fullrank.cascade import CascadeResult


@dataclass(frozen=True)
class Tables:
    """Where the two models and what they read are."""

    users: Annotated[Path | None, option("--users", "FILE", "Columns of users.  [default: the store's]")] = None
    items: Annotated[Path | None, option("--items", "FILE", "Columns of items.  [default: the catalogue's]")] = None
    user: Annotated[str | None, option("--user", "NAME", "The ranker's column of user ids.")] = None
    item: Annotated[str | None, option("--item", "NAME", "The ranker's column of item ids.")] = None
    store: Annotated[
        Path | None,
        option("--store", "STORE", "The retriever's store, where it was moved.", callback=check_store),
    ] = None
    impressions: Annotated[
        Path | None,
        option("--impressions", "STORE", "The ranker's store, where it was moved.", callback=check_store),
    ] = None
    device: Device = "auto"


@dataclass(frozen=True)
class Order:
    """How candidates are put in order."""

    candidates: Annotated[int, option("--candidates", "N", "Items of each user that the ranker puts in order.")] = 100
    blend: Annotated[float, option("--blend", "SHARE", "The retriever's share in the order: 0 none, 1 all.")] = 0.0
    context: Annotated[
        list[str] | None,
        option("--context", "NAME=VALUE", "A field that is the same for all; may be repeated."),
    ] = None
    contexts: Annotated[Path | None, option("--context-table", "FILE", "Such fields, with a row for each user.")] = None

    def keywords(self) -> dict[str, Any]:
        """What was typed, as keywords of the library."""
        from fullrank.core.checks import check_one_way
        from fullrank.core.spec import read_setting

        check_one_way({"--context NAME=VALUE": self.context or None, "--context-table FILE": self.contexts})
        context = dict(map(read_setting, self.context or [])) if self.contexts is None else self.contexts
        return {"candidates": self.candidates, "blend": self.blend, "context": context}


def cascade(
    retriever: Annotated[Path, argument("RETRIEVER", "A run that recommends items.", callback=check_runs)],
    ranker: Annotated[Path, argument("RANKER", "A run of a ranking model.", callback=check_runs)],
    tables: Tables,
    order: Order,
    split: Split = "test",
    out: Annotated[Path | None, option("--out", "FOLDER", "Save cascade.json and both evaluations there.")] = None,
    overwrite: Overwrite = False,
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
    ordered = order.keywords()
    from fullrank.cascade import Cascade, CascadeResult

    output = Output(as_json)
    if out is not None:
        CascadeResult.check_folder(out)
    check_out(out, overwrite, "cascade.json")
    made = Cascade(retriever, ranker, **vars(tables))
    with output.progress(f"cascade {retriever} {ranker}") as tick, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the notes say the same
        found = made.evaluate(split, **ordered, set=settings or (), progress=tick)
    if out is not None:
        found.save(out)
    show(output, found)
    output.say(f"{found.facts['users']:,} users of the {split} split; in {seconds(output.spent)}")
    output.finish({"retriever": retriever, "ranker": ranker, **found.dump(), "seconds": output.spent})


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
    output.notes(found.notes)
