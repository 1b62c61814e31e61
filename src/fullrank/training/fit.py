"""Fit a model to a store and write a run folder: start, resume, or go on from an earlier run."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

import lightning
import torch
from lightning.fabric.plugins.environments import TorchElasticEnvironment

from fullrank import __version__
from fullrank.core.checks import with_defaults
from fullrank.core.device import resolve_device
from fullrank.core.errors import UserError
from fullrank.core.files import foreign_files, without_dots
from fullrank.core.locks import folder_lock
from fullrank.core.log import logger
from fullrank.core.registry import kinds
from fullrank.data.events.loader import Batches
from fullrank.data.impressions.store import AnyStore
from fullrank.models.ranking.lightgbm import BoostedTrees
from fullrank.models.ranking.model import RankingModule
from fullrank.models.sequential.model import RecommenderModel
from fullrank.run import Run, build_model, is_run, load_weights, opened_run, write_run, write_weights
from fullrank.run.checkpoint import (
    Checkpoint,
    CheckpointState,
    check_run_weights,
    forget_other_checkpoints,
    read_checkpoint,
)
from fullrank.run.experiment import Experiment, Training
from fullrank.run.manifest import reopen_run, seal_run
from fullrank.training import FIT_DEFAULTS, FitKeywords
from fullrank.training.data_module import AnyBatch, data_manifest, data_module_of
from fullrank.training.distributed import join_processes, launched, lost_peers_refused, sum_over_ranks
from fullrank.training.log import MetricsLog, TrainingProgress, make_loggers
from fullrank.training.loop import FitModule, TrainingLoop
from fullrank.training.mirror import Mirror
from fullrank.training.optim import make_optimizer
from fullrank.training.prepared_model import compile_part, freeze_below
from fullrank.training.run_folder import RunFolder, check_folder, initial_run
from fullrank.training.settled import selection_settled, settled
from fullrank.training.shards import check_encoder, own, parameter_count, shard_blocks, shard_of, sharded_parameters
from fullrank.training.trees import check_trees, fit_at_once

log = logger(__name__)
WARM = 2
"""Steps that are not timed: the first ones allocate."""
LEAST = 3
"""Steps timed, however long they take."""


def fit(experiment: Experiment, store: AnyStore, out: str | Path, **options: Unpack[FitKeywords]) -> Run:
    """Train `experiment` on `store` and return the run folder `out`, opened; it is locked while it is written."""
    options = with_defaults(options, FIT_DEFAULTS)
    folder, where = without_dots(out), resolve_device(options["device"])
    experiment = settled(experiment, where)
    here = launched()
    mirror = None if options["checkpoints"] is None else Mirror(options["checkpoints"])
    if mirror is not None and options["resume"]:  # several machines have to begin at one step
        mirror.restore(folder, unless_behind=here.world == 1)
    elif mirror is not None and here.rank == 0:
        mirror.require_free(overwrite=options["overwrite"])
    join_processes(where)
    if mirror is not None:
        sum_over_ranks(torch.zeros((), device=where))  # every process has downloaded what it needs
    with folder_lock(folder, "train") if here.rank == 0 else nullcontext():
        _fit_locked(experiment, store, folder, options, where, mirror)
        if mirror is not None and here.rank == 0:
            mirror.push(folder)  # sealed
    if mirror is not None and here.world > 1:
        sum_over_ranks(torch.zeros((), device=where))
        if here.rank > 0:  # on another machine, perhaps
            mirror.restore(folder)
    return Run.open(folder)


def _fit_locked(
    experiment: Experiment,
    store: AnyStore,
    folder: Path,
    options: FitKeywords,
    where: torch.device,
    mirror: Mirror | None,
) -> None:
    """Check all that can be checked, then train: nothing of an old run is lost before
    the new one has a checkpoint."""
    # The run that goes on, or the one that weights come from, and the data.
    resume, overwrite, first_rank = options["resume"], options["overwrite"], launched().rank == 0
    callbacks, loggers = tuple(options["callbacks"]), tuple(options["loggers"])
    init_from = None if options["init_from"] is None else opened_run(options["init_from"])
    resumed = Run.open(folder) if resume and is_run(folder) else None
    experiment = selection_settled(experiment, store, resumed)
    if first_rank:  # the others may come when it has begun to write
        check_folder(folder, experiment, store, resume=resume, overwrite=overwrite, init_from=init_from)
    resume = resumed is not None
    source = initial_run(folder) if resume else init_from
    # a run that was cut off has what it took over from its source in its own folder
    earlier = resumed if source is not None and resume else source
    data = data_module_of(experiment, store, earlier)
    if not data.validates:
        _without_validation(experiment.training)
    # The model, and whether everything that was asked for can be done with it.
    shard = shard_of(experiment, data.known, callbacks)
    check_encoder(experiment, callbacks)
    torch.manual_seed(experiment.seed)
    model: Any = build_model(experiment, data.known, where, shard)
    gradient = isinstance(model, RecommenderModel | RankingModule)
    if isinstance(model, BoostedTrees):
        check_trees(experiment.training)
    of_steps = {"loggers": loggers, "callbacks": callbacks, "init_from (--from)": init_from is not None}
    idle = [name for name, option in of_steps.items() if option]
    if not gradient and idle:
        raise without_gradients(experiment.recipe, f"leave out {' and '.join(idle)}")
    without_steps = (*kinds("baselines"), *kinds("blends"), *kinds("trees"))
    if gradient and source is not None and source.spec.model.kind_of() in without_steps:
        remedy = "leave out --from (init_from=), or name a run of a trained model"
        raise without_gradients(f"{source.path} ({source.spec.recipe})", remedy)
    for check in (getattr(callback, "check", None) for callback in callbacks):
        if callable(check):
            check(model, store)
    # The weights that it starts from, and the batches.
    checkpoint = read_checkpoint(folder) if resume else None
    penalties: list[Any] = [*model.penalties.values()] if isinstance(model, RecommenderModel) else []
    if source is not None and (checkpoint is None or any(penalty.reads_start for penalty in penalties)):
        data.warm_start(model, source)
    if gradient:
        _require_start(experiment.training, source, [p for p in penalties if p.reads_start])
        for penalty in penalties:
            penalty.begin(model)
        freeze_below(model, experiment.training.top_blocks)
        make_optimizer(model, experiment.training)  # for what it refuses
    untrained = gradient and experiment.training.max_epochs == 0
    loader = data.loader(model, launched().world) if gradient and not untrained else None
    if loader is not None and loader.total < experiment.training.batch_size and first_rank:
        log.warning(
            f"note: training.batch_size={experiment.training.batch_size:,} is more than the {loader.total:,} "
            f"{'events' if loader.by == 'tokens' else 'rows'} that an epoch has: each epoch is one step"
        )
    # The run folder: written from here on.
    tools = make_loggers(loggers, folder) if first_rank else ()
    run = RunFolder(folder, replaces=first_rank and overwrite and not resume and bool(foreign_files(folder)))
    try:
        if first_rank:
            run.begin(resume=resume)
        if first_rank and not resume:
            facts = {
                "fullrank": __version__,
                "torch": torch.__version__,
                "threads": torch.get_num_threads(),
                "parameters": parameter_count(model),
                **({} if loader is None else {"steps_per_epoch": loader.steps_per_epoch}),
                **({"size": model.size().dump()} if isinstance(model, RankingModule) else {}),
                "init_from": None if init_from is None else str(init_from.path.resolve()),
                "data": data_manifest(data),
            }
            write_run(run.path, experiment, data.known, facts)
        elif first_rank and not (checkpoint is not None and checkpoint.state.finished):
            reopen_run(run.path)
        if loader is None:
            begun = time.perf_counter()
            figures = {} if untrained else fit_at_once(model, store, experiment)
            write_weights(run.path, model)
            MetricsLog(run.path).add("fit", 0, 0, {"seconds": round(time.perf_counter() - begun, 3), **figures})
            seal_run(run.path)
            run.publish()
        else:
            metrics = MetricsLog(run.path, tools, wait=not run.published)
            loop = TrainingLoop(experiment, data, loader, run, metrics, callbacks, mirror)
            _fit(model, loop, checkpoint, where, progress=options["progress"])
            if first_rank:
                seal_run(run.path)
    finally:
        run.abandon()


def _fit(
    model: RecommenderModel | RankingModule,
    loop: TrainingLoop,
    checkpoint: Checkpoint | None,
    device: torch.device,
    *,
    progress: bool,
) -> None:
    """Take the optimizer steps from the checkpoint (or the first one) to the
    last, unless all are taken."""
    experiment, loader, out = loop.experiment, loop.loader, loop.out
    training, first_rank = experiment.training, launched().rank == 0
    total = loader.steps_per_epoch * training.max_epochs
    state = CheckpointState()
    if checkpoint is not None:
        checkpoint.check_total(total)
        load_weights(model, own(checkpoint.weights, sharded_parameters(model)), checkpoint.folder)
        if first_rank:
            forget_other_checkpoints(checkpoint.folder)
        state = checkpoint.state
        if state.finished:
            if first_rank:
                check_run_weights(out.path, state.run_weights)
            return
    compile_part(model, training, device)
    if training.shard_encoder:
        shard_blocks(model, device)
    module = FitModule(model, training, experiment.seed, total, checkpoint)
    if first_rank:
        loop.metrics_log.keep_until(state.step)
    progress_bar = TrainingProgress(progress and first_rank, total, state.step)
    loop.begin(state, progress_bar)
    try:
        _run_steps(module, loader, total, loop, device)
    finally:
        progress_bar.close()
    if first_rank:
        check_run_weights(out.path, loop.run_weights)  # those of before a resume may have been damaged since
    for tool in loop.metrics_log.loggers:
        tool.finalize("success")


def profile_step(
    model: RecommenderModel | RankingModule,
    loader: Batches,
    experiment: Experiment,
    seconds: float,
    device: torch.device,
) -> float:
    """Mean seconds of an optimizer step of the real training loop, over the first batches of an epoch.

    Those are in random order, so they stand for all. Takes about `seconds`; writes nothing, but
    trains the model. Not in it: validation, log rows and checkpoints.
    """
    experiment = settled(experiment, device)
    compile_part(model, experiment.training, device)
    total = loader.steps_per_epoch * experiment.training.max_epochs
    module = FitModule(model, experiment.training, experiment.seed, total)
    timer = _StepTimer(min(WARM, loader.steps_per_epoch), seconds)
    _run_steps(module, loader, loader.steps_per_epoch + timer.warm, timer, device)
    return sum(timer.times) / len(timer.times)


class _StepTimer(lightning.Callback):
    """Times optimizer steps, and ends training when it has enough of them."""

    def __init__(self, warm: int, seconds: float):
        self.warm, self.seconds = warm, seconds
        self.steps, self.times = 0, list[float]()
        self.begun = self.limit = 0.0

    def on_train_start(self, trainer: Any, module: Any) -> None:
        self.begun = time.perf_counter()
        self.limit = self.begun + self.seconds

    def on_train_batch_end(self, trainer: Any, module: FitModule, outputs: Any, batch: AnyBatch, index: int) -> None:  # type: ignore[override]
        if module.micro_batch:  # a step is all of its micro-batches
            return
        for value in module.take_terms().values():
            sum_over_ranks(value)  # as the loop does for its rows: waits for the device
        now, self.steps = time.perf_counter(), self.steps + 1
        if self.steps > self.warm:
            self.times.append(now - self.begun)
        self.begun = now
        trainer.should_stop = len(self.times) >= LEAST and now > self.limit


def _run_steps(
    module: FitModule, loader: Batches, stop: int, callback: lightning.Callback, device: torch.device
) -> None:
    """Let Lightning take the optimizer steps from the module's first to `stop`."""
    here = launched()
    stream = _Stream(loader, module.first, stop, range(here.rank, loader.shards, here.world))
    try:
        with lost_peers_refused():
            _trainer(module.training_spec, here.world, stop - module.first, callback, device).fit(module, stream)
    except SystemExit:  # Lightning turns an interrupt into one
        raise KeyboardInterrupt from None


