"""`fullrank finetune`: a run goes on with another store, its blocks freed one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from fullrank.cli.option_groups import RunOut
from fullrank.cli.options import RunFolder, option
from fullrank.cli.output import Output
from fullrank.cli.told_early import check_settings, check_store
from fullrank.cli.train import report


def finetune(
    run: RunFolder,
    data: Annotated[Path, option("--data", "STORE", "The store to fine-tune on.", callback=check_store)],
    how: RunOut,
    stages: Annotated[
        int | None,
        option(
            "--stages",
            "N",
            "Blocks to free one by one before all is trained; 0 trains all at once.  [default: every block]",
            min=0,
        ),
    ] = None,
    stage_epochs: Annotated[
        int | None,
        option("--stage-epochs", "N", "Epochs of each stage.  [default: 10]", min=1),
    ] = None,
    ewc: Annotated[
        Path | None,
        option("--ewc", "FILE", "Hold on to the weights that matter: a file of `fullrank fisher`."),
    ] = None,
    ewc_weight: Annotated[
        float | None, option("--ewc-weight", "X", "How firmly --ewc holds on to them.  [default: 100]")
    ] = None,
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
    check_settings(run, how.settings or ())
    from fullrank.training.finetune import finetune as make

    output = Output(how.as_json)
    made = make(
        run, data, how.out, stages=stages, stage_epochs=stage_epochs, ewc=ewc, ewc_weight=ewc_weight,
        set=how.settings or (), resume=how.resume, overwrite=how.overwrite, device=how.device,
        progress=not output.silent,
    )  # fmt: skip
    report(output, made)
