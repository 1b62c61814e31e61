"""One job from its start (or from where it was cut off) to its row, in this process or in another.

Which jobs there are, what is finished already, the time limit, the rows on disk and the display
belong to `run_jobs`; where jobs run, to a `parallel.Runner`.
"""

from __future__ import annotations

import os
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from fullrank.core.device import resolve_device
from fullrank.core.errors import UserError
from fullrank.core.files import write_text
from fullrank.core.locks import folder_lock
from fullrank.core.readers import read_json
from fullrank.data.impressions.store import AnyStore
from fullrank.data.sent_store import StoreAt
from fullrank.evaluation import EVALUATE
from fullrank.evaluation.spec import selection_sign
from fullrank.models.sequential.model import RecommenderModel
from fullrank.models.sequential.model.size import sequence_size
from fullrank.run import Run
from fullrank.run.checkpoint import steps_done
from fullrank.sweeps.cost import JobCost
from fullrank.sweeps.jobs import Job
from fullrank.sweeps.records import Row, code_version, environment
from fullrank.training.data_module import data_module_of
from fullrank.training.fit import fit
from fullrank.training.run_folder import require_same
from fullrank.training.settled import selection_settled

LOCK_SECONDS = 60.0
"""How long a job waits for its run folder: whoever had it before may have been given up, and not have ended yet."""


def run_job(
    job: Job,
    store: AnyStore,
    out: Path,
    *,
    cost: JobCost | None = None,
    progress: bool = False,
    device: str = "auto",
) -> Row:
    """Train and evaluate a job, and return its row.

    A run folder that was cut off is continued from its last checkpoint.
    """
    folder = job.run_folder(out)
    resume = (folder / "manifest.json").is_file()
    first, earlier = steps_done(folder), logged_seconds(folder) if resume else 0.0
    begun = time.perf_counter()
    run = fit(job.experiment, store, folder, resume=resume, overwrite=not resume, device=device, progress=progress)
    trained = time.perf_counter()
    model: Any = run.model().to(resolve_device(device))
    evaluations = replace(job, experiment=run.spec).evaluations
    evaluate = partial(EVALUATE[run.spec.problem], model, store)
    distinct = dict.fromkeys(evaluations.values())  # two may be the same
    dumps = {evaluation: evaluate(*evaluation).dump() for evaluation in distinct}
    dumped = {name: dumps[evaluation] for name, evaluation in evaluations.items()}
    seconds = {"train": trained - begun + earlier, "evaluate": time.perf_counter() - trained}
    # metrics among sampled negatives, and their gaps, where they were asked for
    sampled = {name: result["sampled"] for name, result in dumped.items() if "sampled" in result}
    return {
        **job_fields(job, store),
        "metrics": {name: result["metrics"] for name, result in dumped.items()},
        "stderr": {name: result["stderr"] for name, result in dumped.items()},
        **({"sampled": sampled} if sampled else {}),
        **training_figures(run, job),
        "precision": run.spec.training.precision,
        "parameters": run.manifest["parameters"],
        **_size(run, model, job, store),
        "seconds": {name: round(value, 2) for name, value in seconds.items()},
        "estimated_seconds": None if cost is None else round(cost.total, 2),
        "resumed_at_step": first if resume else None,
        "protocol": {name: result["protocol"] for name, result in dumped.items()},
        **_stamp(),
    }


def failed_row(job: Job, store: AnyStore, error: Exception, seconds: float) -> Row:
    """The row of a job that ended with an error."""
    text = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
    spent = {"train": round(seconds, 2), "evaluate": 0.0}
    return {**job_fields(job, store), "error": text, "metrics": {}, "seconds": spent, **_stamp()}


def job_fields(job: Job, store: AnyStore) -> Row:
    """The fields of a row that name its job and its data."""
    return {
        "cell": job.cell,
        "recipe": job.recipe,
        "set": dict(job.settings),
        "seed": job.seed,
        "spec_hash": job.spec_hash,
        "data_fingerprint": store.fingerprint,
        "data": store.path.name,
    }


