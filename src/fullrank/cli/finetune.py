"""`fullrank finetune`: a run goes on with another store, its blocks freed one by one."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from fullrank.cli.options import AsJson, Device, RunFolder, Settings
from fullrank.cli.output import Output
from fullrank.cli.told_early import check_settings, check_store
from fullrank.cli.train import report


def add(app: typer.Typer) -> None:
    app.command("finetune")(finetune)


def finetune(
    run: RunFolder,
    data: Annotated[
        Path, typer.Option("--data", metavar="STORE", callback=check_store, help="The store to fine-tune on.")
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="The run folder to write.")],
    stages: Annotated[
        int | None,
        typer.Option(
            "--stages",
            metavar="N",
            min=0,
            help="Blocks to free one by one before all is trained; 0 trains all at once.  [default: every block]",
        ),
    ] = None,
    stage_epochs: Annotated[
        int | None,
        typer.Option("--stage-epochs", metavar="N", min=1, help="Epochs of each stage.  [default: 10]"),
    ] = None,
    ewc: Annotated[
        Path | None,
        typer.Option("--ewc", metavar="FILE", help="Hold on to the weights that matter: a file of `fullrank fisher`."),
    ] = None,
    ewc_weight: Annotated[
        float | None, typer.Option("--ewc-weight", metavar="X", help="How much.  [default: 100]")
    ] = None,
    settings: Settings = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where it was cut off.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the runs that are there.")] = False,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Fine-tune a run on another store, in stages.

    The top block is trained first, then the top two, at last everything. Each stage starts with a fresh optimizer and
    schedule; its run stands in FOLDER.stages. Settings are those of RUN but for --set, such as training.max_epochs=20
    (epochs of the last stage). Items made of text or of vectors may be any; of items that have a vector each, those
    that RUN knows start from theirs.

    \b
    fullrank finetune runs/toys --data data/shop --out runs/shop
    fullrank finetune runs/toys --data data/shop --out runs/shop --stages 0 --set training.lr=1e-4
    """  # fmt: skip
    check_settings(run, settings or ())
    from fullrank.training.cold_start.finetune import finetune as make

    output = Output(as_json)
    begun = time.perf_counter()
    made = make(
        run, data, out, stages=stages, stage_epochs=stage_epochs, ewc=ewc, ewc_weight=ewc_weight, set=settings or (),
        resume=resume, overwrite=overwrite, device=device, progress=not output.silent,
    )  # fmt: skip
    report(output, made, time.perf_counter() - begun)
