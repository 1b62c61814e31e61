"""`fullrank pretrain`: one model of several stores, for others to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from fullrank.cli.options import AsJson, Device, Settings, argument, flag, option
from fullrank.cli.output import Output
from fullrank.cli.told_early import check_recipe, check_store
from fullrank.cli.train import report
from fullrank.core.errors import UserError


def pretrain(
    recipe: Annotated[str, argument("RECIPE", "A recipe whose items are made of text or vectors, such as srt.")],
    data: Annotated[list[Path], option("--data", "STORE", "A store; give two or more.", callback=check_store)],
    out: Annotated[Path, option("--out", "FOLDER", "The run folder to write.")],
    weights: Annotated[
        str | None,
        option("--weights", "X,X,...", "How often the rows of each store count in an epoch.  [default: 1 each]"),
    ] = None,
    joined: Annotated[
        Path | None,
        option("--joined", "FOLDER", "Where the joined store is written.  [default: OUT-data]"),
    ] = None,
    settings: Settings = None,
    overwrite: Annotated[bool, flag("--overwrite", "Replace the run and the joined store.")] = False,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Train one model on several stores at once.

    The stores are joined into one, ids with the name of their store in front. Go on with it on a store of its own:
    `fullrank finetune`, or `fullrank train --from`; without a step of training by --set training.max_epochs=0.

    \b
    fullrank pretrain srt --data data/toys --data data/films --weights 1,0.25 --out runs/general
    fullrank train --from runs/general --data data/shop --out runs/zero-shot --set training.max_epochs=0
    fullrank finetune runs/general --data data/shop --out runs/shop
    """
    check_recipe(recipe, settings)
    from fullrank import api
    from fullrank.data.events.join import join_stores
    from fullrank.training.run_folder import check_place

    output = Output(as_json)
    check_place(out, overwrite=overwrite)  # before the stores are joined
    place = joined if joined is not None else out.parent / f"{out.name}-data"
    store = join_stores(data, place, weights=_numbers(weights), overwrite=overwrite)
    output.say(f"{store.path}: {store.num_events:,} events of {store.num_users:,} users on {store.num_items:,} items")
    run = api.train(
        recipe, store, out, set=settings or (), overwrite=overwrite, device=device, progress=not output.silent
    )
    report(output, run)


def _numbers(text: str | None) -> list[float] | None:
    if text is None:
        return None
    try:
        return [float(one) for one in text.split(",")]
    except ValueError:
        raise UserError(
            f"--weights {text!r} must be numbers with commas between them, such as 1,0.5", code="not-a-number"
        ) from None
