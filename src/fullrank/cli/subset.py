"""`fullrank subset`: a share of a store's users, or all but some, or with some items hidden from training. Loads no
torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from fullrank.cli.option_groups import Written
from fullrank.cli.options import argument, flag, option
from fullrank.cli.output import seconds
from fullrank.cli.told_early import check_store
from fullrank.cli.verbs import verb
from fullrank.core.errors import command_line


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

    A smaller share is inside every larger one of the same seed. Items without an event that is left are dropped, unless
    --keep-items is given; ids that you know stay. A model of a store with --keep-items can be evaluated on the whole
    one (`fullrank evaluate RUN --data STORE`). --without leaves out who is a user of another store. --hide-items takes
    the training events of some items away: they stay in the catalogue, and in validation and test, so that `fullrank
    evaluate` shows how a model treats items without training events (slice `cold`).

    \b
    fullrank subset data/shop --share 0.25 --out data/shop-25
    fullrank subset data/shop --hide-items 0.1 --seed 1 --out data/shop-cold
    fullrank subset data/all --without data/shop --out data/others
    """
    from fullrank.data.events.subset import subset as make

    store = make(
        data, out, share=share, seed=seed, hide_items=hide_items, keep_items=keep_items, without=without,
        overwrite=output.overwrite,
    )  # fmt: skip
    facts = store.manifest["subset"]
    output.say(
        f"{store.path}: {store.num_events:,} events of {store.num_users:,} users on {store.num_items:,} items, "
        f"in {seconds(output.spent)}"
    )
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
    train = command_line("train", "sasrec", "--data", store.path, "--out", "runs/sasrec")
    output.say(f"train a model: {train}", wrap=False)
    output.finish({"store": store.path, "counts": store.manifest["counts"], "fingerprint": store.fingerprint, **facts})