@dataclass(frozen=True)
class _Stream:
    """Iterable for Lightning: this process's shards of every batch from `first` to `stop`."""

    loader: Batches
    first: int
    stop: int
    shards: range

    def __iter__(self) -> Iterator[AnyBatch]:
        return self.loader.iterate(self.first, self.stop, self.shards)


def _trainer(
    training: Training, world: int, steps: int, callback: lightning.Callback, device: torch.device
) -> lightning.Trainer:
    """Lightning's trainer, without all that this room does itself:
    validation, checkpoints, logs, bars."""
    import logging

    for name in ("lightning.pytorch", "lightning.fabric", "lightning.pytorch.utilities.rank_zero"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning.*")
    local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return lightning.Trainer(
        accelerator={"cuda": "gpu"}.get(device.type, device.type),
        devices=local if device.index is None or local > 1 else [device.index],
        num_nodes=max(1, world // max(1, local)),
        strategy="ddp" if world > 1 else "auto",
        # named, since Lightning starts processes of its own where it does not find torchrun's
        # variables
        plugins=[TorchElasticEnvironment()] if world > 1 else None,
        precision="bf16-mixed" if training.precision == "bf16" else "32-true",
        max_steps=steps,
        max_epochs=-1,
        accumulate_grad_batches=training.accumulate,
        gradient_clip_val=training.clip_norm,
        callbacks=[callback],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        limit_val_batches=0,
    )


def without_gradients(what: str, remedy: str) -> UserError:
    """The error for a baseline in the place of a model that is trained by gradient descent."""
    return UserError(
        f"{what} is fitted at once, without gradients: it has no steps to watch and no weights to start from; {remedy}",
        code="baseline-without-training",
    )


def _require_start(training: Training, source: Run | None, penalties: list[Any]) -> None:
    """Raise `UserError` for settings that are about the weights of an
    earlier run, where none is given."""
    settings = ["training.max_epochs=0"] * (training.max_epochs == 0)
    settings += ["training.top_blocks"] * (training.top_blocks is not None)
    settings += ["the penalty ewc"] * bool(penalties)
    if settings and source is None:
        raise UserError(
            f"{settings[0]} is about the weights that training starts from, and it starts from none: name a run "
            "(--from RUN, init_from=RUN)",
            code="no-run-to-start-from",
        )


def _without_validation(training: Training) -> None:
    """Raise `UserError` for settings that go by validation, where the store has none."""
    remedies = ["set training.patience=null to run all epochs"] * (training.patience is not None)
    remedies += ["choose another training.schedule than plateau"] * (training.schedule == "plateau")
    if remedies:
        raise UserError(
            f"the store has no validation targets to go by: {' and '.join(remedies)}", code="no-validation-targets"
        )
