"""`fullrank fisher`: how much each weight of a run matters to it, for fine-tuning that keeps what was learned."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from fullrank.cli.options import AsJson, Device, Overwrite, RunFolder, check_out, option
from fullrank.cli.output import Output
from fullrank.cli.told_early import check_store


def fisher(
    run: RunFolder,
    out: Annotated[Path, option("--out", "FILE", "Write it there (.safetensors).")],
    data: Annotated[
        Path | None,
        option("--data", "STORE", "The store of the run, where it was moved.", callback=check_store),
    ] = None,
    batches: Annotated[int, option("--batches", "N", "Training batches to read.", min=1)] = 3000,
    batch_size: Annotated[
        int | None,
        option("--batch-size", "N", "Events or rows in a batch; by default as in training.", min=1),
    ] = None,
    overwrite: Overwrite = False,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Measure how much each weight of a run matters.

    That is the diagonal of the Fisher information, estimated on training batches.

    `fullrank finetune --ewc FILE`, or the penalty ewc of any training that starts from the run, then holds on to the
    weights that matter (elastic weight consolidation).

    \b
    fullrank fisher runs/toys --batches 500 --out runs/toys-fisher.safetensors
    fullrank finetune runs/toys --data data/shop --out runs/shop --ewc runs/toys-fisher.safetensors
    """
    check_out(out, overwrite)
    from fullrank.training.finetune import fisher_information as make

    output = Output(as_json)
    with output.progress(f"fisher {run}") as progress:
        made = make(run, out, data=data, batches=batches, batch_size=batch_size, device=device, progress=progress)
    output.say(f"{made}: of {batches:,} batches, {made.stat().st_size / 2**20:.1f} MiB")
    output.finish({"run": run, "out": made, "batches": batches, "batch_size": batch_size})
