"""`fullrank train`: a recipe and a store to a run folder."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from fullrank.cli.early_checks import check_place, check_recipe, check_runs, check_settings, check_store
from fullrank.cli.option_groups import RunOut
from fullrank.cli.options import argument, flag, option
from fullrank.cli.output import Output, seconds
from fullrank.cli.verbs import verb
from fullrank.core.errors import command_line
from fullrank.core.files import JsonObject
from fullrank.core.log import printable

if TYPE_CHECKING:
    from fullrank.run import Run
    from fullrank.training import Callback


USUAL = {
    "training.max_epochs=N": ("epochs", "max-epochs", "num-epochs", "n-epochs"),
    "training.lr=X": ("lr", "learning-rate"),
    "training.batch_size=N": ("batch-size", "bs"),
    "training.weight_decay=X": ("weight-decay", "wd"),
    "training.patience=N": ("patience", "early-stopping"),
    "training.precision=bf16": ("precision", "bf16"),
    "model.dim=N": ("dim", "hidden-size", "embedding-dim", "embedding-size", "n-factors"),
    "model.max_length=N": ("max-length", "max-len", "maxlen", "max-seq-length"),
    "model.encoder.layers=N": ("layers", "num-layers", "n-layers"),
    "model.encoder.attention.heads=N": ("heads", "num-heads", "n-heads"),
    "model.encoder.dropout=X": ("dropout", "dropout-rate"),
    "model.loss=NAME": ("loss",),
    "evaluation.selection=NAME": ("metric", "valid-metric"),
    "seed=N": ("seed", "random-state"),
}
"""Setting -> its options in other tools."""


def usual_setting(option: str) -> str | None:
    """The setting that an option of other tools (`--epochs`) means, as `--set` takes it; None of others."""
    name = option.removeprefix("--").replace("_", "-").lower()
    return next((setting for setting, names in USUAL.items() if name in names), None)


@dataclass(frozen=True)
class RayOptions:
    """The processes of a cluster that train."""

    ray: Annotated[
        str | None, option("ADDRESS", "Train on a Ray cluster: auto, local (one is started here) or HOST:PORT.")
    ] = None
    workers: Annotated[int | None, option("N", "Processes on Ray.  [default: 1]")] = None
    min_workers: Annotated[int | None, option("N", "Go on with so many where nodes are lost.  [default: all]")] = None
    worker_cpus: Annotated[int | None, option("N", "CPUs of a process on Ray, and its threads.  [default: 1]")] = None


@verb()
def train(
    output: RunOut,
    ray: RayOptions,
    data: Annotated[
        Path | None, option("STORE", "The store, as `fullrank prepare` writes it; with --resume it may be left out.")
    ] = None,
    recipe: Annotated[
        str | None,
        argument(
            "RECIPE",
            "A recipe's name (`fullrank list recipes`), a function (module:function), or a YAML or "
            "JSON file; with --from or --resume it may be left out.",
        ),
    ] = None,
    source: Annotated[
        Path | None,
        option(
            "RUN", "Start from this run's weights; without RECIPE, with its settings.", "--from", callback=check_runs
        ),
    ] = None,
    loggers: Annotated[
        list[str] | None,
        option("NAME", "Log to tensorboard, csv, mlflow, wandb, ... too; may be repeated.", "--logger"),
    ] = None,
    watch: Annotated[
        bool,
        flag(
            "--watch",
            "Measure popularity collapse after each epoch, and raise an alarm when it comes; of a ranking model, "
            "the effective rank behind each layer.",
        ),
    ] = False,
    checkpoints: Annotated[
        str | None,
        option("URL", "Copy the run here at each checkpoint (s3://..., gs://..., a path); --resume goes on from it."),
    ] = None,
) -> None:
    """Train a model on a store and write a run folder.

    The weights of the epoch with the best validation metric are kept. --set changes any setting of the
    recipe (`fullrank show RECIPE` prints them all), such as seed=1, training.max_epochs=5 or model.dim=256.
    Several processes: `torchrun --nproc-per-node 2 -m fullrank train ...`, or on a cluster --ray.

    \b
    fullrank train sasrec --data data/shop --out runs/sasrec
    fullrank train sasrec --data data/shop --out runs/seed1 --set seed=1 --set training.max_epochs=10
    fullrank train mine.yaml --data data/shop --out runs/mine --logger tensorboard
    fullrank train --out runs/sasrec --resume
    fullrank train sasrec --data data/shop --out runs/watched --watch
    fullrank train --from runs/sasrec --data data/shop-may --out runs/sasrec-may
    fullrank train rankelastor --data data/ctr --out runs/rankelastor
    fullrank train sasrec --data data/shop --out runs/sasrec --ray auto --workers 4 --checkpoints s3://bucket/sasrec
    """
    from fullrank.core.checks import check_given, check_one_way

    out = output.out
    if not output.resume:
        remedy = "name one (`fullrank list recipes`), a YAML file, or a run by --from"
        check_given("a recipe", source if recipe is None else recipe, remedy, code="missing-argument")
        check_given("--data", data, "name the store to train on", code="missing-option")
    check_one_way(
        {
            "--resume, which goes on with the run,": output.resume or None,
            "--overwrite, which throws it away,": output.overwrite or None,
        }
    )
    if recipe is not None and recipe != "same":
        check_recipe(recipe, output.settings)
    elif source is not None:
        check_settings(source, output.settings or ())
    check_store(data)
    if not output.resume:
        check_place(out, overwrite=output.overwrite)
    elif checkpoints is None and (recipe is None or data is None):
        check_runs(out)
    from fullrank import api

    callbacks: list[Callback] = []
    if watch:
        from fullrank.analysis.watch import Watch

        callbacks.append(Watch())
    old = _identity(out)
    try:
        run = api.train(
            recipe,
            data,
            out,
            set=output.settings or (),
            resume=output.resume,
            overwrite=output.overwrite,
            init_from=source,
            loggers=loggers or (),
            callbacks=callbacks,
            device=output.device,
            progress=not output.silent,
            checkpoints=checkpoints,
            **vars(ray),
        )
    except KeyboardInterrupt:
        replaced = not output.overwrite or _identity(out) != old  # until then its checkpoints are the old run's
        if (out / "checkpoints").is_dir() and replaced and not output.silent:
            logged = [word for name in loggers or () for word in ("--logger", name)]
            again = ["--resume", *logged, *["--watch"] * watch]
            command = command_line("train", "--out", out, *again)
            print(printable(f"{command} goes on from the last checkpoint"), file=sys.stderr)
        raise
    report(output, run)


def _identity(folder: Path) -> int | None:
    """The inode of a folder, which changes where another folder takes its
    place; None where it is absent."""
    return folder.stat().st_ino if folder.exists() else None


def report(output: Output, run: Run) -> None:
    """Print a trained run, its best epoch, and the command to evaluate it."""
    from fullrank.evaluation.spec import HISTORY

    top = best(run)
    output.say(f"{run.path}: {run.spec.recipe}, {run.manifest['parameters']:,} parameters, {seconds(output.spent)}")
    if top is not None:
        ranked = run.spec.problem == "retrieval" and run.spec.lists.selection_seen
        policy = f", {HISTORY[ranked]}" if ranked else ""
        output.say(
            f"best epoch {top['epoch']:g}: validation {run.spec.evaluation.selection} {top['value']:.4f}{policy}"
        )
    output.say(f"evaluate it: {command_line('evaluate', run.path, '--split', 'test')}", wrap=False)
    output.finish(
        {
            "run": run.path,
            "recipe": run.spec.recipe,
            "seed": run.spec.seed,
            "parameters": run.manifest["parameters"],
            "data": run.manifest["data"],
            "best": top,
            "epochs": epochs(run),
            "seconds": output.spent,
        }
    )


def best(run: Run) -> JsonObject | None:
    """The epoch whose weights the run kept: {"epoch", "metric", "value"}; None for a model without epochs."""
    from fullrank.evaluation.spec import selection_sign

    name = f"validation/{run.spec.evaluation.selection}"
    rows = [row for row in run.rows() if row.get("event") == "epoch" and name in row]
    if not rows:
        return None
    top = max(rows, key=lambda row: selection_sign(run.spec.evaluation) * row[name])
    return {"epoch": top["epoch"], "metric": name, "value": top[name]}


def epochs(run: Run) -> int:
    """Epochs that were trained."""
    return max((int(row["epoch"]) for row in run.rows() if row.get("event") == "epoch"), default=0)
