"""`fullrank export`: a run for ONNX, torch or faiss, without this library, or as the folder to ship for it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from fullrank.cli.option_groups import Written
from fullrank.cli.options import MovedStore, RunFolder, flag, option
from fullrank.cli.output import Output, seconds
from fullrank.cli.verbs import verb
from fullrank.core.errors import UserError

if TYPE_CHECKING:
    from fullrank.serving.export.folder import Exported


@verb()
def export(
    run: RunFolder,
    out: Annotated[Path, option("FOLDER", "The folder to write.")],
    output: Written,
    to: Annotated[str, option("onnx|torch|faiss|folder", "What is written.")] = "onnx",
    k: Annotated[int | None, option("N", "Items in the list of a graph.  [default: 100]", min=1)] = None,
    seen: Annotated[
        str | None, option("exclude|keep", "Whether a graph lists items of the history.  [default: exclude]")
    ] = None,
    int8: Annotated[bool, flag("--int8", "With --to faiss: store vectors in 8 bits, measure the recall.")] = False,
    logs: Annotated[bool, flag("--logs", "With --to folder: keep the metrics of the training too.")] = False,
    data: MovedStore = None,
) -> None:
    """Write a run for ONNX, torch, faiss, or to ship.

    A recommender's graph takes histories and gives the k best items: the mask of seen and excluded
    items, and the selection, are inside. A ranking model's gives probabilities. The graph is kept
    only where it answers as the run does; how far apart they are is printed. Needs the extra
    `export`, or `codes` for faiss.

    `--to folder` is a run without its checkpoints, which needs neither the store nor an extra:
    `recommend`, `predict` and `serve` take it anywhere. It goes into a new folder.

    \b
    fullrank export runs/sasrec --to folder --out ship/sasrec
    fullrank export runs/sasrec --out exports/sasrec
    fullrank export runs/sasrec --to torch --k 20 --seen keep --out exports/sasrec-torch
    fullrank export runs/sasrec --to faiss --int8 --out exports/vectors
    """
    from fullrank.core.specs_alone import ask_alone

    ask_alone("fullrank.serving.export.make", lambda there: there.check_to(to))
    if to == "folder":
        ask_alone("fullrank.run", lambda there: there.require_empty(out))
    from fullrank import api
    from fullrank.run import Run
    from fullrank.serving.export.folder import require_replaceable_export

    if to != "folder":
        require_replaceable_export(out, overwrite=output.overwrite)
    elif output.overwrite:
        raise UserError("--to folder goes into a new folder: leave --overwrite out", code="option-without-effect")

    exported: Exported | Run = api.export(run, out, to=to, k=k, seen=seen, int8=int8, data=data, logs=logs)
    if isinstance(exported, Run):
        facts = {"to": to, "problem": exported.spec.problem, "files": exported.manifest["files"]}
    else:
        _report(output, exported)
        facts = {key: exported.manifest[key] for key in ("to", "problem", "inputs", "outputs", "parity", "files")}
    size = sum(entry["bytes"] for entry in facts["files"].values())
    output.say(f"{exported.path}: {size / 2**20:.1f} MB in {seconds(output.spent)}")
    output.finish({"export": exported.path, **facts, "seconds": output.spent})


def _report(output: Output, exported: Exported) -> None:
    """Print the ports of an exported model, and how near it comes to the run."""
    for side in ("inputs", "outputs"):
        tensors = exported.manifest[side]
        rows = [[t["name"], t["dtype"], " x ".join(map(str, t["shape"])), t["meaning"]] for t in tensors]
        output.table((side, "type", "shape", "meaning"), rows)
    parity = exported.parity
    if exported.to == "faiss":
        output.say(
            f"recall@10 {parity['recall@10']:.4f} against exact lists, {parity['users']:,} users "
            f"({parity['histories']})"
        )
    else:
        same = f", {parity['same_places']:.2%} of places alike" if "same_places" in parity else ""
        output.say(
            f"parity: {parity['rows']} rows, largest difference of a score {parity['largest_difference']:.2g} (allowed "
            f"{parity['tolerance']:g}){same}"
        )
