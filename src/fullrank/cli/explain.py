"""`fullrank attention`: what runs attend to in one user's history, with titles, and what of it matters."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fullrank.cli.options import AsJson, Device, MovedStore, Split, argument, option
from fullrank.cli.output import Output
from fullrank.cli.told_early import check_runs
from fullrank.core.errors import UserError

if TYPE_CHECKING:
    from fullrank.analysis.diagnostics.explain import Explanation
    from fullrank.run import Run

SHOWN = 30
"""Characters of a title."""


def add(app: typer.Typer) -> None:
    app.command("attention")(attention)


def attention(
    runs: Annotated[list[Path], argument("RUN...", "Run folders of the same store.", callback=check_runs)],
    user: Annotated[str | None, option("--user", "ID", "A user of the store.  [default: one that tells much]")] = None,
    data: MovedStore = None,
    split: Split = "test",
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Show what runs attend to in one history, with titles.

    The last 20 events of a user before what they chose next, each marked as relevant to that choice (people who had
    the one had the other more often than chance) or as noise, and the percent of attention that each layer of each run
    gives it. Below 0 a layer subtracts what it reads there.

    \b
    fullrank attention runs/softmax runs/focused
    fullrank attention runs/focused --user 17 --split validation
    """
    from fullrank import api
    from fullrank.run import Run

    output = Output(as_json)
    opened = [Run.open(run) for run in runs]
    if len({run.manifest["data"]["split_fingerprint"] for run in opened}) > 1:
        raise UserError("the runs were trained on different splits; give runs of one store", code="different-splits")
    cases: list[Explanation] = [api.explain(run, user, split, data=data, device=device) for run in opened]
    longest = max(cases, key=lambda one: len(one.items))
    events = [_event(n, opened, cases, longest) for n in range(1, len(longest.items) + 1)]
    target = _item(opened[0], longest.target)
    _print(output, opened, cases, target, events)
    output.finish({"user": longest.name, "split": split, "target": target, "events": events})


def _item(run: Run, item: int) -> dict[str, Any]:
    """An item's own id and title."""
    from fullrank.analysis.report.results import readable

    titles = run.catalog.titles
    title = None if titles is None else titles[item]
    return {"item": run.catalog.ids[item], "title": None if title is None else readable(title)}


def _event(n: int, opened: list[Run], cases: list[Explanation], longest: Explanation) -> dict[str, Any]:
    """The n-th event from the end, and the share of attention of each layer of each run that reads so far back."""
    shares = {
        str(run.path): [float(layer[-n]) for layer in one.shares] if n <= len(one.items) else None
        for run, one in zip(opened, cases, strict=True)
    }
    event = _item(opened[0], int(longest.items[-n]))
    return {**event, "relevant": bool(longest.relevant[-n]), "attention": shares}


def _print(
    output: Output, opened: list[Run], cases: list[Explanation], target: dict[str, Any], events: list[dict[str, Any]]
) -> None:
    letters = [f"{chr(ord('A') + n)}" for n in range(len(opened))]
    for letter, run in zip(letters, opened, strict=True):
        output.say(f"{letter}: {run.path}", wrap=False)
    output.say(f"user {cases[0].name}, who chose next: {target['title'] or target['item']}", wrap=False)
    depths = [len(one.shares) for one in cases]
    layers = [f"{letter}{layer + 1} %" for letter, many in zip(letters, depths, strict=True) for layer in range(many)]
    rows = []
    for event in events:
        cells: list[Any] = [str(event["title"] or event["item"])[:SHOWN], "relevant" if event["relevant"] else "noise"]
        for values, many in zip(event["attention"].values(), depths, strict=True):
            cells += [None] * many if values is None else [round(100 * value) for value in values]
        rows.append(cells)
    output.table(["event, the last first", "is", *layers], rows)
    output.say(
        "Percent of each layer's attention, mean over heads; below 0 it is subtracted. Relevant: people who had the "
        "one had the other more often than chance."
    )
