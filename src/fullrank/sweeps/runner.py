"""Runs jobs within a time limit: skips the finished, resumes what was cut off, survives failures."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from fullrank.core.device import resolve_device
from fullrank.core.errors import UserError
from fullrank.core.files import make_folder
from fullrank.core.locks import folder_lock
from fullrank.data.impressions.store import AnyStore
from fullrank.data.manifest import require_no_store
from fullrank.sweeps.cost import measure_costs
from fullrank.sweeps.display import TOO_LONG, Display
from fullrank.sweeps.engine import CELLS, Engine, Local, Work, check_job_folder, is_trained, steps_done
from fullrank.sweeps.jobs import Job
from fullrank.sweeps.processes import LocalProcesses
from fullrank.sweeps.records import Outcome, RowsFile

HOUR = 3600.0
MEASURE_SECONDS = 3.0
"""Of training and of evaluation, from which the cost of a job is told."""
NO_TIME = 1e-9
"""Hours in which nothing starts, but everything is priced."""


def run_jobs(
    jobs: Sequence[Job],
    store: AnyStore,
    out: str | Path,
    *,
    max_hours: float | None = None,
    dry_run: bool = False,
    progress: bool = True,
    kept: Callable[[Outcome], None] | None = None,
    engine: Engine = Local(),
    start: Callable[[Job], bool] = lambda job: True,
) -> Outcome:
    """Hand the jobs to the engine in order. `kept` is called after every new row, and once when all is over.

    `start`: which of the unfinished jobs are run; of the others the outcome has the rows that are there.
    Jobs of one group that together do not fit the rest of `max_hours` are not started and listed in `not_run`.
    Raises `UserError` for what is wrong before the first job runs: a model that cannot be built, a run folder of
    another spec, a folder in use. A job that fails later leaves a row with its error and the others go on.
    """
    _check_call(max_hours)
    # costs are measured here, whatever the engine; the devices of other machines are not known here
    device = engine.device if isinstance(engine, Local | LocalProcesses) else "auto"
    resolve_device(device)
    if callable(check := getattr(engine, "check", None)):
        check()
    begun = time.perf_counter()
    folder = Path(out)
    require_no_store(folder, "runs")
    _make(folder)
    with folder_lock(folder, "sweep"):
        outcome = Outcome(jobs, store.fingerprint, RowsFile(folder))
        left = [job for job in jobs if outcome.rows.finished(job, store.fingerprint) is None and start(job)]
        for job in left:
            check_job_folder(job, store, folder)
        display = Display(jobs, folder, outcome, enabled=progress)
        display.begin(left)
        outcome.costs = measure_costs(left, store, seconds=MEASURE_SECONDS, on_job=display.measuring, device=device)
        outcome.estimate = [_priced(job, _seconds(job, outcome, folder)) for job in left]
        display.show_costs(max_hours)
        if dry_run:
            _plan(left, folder, outcome, display, max_hours)
        else:
            with display:
                _run_all(left, store, folder, outcome, display, begun, max_hours, kept, engine)
        outcome.hours = (time.perf_counter() - begun) / HOUR
        if kept is not None and not dry_run:
            kept(outcome)
        display.close()
    return outcome


def _plan(left: list[Job], out: Path, outcome: Outcome, display: Display, max_hours: float | None) -> None:
    """What would not be started if every run took as long as it may."""
    spent, limit = 0.0, float("inf") if max_hours is None else max_hours * HOUR
    for group, needed in _groups(left, outcome, out):
        if spent + sum(needed) > limit:
            _refuse(group, needed, outcome, display)
        else:
            spent += sum(needed)


def _run_all(
    left: list[Job],
    store: AnyStore,
    out: Path,
    outcome: Outcome,
    display: Display,
    begun: float,
    max_hours: float | None,
    kept: Callable[[Outcome], None] | None,
    engine: Engine,
) -> None:
    limit = float("inf") if max_hours is None else max_hours * HOUR
    waiting = {job.folder: job for job in left}

    def work() -> Iterator[Work]:
        for group, needed in _groups(left, outcome, out):
            if time.perf_counter() - begun + sum(needed) > limit:
                _refuse(group, needed, outcome, display)
                for job in group:
                    del waiting[job.folder]
                continue
            for job in group:
                del waiting[job.folder]
                display.started(job)
                yield Work(job, store, out, outcome.costs.get(job.cost_key), display.lines)

    handed: dict[str, Job] = {}
    rows = engine.run(_noted(work(), handed))
    try:
        for done, row in rows:
            if handed.pop(done.job.folder, None) is None:
                raise RuntimeError(f"the engine gave a row for {done.job.folder}, which it was not asked for, or twice")
            outcome.rows.add(row)
            outcome.hours = (time.perf_counter() - begun) / HOUR
            display.ended(done.job, row)
            if kept is not None:
                kept(outcome)
    finally:
        if isinstance(rows, Generator):
            rows.close()
    if handed:
        raise RuntimeError(f"the engine gave no row for {', '.join(handed)}")
    if waiting:  # the engine has asked for no more
        rest = list(waiting.values())
        needed = [_seconds(job, outcome, out) for job in rest]
        _refuse(rest, needed, outcome, display, "the engine did not ask for it")


def _noted(work: Iterator[Work], handed: dict[str, Job]) -> Iterator[Work]:
    """The same work; what was handed out stands in `handed`."""
    for one in work:
        handed[one.job.folder] = one.job
        yield one


def _groups(left: list[Job], outcome: Outcome, out: Path) -> Iterator[tuple[list[Job], list[float]]]:
    """The jobs of each group and what they need, in seconds, as it is known when the group's turn comes."""
    for _, some in groupby(left, key=lambda job: job.group):
        group = list(some)
        yield group, [_seconds(job, outcome, out) for job in group]


def _refuse(group: list[Job], needed: list[float], outcome: Outcome, display: Display, why: str = TOO_LONG) -> None:
    outcome.not_run += [_priced(job, seconds) for job, seconds in zip(group, needed, strict=True)]
    display.refused(group, needed, why)


def _seconds(job: Job, outcome: Outcome, out: Path) -> float:
    """What a job will still take at most; another seed that is done tells better than a few steps."""
    cost, folder = outcome.costs[job.cost_key], out / CELLS / job.folder
    if cost is None:
        return 0.0
    if is_trained(folder):
        return cost.evaluation * cost.evaluations
    for other in outcome.jobs if outcome.rows.all else ():  # thousands of jobs, and nothing done yet
        row = outcome.rows.finished(other, outcome.fingerprint) if other.cost_key == job.cost_key else None
        if row is not None and row.get("epochs") and row.get("resumed_at_step") is None:
            cost = cost.scaled(row["seconds"]["train"] / row["epochs"])
            break
    return cost.remaining(steps_done(folder))


def _priced(job: Job, seconds: float) -> dict[str, Any]:
    return {"cell": job.cell, "seed": job.seed, "hours": round(seconds / HOUR, 5)}


def _check_call(max_hours: float | None) -> None:
    if max_hours is not None and not max_hours > 0:
        raise UserError(
            f"max_hours must be above 0, not {max_hours}; leave it out for no limit", code="hours-not-positive"
        )
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError("sweep and tune run in one process; start them without torchrun", code="one-process-only")


def _make(out: Path) -> None:
    if (out / "manifest.json").exists():
        raise UserError(f"{out} holds a run or a store; choose another folder for the sweep", code="folder-of-others")
    make_folder(out)
