"""Training on Ray Train: workers on a cluster, started again where one is lost, from the last checkpoint of the run.

Ray places the workers and forms their process group; what a worker does then is `fit`, as under
torchrun. A worker or a node that is lost ends the others' step; Ray starts all of them anew, on
other nodes or fewer ones, and each goes on from the run folder or from its copy (`mirror.py`).
Ray's own checkpoints are not used: ours hold all that a run is.

The run folder lies where every node sees it, or `checkpoints` names a place that every node
reaches.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

import torch

from fullrank.core.checks import check_whole, with_defaults
from fullrank.core.errors import UserError, brief, reason_line
from fullrank.core.files import JsonObject, scratch_folder, without_dots
from fullrank.core.locks import folder_lock
from fullrank.data.impressions.store import AnyStore
from fullrank.data.sent_store import StoreAt
from fullrank.parallel.ray import ray_cluster, require_ray
from fullrank.run import Run, is_run, opened_run
from fullrank.run.experiment import Experiment
from fullrank.training import FIT_DEFAULTS, FitKeywords
from fullrank.training.distributed import launched, sum_over_ranks
from fullrank.training.fit import fit
from fullrank.training.mirror import Mirror
from fullrank.training.run_folder import check_folder

LOCK_SECONDS = 120.0
"""Seconds that a worker which was started again waits for the run folder: the one before it may not have ended yet."""
START_SECONDS = 300
"""Seconds that workers may take to start: torch is imported from a network disk on many a
cluster, and Ray waits 60 s."""
PEERS = ("peer-lost", "peers-missing")
"""Codes of errors that are about another worker, which has an error of its own."""


@dataclass(frozen=True)
class RayWorkers:
    """The processes that train, and where."""

    address: str = "auto"
    """`auto`: the cluster that this machine belongs to; `local`: one is started here; or HOST:PORT of its head."""
    workers: int = 1
    """Processes, which share every batch."""
    min_workers: int | None = None
    """Workers that are enough to go on where nodes are lost; None: wait until there is room for all."""
    worker_cpus: int = 1
    """CPUs of each, and its threads."""
    failures: int = 3
    """Starts again after a worker was lost, at most."""

    def __post_init__(self) -> None:
        check_whole("workers", self.workers, 1, 10_000)
        check_whole("worker_cpus", self.worker_cpus, 1, 1024)
        check_whole("failures", self.failures, 0, 10_000)
        if self.min_workers is not None:
            check_whole("min_workers", self.min_workers, 1, self.workers)


@dataclass(frozen=True)
class WorkerTask:
    """The training that each worker takes part in: plain data but for the callbacks; of the store its path alone."""

    experiment: Experiment
    store: StoreAt
    out: Path
    home: Path
    """The folder that relative paths in settings start from."""
    options: FitKeywords
    old: int | None
    """Identity of the run that is to be replaced, to tell it from the new one; None without one."""
    threads: int


def fit_on_ray(
    on: RayWorkers,
    experiment: Experiment,
    store: AnyStore,
    out: str | Path,
    **options: Unpack[FitKeywords],
) -> Run:
    """`fit` by the workers of a Ray cluster; the arguments are those of `fit`.

    Raises `UserError` for what `fit` refuses, where there is no such cluster, and where a worker
    ended with an error more often than `on.failures` allows.
    """
    require_ray(on.address)
    options = with_defaults(options, FIT_DEFAULTS)
    device, overwrite, checkpoints = options["device"], options["overwrite"], options["checkpoints"]
    if launched().world > 1:
        raise UserError("training on Ray starts its own processes; start it without torchrun", code="one-process-only")
    if device not in ("auto", "cpu", "cuda"):
        raise UserError(
            f"the device is {brief(device, 80)}; on Ray it is auto, cpu or cuda, and Ray says which one",
            code="unknown-device",
        )
    folder = Path(os.path.abspath(without_dots(out)))
    mirror = None if checkpoints is None else Mirror(checkpoints)
    source = None if options["init_from"] is None else opened_run(options["init_from"])
    check_folder(folder, experiment, store, resume=options["resume"], overwrite=overwrite, init_from=source)
    if mirror is not None and not options["resume"]:  # a worker that is started again would go on from an older run
        mirror.require_free(overwrite=overwrite)
    old = _identity(folder) if overwrite else None
    task = WorkerTask(experiment, StoreAt.of(store), folder, Path.cwd(), options, old, on.worker_cpus)
    with ray_cluster(on.address) as ray, scratch_folder() as scratch:
        _train(ray, on, task, device, scratch)
    if mirror is not None and not is_run(folder):  # trained on the disks of other machines
        mirror.restore(folder)
    return Run.open(folder)


def _train(ray: Any, on: RayWorkers, task: WorkerTask, device: str, scratch: Path) -> None:
    """Let Ray Train run `_work` in every worker, and start them again where one is lost."""
    os.environ.setdefault("RAY_TRAIN_V2_ENABLED", "1")
    os.environ.setdefault("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", str(START_SECONDS))
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer
    from ray.train.v2.api.exceptions import TrainingFailedError

    gpus = ray.cluster_resources().get("GPU", 0) >= on.workers if device == "auto" else device == "cuda"
    num_workers: Any = on.workers if on.min_workers in (None, on.workers) else (on.min_workers, on.workers)
    trainer = TorchTrainer(
        _work,
        train_loop_config={"task": task},
        scaling_config=ScalingConfig(
            num_workers=num_workers,
            use_gpu=gpus,
            resources_per_worker={"CPU": on.worker_cpus, **({"GPU": 1} if gpus else {})},
        ),
        run_config=RunConfig(
            name=task.out.name,
            storage_path=str(scratch),  # of Ray's own notes
            failure_config=FailureConfig(max_failures=on.failures),
        ),
    )
    try:
        trainer.fit()
    except (TrainingFailedError, ray.exceptions.RayError) as error:
        raise _ended_with(error, task.out) from error


def _work(config: JsonObject) -> None:
    """The function that Ray calls in each worker, and again in each one that it starts later."""
    from ray.train.torch import get_device

    task: WorkerTask = config["task"]
    with suppress(OSError):
        os.chdir(task.home)
    torch.set_num_threads(task.threads)
    # Ray may put more workers on one node than on another, which torchrun never does: each
    # is a node of one process
    os.environ |= {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": os.environ["RANK"]}
    store = task.store.open()
    first, where = launched().rank == 0, get_device()
    if first:
        with folder_lock(task.out, "train", wait=LOCK_SECONDS):
            pass
    # the first worker says it for all: another one may look when it has begun to write
    resume = bool(sum_over_ranks(torch.tensor(float(first and _has_begun(task)), device=where)))
    again: FitKeywords = {"resume": True, "overwrite": False} if resume else {}
    fit(task.experiment, store, task.out, **(task.options | again | {"device": str(where)}))


def _has_begun(task: WorkerTask) -> bool:
    """Whether there is something to go on from: of the first start, or of those before this one."""
    begun = is_run(task.out) and (task.old is None or _identity(task.out) != task.old)
    checkpoints = task.options["checkpoints"]
    return task.options["resume"] or begun or (checkpoints is not None and Mirror(checkpoints).pointer() is not None)


def _identity(folder: Path) -> int | None:
    """A number that changes where one folder is exchanged for another, also over a network."""
    return folder.stat().st_ino if folder.exists() else None


def _ended_with(error: Any, out: Path) -> UserError:
    """The error that training ended with: a user's mistake in one worker stands
    before what others made of it."""
    failures = [getattr(failure, "_base_exc", failure) for failure in getattr(error, "worker_failures", {}).values()]
    failures.sort(key=lambda failure: getattr(failure, "code", "") in PEERS)
    for failure in failures:
        if isinstance(failure, UserError) and failure.code not in PEERS:
            return failure
    worst = failures[0] if failures else getattr(error, "controller_failure", error)
    return UserError(
        f"training on Ray ended: {type(worst).__name__}: {reason_line(worst, file=True)}; what is in {str(out)!r} goes "
        "on with resume=True",
        code="ray-training-failed",
    )
