"""Fit a model to a store and write a run folder: start, resume, or go on from an earlier run."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning
import torch

from fullrank import __version__
from fullrank.batch import Batch
from fullrank.data.loader import Loader
from fullrank.data.pack import Store
from fullrank.errors import UserError
from fullrank.experiment import Experiment, Training
from fullrank.recommender import RecommenderModel
from fullrank.run import Run, load_weights, write_run, write_weights
from fullrank.training import Callback
from fullrank.training.checkpoint import read_checkpoint
from fullrank.training.conductor import Conductor
from fullrank.training.journal import Journal, make_loggers
from fullrank.training.module import FitModule
from fullrank.training.progress import TrainingProgress
from fullrank.training.warm_start import copy_weights


def train(
    experiment: Experiment,
    store: Store,
    out: str | Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    init_from: Run | None = None,
    loggers: tuple[str, ...] = (),
    callbacks: tuple[Callback, ...] = (),
    progress: bool = True,
) -> Run:
    """Train `experiment` on `store` and return the run folder `out`, opened.

    `resume` continues a run of the same spec and data that was cut off, to the same weights bit for bit (on the CPU,
    with one thread count). `init_from` starts from the weights of an earlier run; items are matched by external id.
    """
    folder = Path(out)
    if _rank() == 0:  # the others may come when it has begun to write
        _check_folder(folder, experiment, store, resume=resume, overwrite=overwrite)
    if experiment.training.patience is not None and len(store.histories("validation")[0]) == 0:
        raise UserError("the store has no validation targets to stop by: set training.patience=null to run all epochs")
    torch.manual_seed(experiment.seed)
    model = experiment.model.build(store.catalog)  # type: ignore[attr-defined]
    if init_from is not None and not resume:
        copy_weights(model, store.catalog, init_from)
    manifest = {
        "fullrank": __version__,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "parameters": sum(p.numel() for p in model.parameters()),
        "init_from": None if init_from is None else str(init_from.path),
        "data": {"path": str(store.path.resolve()), "split_fingerprint": store.fingerprint, **_counts(store)},
    }
    if _rank() == 0:
        write_run(folder, experiment, store.catalog, manifest)
    if not isinstance(model, RecommenderModel):
        if loggers:
            raise UserError("a baseline is not trained in steps: leave out the loggers")
        model.fit(store)
        write_weights(folder, model)
    else:
        _fit(model, experiment, store, folder, resume, loggers, callbacks, progress)
    return Run.open(folder)


def _fit(
    model: RecommenderModel,
    experiment: Experiment,
    store: Store,
    out: Path,
    resume: bool,
    loggers: tuple[str, ...],
    callbacks: tuple[Callback, ...],
    progress: bool,
) -> None:
    training, world = experiment.training, int(os.environ.get("WORLD_SIZE", "1"))
    loader = make_loader(model, store, training, experiment.seed, world)
    total = loader.steps_per_epoch * training.max_epochs
    kept = read_checkpoint(out) if resume else None
    state: dict[str, Any] = {}
    if kept is not None:
        load_weights(model, kept[0], out)
        state = kept[2]
        if state.get("finished"):
            return
    first = state.get("step", 0)
    module = FitModule(model, training, experiment.seed, first=first, total=total, penalties=set(model.penalties))
    module.optimizer_state = None if kept is None else kept[1]
    journal = Journal(out, make_loggers(loggers, out) if _rank() == 0 else ())
    if _rank() == 0:
        journal.keep_until(first if resume else -1)
    shown = TrainingProgress(progress and _rank() == 0, total, first)
    conductor = Conductor(experiment, loader, out, journal, shown, callbacks, state)
    mine = range(_rank(), loader.shards, world)
    try:
        _trainer(training, world, total - first, conductor).fit(module, _Stream(loader, first, total, mine))
    except SystemExit:  # Lightning turns an interrupt into one
        raise KeyboardInterrupt from None
    finally:
        shown.close()
    for logger in journal.loggers:
        logger.finalize("success")


def make_loader(model: RecommenderModel, store: Store, training: Training, seed: int, world: int = 1) -> Loader:
    """The batches that training reads, in shards for every process and micro-batch."""
    return Loader(
        store,
        model.task.segments,
        by=training.batch_by,
        size=training.batch_size,
        seed=seed,
        shards=training.accumulate * world,
        counts=model.task.counts,
    )


class _Stream:
    """What Lightning iterates: this process's shards of every batch from `first` to `stop`."""

    def __init__(self, loader: Loader, first: int, stop: int, shards: range):
        self.loader, self.first, self.stop, self.shards = loader, first, stop, shards

    def __iter__(self) -> Iterator[Batch]:
        return self.loader.iterate(self.first, self.stop, self.shards)


def _trainer(training: Training, world: int, steps: int, conductor: Conductor) -> lightning.Trainer:
    import logging

    for name in ("lightning.pytorch", "lightning.fabric", "lightning.pytorch.utilities.rank_zero"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning.*")
    gpu = torch.cuda.is_available()
    return lightning.Trainer(
        accelerator="gpu" if gpu else "cpu",
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        num_nodes=max(1, world // max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))),
        strategy="ddp" if world > 1 else "auto",
        precision="bf16-mixed" if training.precision == "bf16" else "32-true",
        max_steps=steps,
        max_epochs=-1,
        accumulate_grad_batches=training.accumulate,
        gradient_clip_val=training.clip_norm,
        callbacks=[conductor],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        limit_val_batches=0,
    )


def _check_folder(folder: Path, experiment: Experiment, store: Store, *, resume: bool, overwrite: bool) -> None:
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; give a folder for the run")
    if not (folder / "manifest.json").exists():
        if folder.exists() and any(folder.iterdir()) and not (folder / "spec.json").exists() and not overwrite:
            raise UserError(f"{folder} holds files that are no run; choose an empty or new folder")
        return
    if not resume:
        if not overwrite:
            raise UserError(
                f"{folder} holds a run; continue it with --resume, replace it with --overwrite, or choose another"
            )
        (folder / "checkpoints" / "last.json").unlink(missing_ok=True)
        (folder / "weights.safetensors").unlink(missing_ok=True)
        return
    old = Run.open(folder)
    if old.spec.dump() != experiment.dump():
        raise UserError(f"{folder} was started with another spec: {differing(old.spec.dump(), experiment.dump())}")
    if old.manifest["data"]["split_fingerprint"] != store.fingerprint:
        raise UserError(
            f"{folder} was started on other data (the split fingerprints differ); resume with the same store"
        )


def differing(a: Any, b: Any, path: str = "") -> str:
    """The first setting in which two dumped specs differ, as a sentence part."""
    if isinstance(a, dict) and isinstance(b, dict):
        for key in [*a, *(k for k in b if k not in a)]:
            if a.get(key) != b.get(key):
                return differing(a.get(key), b.get(key), f"{path}.{key}" if path else key)
    return f"{path} was {a!r} and is now {b!r}"


def _counts(store: Store) -> dict[str, int]:
    return {"users": store.num_users, "items": store.num_items, "events": store.num_events}


def _rank() -> int:
    return int(os.environ.get("RANK", "0"))