def training_figures(run: Run, job: Job) -> Row:
    """Epochs run, validation scores by epoch and the best of them; None where the model has no epochs."""
    metric = job.experiment.evaluation.selection
    rows = [row for row in run.rows() if row.get("event") == "epoch"]
    scored = [(row[f"validation/{metric}"], row["epoch"]) for row in rows if f"validation/{metric}" in row]
    better = selection_sign(job.experiment.evaluation)
    best = max(scored, key=lambda pair: (better * pair[0], -pair[1]), default=None)
    return {
        "validation_best": None if best is None else {"metric": metric, "value": best[0], "epoch": best[1]},
        "validation_curve": [[epoch, value] for value, epoch in scored],
        "epochs": rows[-1]["epoch"] if rows else 0,
        "tokens_per_s": rows[-1].get("tokens_per_s") if rows else None,
    }


def _size(run: Run, model: Any, job: Job, store: AnyStore) -> Row:
    """Parameters and FLOPs of the model, where they are counted."""
    if "size" in run.manifest:
        return {"size": run.manifest["size"]}
    if not isinstance(model, RecommenderModel) or store.problem != "retrieval":
        return {}
    loader = data_module_of(job.experiment, store).loader(model)
    return {"size": sequence_size(model.cpu(), loader, store).dump()}


def check_job_folder(job: Job, store: AnyStore, out: Path) -> None:
    """Raises `UserError` where the job's folder holds a run of another spec or other data."""
    folder = job.run_folder(out)
    if not (folder / "manifest.json").is_file():
        return
    old = Run.open(folder)
    experiment = selection_settled(job.experiment, store, old)
    other = "rename the cell, choose another --out, or delete that folder"
    require_same(old, experiment, store, (other, "choose another --out"))


def is_trained(folder: Path) -> bool:
    """Whether a run folder holds a run whose training has ended: evaluating is all
    that may be left of its job."""
    return (folder / "manifest.json").is_file() and read_json(folder / "manifest.json").get("finished") is True


def logged_seconds(folder: Path) -> float:
    """Seconds of the whole epochs that a run folder has behind it."""
    rows = Run.open(folder).rows()
    done = [row for row in rows if row.get("event") == "epoch" and row.get("step", 0) <= steps_done(folder)]
    return float(sum(row.get("seconds", 0.0) + row.get("validation_seconds", 0.0) for row in done))


def _stamp() -> Row:
    load = round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None
    finished = datetime.now(UTC).isoformat(timespec="seconds")
    return {"machine": environment(), "load_average": load, "code": code_version(), "finished": finished}


@dataclass(frozen=True)
class Work:
    """One job and all that it needs; sent to another process, a few kB of plain data with the path of the store."""

    job: Job
    store: AnyStore | StoreAt
    out: Path
    """Folder of the sweep, which the process that runs the job must see too: the run folder is made in it."""
    cost: JobCost | None = None
    """Expected cost of the job; None where it was not measured."""
    progress: bool = False
    """Print the progress of the training to stderr; not in another process: those of several would be mixed up."""
    home: Path = field(default_factory=Path.cwd)
    """The folder that relative paths in the job's settings start from."""

    def __str__(self) -> str:
        return self.job.folder

    def __getstate__(self) -> dict[str, Any]:
        return {
            **vars(self),
            "store": StoreAt.of(self.store),
            "out": Path(os.path.abspath(self.out)),
            "progress": False,
        }

    def run(self, device: str = "auto", placed: Path | None = None) -> Row:
        """The job's row: an error is in the row, its traceback in the folder. `device` is where the model runs.

        Raises `UserError` where the store cannot be opened, or another process does not
        let go of the run folder.
        """
        with suppress(OSError):
            os.chdir(self.home)
        store = self.store.open(placed) if isinstance(self.store, StoreAt) else self.store
        begun, folder = time.perf_counter(), self.job.run_folder(self.out)
        trace = folder.with_name(f"{folder.name}.error.txt")
        with folder_lock(folder, "sweep", wait=LOCK_SECONDS):
            try:
                row = run_job(self.job, store, self.out, cost=self.cost, progress=self.progress, device=device)
                trace.unlink(missing_ok=True)
                return row
            except Exception as error:
                write_text(trace, traceback.format_exc())
                return failed_row(self.job, store, error, time.perf_counter() - begun)
