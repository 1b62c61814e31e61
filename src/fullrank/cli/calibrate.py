"""`fullrank calibrate`: a ranking model whose probabilities are corrected on the validation split."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from fullrank.cli.options import AsJson, Device, MovedStore, RunFolder, Word, choice, option
from fullrank.cli.output import Output
from fullrank.core.errors import command_line


def calibrate(
    run: RunFolder,
    out: Annotated[Path, option("--out", "FOLDER", "The new run; RUN stays as it is.")],
    method: Annotated[
        Word, choice("--method", "isotonic|platt", "Isotonic regression, or Platt's line in logits.")
    ] = "isotonic",
    data: MovedStore = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Correct the click probabilities of a ranking model.

    The correction is fitted on the validation split, never on test, and lies in the new run: predict, evaluate, serve,
    cascade and export apply it. It rises everywhere, so the order of impressions (auc, gauc) stays.

    \b
    fullrank calibrate runs/dcnv2 --out runs/dcnv2-calibrated
    fullrank evaluate runs/dcnv2-calibrated --split test
    """
    from fullrank import api
    from fullrank.run import Run

    output, opened = Output(as_json), Run.open(run)
    with output.progress(f"calibrate {run}") as tick:
        made = api.calibrate(opened, out, method=method, data=data, device=device, progress=tick)
    found = made.calibration
    assert found is not None
    output.say(f"{made.path}: {found.method}, fitted on {found.rows:,} validation impressions")
    evaluate = command_line("evaluate", made.path, "--split", "test")
    output.say(f"evaluate it, with what it was before: {evaluate}", wrap=False)
    output.finish({"run": made.path, "calibrated_from": run, **found.dump()})
