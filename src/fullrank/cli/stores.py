"""`fullrank check` and `subset`: is the data of a store worth a model, and a store of a share of its users.

`prepare` ends with the warnings of `check`. Neither loads torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from fullrank.cli.early_checks import check_store
from fullrank.cli.option_groups import Written
from fullrank.cli.options import argument, flag, option
from fullrank.cli.output import Output, seconds
from fullrank.cli.verbs import verb
from fullrank.core.errors import command_line

if TYPE_CHECKING:
    from fullrank.data.events.store import Store
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

    Counts alone: copies, bots, leaks in time, ties, cold targets, whether order matters; of
    impressions labels, copies, fields that tell the label, unseen values. A finding is ok, a note
    (worth knowing when recipe and split are chosen) or a warning (results may be worthless).
    Warnings end with 0 too, unless --strict. Whether files are whole says `fullrank verify`, what a
    model made of the data `fullrank diagnose`.

    \b
    fullrank check data/shop
    fullrank check data/shop --strict --json
    """
    from fullrank.data.check import check as look

    report = look(folder)
    shown = [finding for finding in report.findings if every or finding.grade != "ok"]
    for finding in shown:
        output.say(f"{finding.grade}: {finding.name}: {finding.said}")
    fine = [finding.name for finding in report.findings if finding.grade == "ok"]
    if fine:
        output.say(f"{'in order' if shown else 'nothing to warn of, in order'}: {', '.join(fine)}")
    count = len(report.warnings)
    warnings = f"{count} warning{'s' * (count != 1)}"
    output.say(f"{folder}: {len(report.findings)} findings, {warnings}, in {seconds(output.spent)}")
    output.finish(report.dump() | {"seconds": output.spent}, broken=report.error if strict and not report.ok else None)


def warn(output: Output, store: AnyStore) -> list[Finding]:
    """Print and return the warnings about a store that was just prepared, and what its split leaks."""
    from fullrank.data.check import check as look

    warned = [
        finding
        for finding in look(store).findings
        if finding.grade == "warning" or (finding.name, finding.grade) == ("leak", "note")
    ]
    for finding in warned:
        output.say(f"{finding.grade}: {finding.said}")
    if warned:
        output.say(f"more of its data: {command_line('check', store.path)}", wrap=False)
    return warned


def print_sizes(output: Output, store: Store) -> None:
    """Print how large a store of events is, and how long it took."""
    output.say(
        f"{store.path}: {store.num_events:,} events of {store.num_users:,} users on {store.num_items:,} items, "
        f"in {seconds(output.spent)}"
    )


def suggest_training(output: Output, store: AnyStore, recipe: str = "sasrec") -> None:
    """Print the command that trains a recipe on a store."""
    train = command_line("train", recipe, "--data", store.path, "--out", f"runs/{recipe}")
    output.say(f"train a model: {train}", wrap=False)


@verb()
def subset(
    data: Annotated[Path, argument("STORE", "A store (`fullrank prepare` makes one).", callback=check_store)],
    out: Annotated[Path, option("FOLDER", "The store to write.")],
    output: Written,
    share: Annotated[float, option("X", "Share of the users, above 0.")] = 1.0,
    seed: Annotated[int, option("N", "Which users and items.", min=0)] = 0,
    hide_items: Annotated[float, option("X", "Share of the items that lose their training events.")] = 0.0,
    keep_items: Annotated[
        bool, flag("--keep-items", "Keep items without events, so that all shares rank the same ones.")
    ] = False,
    without: Annotated[
        Path | None, option("STORE", "Leave out the users of this store, by their ids.", callback=check_store)
    ] = None,
) -> None:
    """Take a share of a store's users with their events.

    A smaller share is inside every larger one of the same seed. Items without an event that is left
    are dropped, unless --keep-items is given; ids that you know stay. A model of a store with
    --keep-items can be evaluated on the whole one (`fullrank evaluate RUN --data STORE`). --without
    leaves out who is a user of another store. --hide-items takes the training events of some items
    away: they stay in the catalogue, and in validation and test, so that `fullrank evaluate` shows
    how a model treats items without training events (slice `cold`).

    \b
    fullrank subset data/shop --share 0.25 --out data/shop-25
    fullrank subset data/shop --hide-items 0.1 --seed 1 --out data/shop-cold
    fullrank subset data/all --without data/shop --out data/others
    """
    from fullrank.data.events.subset import subset as make

    store = make(
        data,
        out,
        share=share,
        seed=seed,
        hide_items=hide_items,
        keep_items=keep_items,
        without=without,
        overwrite=output.overwrite,
    )
    facts = store.manifest["subset"]
    print_sizes(output, store)
    if "without" in facts:
        output.say(f"{facts['without']['users']:,} users left out, who are users of {without}")
    if facts["hide_items"]:
        output.say(f"{facts['hidden_items']:,} items hidden, {facts['hidden_events']:,} training events taken out")
    drift = facts["drift"]
    names = list(drift["before"])
    output.table(
        ("", data.name, store.path.name),
        [[n.replace("_", " "), f"{drift['before'][n]:g}", f"{drift['after'][n]:g}"] for n in names],
    )
    output.say(f"largest gap between the distributions of events per user: {drift['events_per_user_gap']:.3f}")
    suggest_training(output, store)
    output.finish({"store": store.path, "counts": store.manifest["counts"], "fingerprint": store.fingerprint, **facts})
