"""Schedule of jobs within a time limit: skip the finished, resume what was cut off, survive failures."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, TypedDict

from fullrank.core.device import resolve_device
from fullrank.core.errors import UserError
from fullrank.core.files import make_folder
from fullrank.core.locks import folder_lock
from fullrank.data.impressions.store import AnyStore
from fullrank.data.manifest import require_no_store
from fullrank.parallel import Local, Runner
from fullrank.run.checkpoint import steps_done
from fullrank.sweeps.cost import measure_costs
from fullrank.sweeps.display import TOO_LONG, Display
from fullrank.sweeps.jobs import Job
from fullrank.sweeps.records import Outcome, RowsFile
from fullrank.sweeps.work import Work, check_job_folder, failed_row, is_trained

HOUR = 3600.0
NO_TIME = 1e-9
"""Hours in which nothing starts, but everything is priced."""


class RunOptions(TypedDict, total=False):
    """Options of `run_jobs` that a sweep hands on, as `sweep` explains them."""

    max_hours: float | None
    dry_run: bool
    progress: bool
    engine: Runner


def run_jobs(
    jobs: Sequence[Job],
    store: AnyStore,
    out: str | Path,
    *,
    max_hours: float | None = None,
    dry_run: bool = False,
    progress: bool = True,
    on_row: Callable[[Outcome], None] = lambda outcome: None,
    engine: Runner = Local(),
    start: Callable[[Job], bool] = lambda job: True,
    priced: bool = True,
) -> Outcome:
    """Hand the jobs to the engine in order. `on_row` is called after every new row, and once when all is over.

    `start`: which of the unfinished jobs are run; of the others the outcome has the rows that are
    there. Jobs that are not `priced` count as free: their caller has looked at the time already.
    Jobs of one group that together do not fit the rest of `max_hours` are not started and listed in
    `not_run`. Raises `UserError` for what is wrong before the first job runs: a model that cannot
    be built, a run folder of another spec, a folder in use. A job that fails later leaves a row
    with its error and the others go on.
    """
    if max_hours is not None and not max_hours > 0:
        raise UserError(
            f"max_hours must be above 0, not {max_hours}; leave it out for no limit", code="hours-not-positive"
        )
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError("sweep and tune run in one process; start them without torchrun", code="one-process-only")
    # costs are measured here, whatever the engine; the devices of other machines are not known here
    device = "auto" if engine.remote else engine.device
    resolve_device(device)
    engine.check()
    begun = time.perf_counter()
    folder = Path(out)
    require_no_store(folder, "runs")
    if (folder / "manifest.json").exists():
        raise UserError(f"{out} holds a run or a store; choose another folder for the sweep", code="folder-of-others")
    make_folder(folder)
    with folder_lock(folder, "sweep"):
        outcome = Outcome(jobs, RowsFile(folder, store.fingerprint))
        left = [job for job in jobs if outcome.rows.finished(job) is None and start(job)]
        for job in left:
            check_job_folder(job, store, folder)
        display = Display(jobs, folder, outcome, enabled=progress)
        display.begin(left)
        known = measure_costs(left, store, on_job=display.measuring, device=device) if priced else {}
        outcome.costs = dict.fromkeys(job.cost_key for job in left) | known
        plan = _Schedule(left, outcome, folder, display, begun, float("inf") if max_hours is None else max_hours * HOUR)
        outcome.estimate = [_priced(job, plan.seconds(job)) for job in left]
        display.show_costs(max_hours)
        if dry_run:
            plan.refuse_late()
        else:
            with display:
                plan.run(store, engine, on_row)
        outcome.hours = (time.perf_counter() - begun) / HOUR
        if not dry_run:
            on_row(outcome)
        display.close()
    return outcome


def hours_left(max_hours: float | None, begun: float) -> float | None:
    """The rest of `max_hours` since `begun` (of `perf_counter`): at least so much that everything is priced."""
    return None if max_hours is None else max(NO_TIME, max_hours - (time.perf_counter() - begun) / HOUR)


@dataclass(frozen=True)
class _Schedule:
    """The unfinished jobs of a call, and the time that is allowed for them."""

    left: list[Job]
    outcome: Outcome
    folder: Path
    display: Display
    begun: float
    limit: float
    """Seconds from `begun`."""

    def run(self, store: AnyStore, engine: Runner, on_row: Callable[[Outcome], None]) -> None:
        outcome, waiting = self.outcome, {job.folder: job for job in self.left}
        handed: dict[str, Job] = {}

        def work() -> Iterator[Work]:
            for group, needed in self._groups():
                late = time.perf_counter() - self.begun + sum(needed) > self.limit
                if late:
                    self._refuse(group, needed)
                for job in group:
                    del waiting[job.folder]
                    if not late:
                        self.display.started(job)
                        handed[job.folder] = job
                        cost = outcome.costs.get(job.cost_key)
                        yield Work(job, store, self.folder, cost, self.display.lines)

        task = partial(Work.run, device=engine.device, placed=engine.placed)
        with closing(engine.map(task, work())) as outcomes:
            for done, result in outcomes:
                if handed.pop(done.job.folder, None) is None:
                    raise RuntimeError(f"the engine gave a row for {done}, which it was not asked for, or twice")
                row = failed_row(done.job, store, result, 0.0) if isinstance(result, Exception) else result
                outcome.rows.add(row)
                outcome.hours = (time.perf_counter() - self.begun) / HOUR
                self.display.ended(done.job, row)
                on_row(outcome)
        if handed:
            raise RuntimeError(f"the engine gave no row for {', '.join(handed)}")
        if waiting:  # the engine has asked for no more
            rest = list(waiting.values())
            self._refuse(rest, [self.seconds(job) for job in rest], "the engine did not ask for it")

    def refuse_late(self) -> None:
        """Refuse the jobs that would not be started if every run took as long as it may."""
        spent = 0.0
        for group, needed in self._groups():
            if spent + sum(needed) > self.limit:
                self._refuse(group, needed)
            else:
                spent += sum(needed)

    def _groups(self) -> Iterator[tuple[list[Job], list[float]]]:
        """The jobs of each group and what they need, in seconds, as it is known
        when the group's turn comes."""
        for group in (list(jobs) for _, jobs in groupby(self.left, key=lambda job: job.group)):
            yield group, [self.seconds(job) for job in group]

    def _refuse(self, group: list[Job], needed: list[float], why: str = TOO_LONG) -> None:
        self.outcome.not_run += [_priced(job, seconds) for job, seconds in zip(group, needed, strict=True)]
        self.display.refused(group, needed, why)

    def seconds(self, job: Job) -> float:
        """Seconds that a job will still take at most; another seed that is done tells better than a few steps."""
        outcome, folder = self.outcome, job.run_folder(self.folder)
        cost = outcome.costs[job.cost_key]
        if cost is None:
            return 0.0
        if is_trained(folder):
            return cost.evaluation * cost.evaluations
        for other in outcome.jobs if outcome.rows.all else ():  # thousands of jobs, and nothing done yet
            row = outcome.rows.finished(other) if other.cost_key == job.cost_key else None
            if row is not None and row.get("epochs") and row.get("resumed_at_step") is None:
                cost = cost.scaled(row["seconds"]["train"] / row["epochs"])
                break
        return cost.remaining(steps_done(folder))


def _priced(job: Job, seconds: float) -> dict[str, Any]:
    return {"cell": job.cell, "seed": job.seed, "hours": round(seconds / HOUR, 5)}
