"""`fullrank check`: is the data of a store worth a model? `prepare` ends with its warnings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from fullrank.cli.options import argument, flag
from fullrank.cli.output import Output, seconds
from fullrank.cli.told_early import check_store
from fullrank.cli.verbs import verb
from fullrank.core.errors import command_line

if TYPE_CHECKING:
    from fullrank.data.findings import Finding
    from fullrank.data.impressions.store import AnyStore


@verb()
def check(
    folder: Annotated[Path, argument("STORE", "A store, of events or of impressions.", callback=check_store)],
    output: Output,
    strict: Annotated[bool, flag("--strict", "Leave with exit code 2 where something is warned of.")] = False,
    every: Annotated[bool, flag("--all", "Say what is in order too.")] = False,
) -> None:
    """Look for what is wrong with data before training.

    Counts alone: copies, bots, leaks in time, ties, cold targets, whether order matters; of impressions labels, copies,
    fields that tell the label, unseen values. A finding is ok, a note (worth knowing when recipe and split are chosen)
    or a warning (results may be worthless). Warnings end with 0 too, unless --strict. Whether files are whole says
    `fullrank verify`, what a model made of the data `fullrank diagnose`.

    \b
    fullrank check data/shop
    fullrank check data/shop --strict --json
    """
    from fullrank.data.check import check as look

    found = look(folder)
    shown = [one for one in found.findings if every or one.grade != "ok"]
    for one in shown:
        output.say(f"{one.grade}: {one.name}: {one.said}")
    fine = [one.name for one in found.findings if one.grade == "ok"]
    if fine:
        output.say(f"{'in order' if shown else 'nothing to warn of, in order'}: {', '.join(fine)}")
    count = len(found.warnings)
    told = f"{len(found.findings)} findings, {count} warning{'s' * (count != 1)}"
    output.say(f"{folder}: {told}, in {seconds(output.spent)}")
    output.finish(found.dump() | {"seconds": output.spent}, broken=found.error if strict and not found.ok else None)


def warn(output: Output, store: AnyStore) -> list[Finding]:
    """Say what is warned of in a store that was just prepared, and what its split leaks."""
    from fullrank.data.check import check as look

    told = [one for one in look(store).findings if one.grade == "warning" or (one.name, one.grade) == ("leak", "note")]
    for one in told:
        output.say(f"{one.grade}: {one.said}")
    if told:
        output.say(f"more of its data: {command_line('check', store.path)}", wrap=False)
    return told
