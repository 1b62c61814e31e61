"""`fullrank pretrain`, `fisher`, `finetune` and `grow`: take what a model learned to other stores and new items.

One model of several stores is what others start from; a run goes on with another store,
its blocks freed one by one, and holds on to the weights that mattered; or it learns to
know new items without training.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from fullrank.cli.early_checks import check_recipe, check_settings, check_store
from fullrank.cli.option_groups import RunOut, WrittenByModel
from fullrank.cli.options import Device, RunFolder, Settings, Word, argument, check_out, choice, flag, option
from fullrank.cli.output import Output
from fullrank.cli.train import report
from fullrank.cli.verbs import verb
from fullrank.core.errors import UserError


@verb()
def pretrain(
    recipe: Annotated[str, argument("RECIPE", "A recipe whose items are made of text or vectors, such as srt.")],
    data: Annotated[list[Path], option("STORE", "A store; give two or more.", callback=check_store)],
    out: Annotated[Path, option("FOLDER", "The run folder to write.")],
    output: Output,
    weights: Annotated[
        str | None, option("X,X,...", "How often the rows of each store count in an epoch.  [default: 1 each]")
    ] = None,
    joined: Annotated[Path | None, option("FOLDER", "Where the joined store is written.  [default: OUT-data]")] = None,
    settings: Settings = None,
    overwrite: Annotated[bool, flag("--overwrite", "Replace the run and the joined store.")] = False,
    device: Device = "auto",
) -> None:
    """Train one model on several stores at once.

    The stores are joined into one, ids with the name of their store in front. Go on with it on a
    store of its own: `fullrank finetune`, or `fullrank train --from`; without a step of training by
    --set training.max_epochs=0.

    \b
    fullrank pretrain srt --data data/toys --data data/films --weights 1,0.25 --out runs/general
    fullrank train --from runs/general --data data/shop --out runs/zero-shot --set training.max_epochs=0
    fullrank finetune runs/general --data data/shop --out runs/shop
    """
    check_recipe(recipe, settings)
    from fullrank import api
    from fullrank.data.events.join import join_stores
    from fullrank.training.run_folder import check_place

    check_place(out, overwrite=overwrite)  # before the stores are joined
    folder = joined if joined is not None else out.parent / f"{out.name}-data"
    store = join_stores(data, folder, weights=_numbers(weights), overwrite=overwrite)
    output.say(f"{store.path}: {store.num_events:,} events of {store.num_users:,} users on {store.num_items:,} items")
    run = api.train(
        recipe, store, out, set=settings or (), overwrite=overwrite, device=device, progress=not output.silent
    )
    report(output, run)


def _numbers(text: str | None) -> list[float] | None:
    """The numbers in `1,0.25`; None for no text."""
    if text is None:
        return None
    try:
        return [float(number) for number in text.split(",")]
    except ValueError:
        raise UserError(
            f"--weights {text!r} must be numbers with commas between them, such as 1,0.5", code="not-a-number"
        ) from None


@verb()
def fisher(
    run: RunFolder,
    out: Annotated[Path, option("FILE", "Write it there (.safetensors).")],
    output: WrittenByModel,
    data: Annotated[
        Path | None, option("STORE", "The store of the run, where it was moved.", callback=check_store)
    ] = None,
    batches: Annotated[int, option("N", "Training batches to read.", min=1)] = 3000,
    batch_size: Annotated[
        int | None, option("N", "Events or rows in a batch; by default as in training.", min=1)
    ] = None,
) -> None:
    """Measure how much each weight of a run matters.

    That is the diagonal of the Fisher information, estimated on training batches.

    `fullrank finetune --ewc FILE`, or the penalty ewc of any training that starts from the run,
    then holds on to the weights that matter (elastic weight consolidation).

    \b
    fullrank fisher runs/toys --batches 500 --out runs/toys-fisher.safetensors
    fullrank finetune runs/toys --data data/shop --out runs/shop --ewc runs/toys-fisher.safetensors
    """
    check_out(out, output.overwrite)
    from fullrank.training.finetune import fisher_information as make

    with output.progress(f"fisher {run}") as progress:
        path = make(
            run, out, data=data, batches=batches, batch_size=batch_size, device=output.device, progress=progress
        )
    output.say(f"{path}: of {batches:,} batches, {path.stat().st_size / 2**20:.1f} MiB")
    output.finish({"run": run, "out": path, "batches": batches, "batch_size": batch_size})


@verb()
def finetune(
    run: RunFolder,
    data: Annotated[Path, option("STORE", "The store to fine-tune on.", callback=check_store)],
    output: RunOut,
    stages: Annotated[
        int | None,
        option(
            "N", "Blocks to free one by one before all is trained; 0 trains all at once.  [default: every block]", min=0
        ),
    ] = None,
    stage_epochs: Annotated[int | None, option("N", "Epochs of each stage.  [default: 10]", min=1)] = None,
    ewc: Annotated[
        Path | None, option("FILE", "Hold on to the weights that matter: a file of `fullrank fisher`.")
    ] = None,
    ewc_weight: Annotated[float | None, option("X", "How firmly --ewc holds on to them.  [default: 100]")] = None,
) -> None:
    """Fine-tune a run on another store, in stages.

    The top block is trained first, then the top two, at last everything. Each stage starts with a
    fresh optimizer and schedule; its run stands in FOLDER.stages. Settings are those of RUN but for
    --set, such as training.max_epochs=20 (epochs of the last stage). Items made of text or of
    vectors may be any; of items that have a vector each, those that RUN knows start from theirs.

    \b
    fullrank finetune runs/toys --data data/shop --out runs/shop
    fullrank finetune runs/toys --data data/shop --out runs/shop --stages 0 --set training.lr=1e-4
    """
    check_settings(run, output.settings or ())
    from fullrank.training.finetune import finetune as make

    tuned = make(
        run,
        data,
        output.out,
        stages=stages,
        stage_epochs=stage_epochs,
        ewc=ewc,
        ewc_weight=ewc_weight,
        set=output.settings or (),
        resume=output.resume,
        overwrite=output.overwrite,
        device=output.device,
        progress=not output.silent,
    )
    report(output, tuned)


@verb()
def grow(
    run: RunFolder,
    output: Output,
    items: Annotated[Path, option("FILE", "The new items: ids, and what is known of them.")],
    out: Annotated[Path, option("FOLDER", "The new run; RUN stays as it is.")],
    start: Annotated[
        Word,
        choice(
            "features|neighbours|mean",
            "Where a new item's vector comes from: its features, the items with the same --like, or all items.",
        ),
    ] = "features",
    like: Annotated[
        str | None, option("NAME", "Column whose values make items neighbours, for --start neighbours.")
    ] = None,
    codes: Annotated[
        Path | None, option("FOLDER", "Semantic ids of old and new items, for a run whose items have them.")
    ] = None,
    item: Annotated[str, option("NAME", "Column of FILE with the ids.", "--item-col")] = "item_id",
) -> None:
    """Add new items to a trained run, without training.

    The items so far keep their ids, vectors and scores; a new one gets a vector by --start. FILE
    may hold any of the run's columns of items; others are empty.

    \b
    fullrank grow runs/sasrec --items new.parquet --start neighbours --like category --out runs/today
    fullrank grow runs/srt --items new.parquet --out runs/today
    """
    from fullrank.run import Run
    from fullrank.run.grow import grow_catalog

    opened = Run.open(run)
    before = opened.catalog.size
    grown = grow_catalog(opened, items, out, item=item, start=start, like=like, codes=codes)
    catalog = grown.catalog
    output.say(f"{grown.path}: {catalog.size:,} items, {catalog.size - before:,} of them new")
    output.finish(
        {
            "run": grown.path,
            "grown_from": run,
            "items": catalog.size,
            "new": catalog.size - before,
            "start": start,
            "id_map_version": catalog.version,
        }
    )
