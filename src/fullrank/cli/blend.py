"""`fullrank blend`: runs to one run that joins their lists."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from fullrank.cli.options import Device, MovedStore, Overwrite, Settings, argument, option
from fullrank.cli.output import Output, seconds
from fullrank.cli.told_early import check_place, check_runs, check_store
from fullrank.cli.verbs import verb
from fullrank.core.errors import command_line
from fullrank.core.files import jsonable


@verb()
def blend(
    runs: Annotated[
        list[Path], argument("RUN...", "Run folders of the same items, trained or counted.", callback=check_runs)
    ],
    output: Output,
    out: Annotated[Path, option("FOLDER", "The run folder to write; it holds all members.")],
    data: MovedStore = None,
    settings: Settings = None,
    overwrite: Overwrite = False,
    device: Device = "auto",
) -> None:
    """Join the lists of several runs in one run.

    Weights of the members are learned on the validation split, and so is how lists are joined, unless --set says it
    (model.join=ranks or scores, model.offset=X, model.gate=true: weights that depend on the history, model.depth=N:
    items of each member's list). Figures are of users from whom nothing was learned. evaluate, recommend, serve and
    export --to folder take the new run as any other.

    \b
    fullrank blend runs/transition_graph runs/sasrec runs/srt --out runs/blend
    fullrank evaluate runs/blend --split test
    """
    check_store(data)
    check_place(out, overwrite=overwrite)
    from fullrank import api

    with output.progress("blend: lists of validation") as tick:
        made = api.blend(
            runs, data, out, set=settings or (), device=device, overwrite=overwrite, progress=tick
        )  # fmt: skip
    found, how = made.manifest["blend"], made.spec.model
    metric = found["selection"]
    rows = [
        [one["name"], one["alone"], one["weight"], one["brings"], one["brings_se"], one["helped"], one["hurt"]]
        for one in found["members"]
    ]
    headers = ["member", f"{metric} alone", "weight", "brings", "+-", "users helped", "hurt"]
    output.table(headers, rows, title=f"validation, {found['users']:,} users")
    kind = {name: value for name, value in how.dump().items() if name not in ("kind", "members") and value is not None}
    output.say(
        f"{metric} {found['blend']:.4f} (+- {found['blend_se']:.4f}) of users from whom nothing was learned; joined by "
        + ", ".join(f"{name}={value}" for name, value in kind.items())
    )
    output.say(f"{out} written in {seconds(output.spent)}; next: {command_line('evaluate', out, '--split', 'test')}")
    output.finish({"run": made.path, "model": jsonable(how.dump()), **found})
