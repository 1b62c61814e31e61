"""Display of a sweep: its cost before it starts, then a live table; plain lines where there is no terminal.

Everything goes to stderr. The table is read from the run folders, so training knows nothing of it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from fullrank.core.log import clock, printable
from fullrank.run import Run
from fullrank.sweeps.jobs import Job
from fullrank.sweeps.records import Outcome, Row

TOO_LONG = "less is left of the time allowed"


@dataclass
class _Line:
    state: str = "waiting"
    begun: float = 0.0
    row: Row | None = None


class Display:
    """A view of an `Outcome` while it grows."""

    def __init__(self, jobs: Sequence[Job], out: Path, outcome: Outcome, *, enabled: bool):
        self.console = Console(stderr=True, width=None if sys.stderr.isatty() else 120)
        self.jobs, self.out, self.outcome, self.enabled = jobs, out, outcome, enabled
        self.shown: dict[str, _Line] = {job.folder: _Line() for job in jobs}
        terminal = enabled and sys.stderr.isatty()
        self.live = Live(get_renderable=self.table, console=self.console, refresh_per_second=2) if terminal else None

    @property
    def lines(self) -> bool:
        """Whether training may print its own lines."""
        return self.enabled and self.live is None

    def begin(self, left: Sequence[Job]) -> None:
        """Note the runs that are finished already, and announce the measuring of the rest."""
        waiting, done = {job.folder for job in left}, 0
        for job in self.jobs:
            if job.folder in waiting:
                continue
            row = self.outcome.rows.last(job)
            if self.outcome.rows.finished(job) is not None:
                self.shown[job.folder] = _Line("finished before", row=row)
                done += 1
            else:
                self.shown[job.folder] = _Line("failed" if row is not None and row.get("error") else "not run", row=row)
        if done:
            self.say(f"{done} of {len(self.jobs)} runs are finished already and are not repeated")
        if left:
            cells = len({job.cost_key for job in left})
            self.say(f"measuring what {len(left)} runs will cost ({cells} different ones, some seconds each)")

    def measuring(self, job: Job) -> None:
        if self.live is not None:
            self.say(f"  {job.cell}")

    def show_costs(self, max_hours: float | None) -> None:
        """The estimate, cell by cell."""
        if not self.outcome.estimate or not self.enabled:
            return
        table = Table(title="cost at most (all epochs)", title_justify="left")
        table.add_column("cell", no_wrap=True)
        for name in ("runs", "hours each", "hours", "ms per step", "steps", "validation s"):
            table.add_column(name, justify="right")
        cells: dict[str, list[float]] = {}
        for entry in self.outcome.estimate:
            cells.setdefault(entry["cell"], []).append(entry["hours"])
        costs = {job.cell: self.outcome.costs.get(job.cost_key) for job in self.jobs}
        for cell, hours in cells.items():
            cost = costs[cell]
            detail = ["", "", ""]
            if cost is not None and cost.epochs:
                detail = [f"{1e3 * cost.step:.1f}", str(cost.steps_per_epoch * cost.epochs), f"{cost.validation:.1f}"]
            table.add_row(cell, str(len(hours)), f"{max(hours):.3f}", f"{sum(hours):.3f}", *detail)
        total = sum(entry["hours"] for entry in self.outcome.estimate)
        table.add_row("total", str(len(self.outcome.estimate)), "", f"{total:.3f}", "", "", "", style="bold")
        self.console.print(table)
        if max_hours is not None and total > max_hours:
            self.say(f"the limit is {max_hours:g} hours: runs that do not fit what is left of it will not be started")

    def __enter__(self) -> Display:
        if self.live is not None:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live is not None:
            self.live.stop()

    def started(self, job: Job) -> None:
        self.shown[job.folder] = _Line("running", time.perf_counter())
        self._line(f"{job.folder}: started")

    def ended(self, job: Job, row: Row) -> None:
        self.shown[job.folder] = _Line("failed" if row.get("error") else "finished", row=row)
        done = sum(line.row is not None for line in self.shown.values())
        text = f"failed: {row['error']}" if row.get("error") else selection_scores(row, job)
        self._line(f"{job.folder}: {text}  [{clock(_spent(row))}, {done} of {len(self.jobs)} done]")

    def refused(self, jobs: Sequence[Job], seconds: Sequence[float], why: str = TOO_LONG) -> None:
        for job, cost in zip(jobs, seconds, strict=True):
            self.shown[job.folder] = _Line("not run")
            self.say(f"{job.folder}: not run, it may take {clock(cost)} and {why}")

    def close(self) -> None:
        """The last word: how many ended how."""
        states = [line.state for line in self.shown.values()]
        parts = [f"{states.count(s)} {s}" for s in ("finished", "finished before", "failed", "not run") if s in states]
        if parts:
            self.say(f"{', '.join(parts)}; rows in {self.outcome.rows.path}")

    def say(self, text: str) -> None:
        """A line that stays."""
        if self.enabled:
            self.console.print(printable(text), highlight=False, markup=False, soft_wrap=True)

    def _line(self, text: str) -> None:
        if self.live is None:
            self.say(text)

    def table(self) -> Table:
        """The table as it stands; called by the live display from its own thread."""
        table = Table(title=f"{clock(3600 * self.outcome.hours)} spent", title_justify="left")
        columns = list(dict.fromkeys(name for job in self.jobs for name in job.evaluations))
        for name in ("cell", "seed", "state", "epoch", "best", *columns, "time"):
            table.add_column(name, justify="left" if name in ("cell", "state") else "right", no_wrap=name == "cell")
        for job in self._near():
            line = self.shown[job.folder]
            row, figures = line.row, list[str]()
            style = "red" if row is not None and row.get("error") else None
            if row is not None:
                best = row.get("validation_best")
                figures = [str(row.get("epochs") or ""), "" if best is None else f"{best['value']:.4f}"]
                figures += [*(_value(row, job, name) for name in columns), clock(_spent(row))]
            elif line.state == "running":
                epoch, best_score, spent = self._running(job, line)
                figures, style = [epoch, best_score, *("" for _ in columns), spent], "bold"
            table.add_row(job.cell, str(job.seed), line.state, *figures, style=style)
        return table

    def _near(self) -> Sequence[Job]:
        """The jobs that fit the screen, around the one that runs."""
        room = max(5, self.console.height - 8)
        at = next((n for n, job in enumerate(self.jobs) if self.shown[job.folder].state in ("running", "waiting")), 0)
        first = min(max(0, at - room // 2), max(0, len(self.jobs) - room))
        return self.jobs[first : first + room]

    def _running(self, job: Job, line: _Line) -> tuple[str, str, str]:
        """Epochs so far, the best validation score and the time spent, of the job that runs."""
        metric = f"validation/{job.experiment.evaluation.selection}"
        rows = Run(job.run_folder(self.out), job.experiment, {}).rows()
        scores = [row[metric] for row in rows if metric in row]
        at = f"{rows[-1]['epoch']:.1f}/{job.experiment.training.max_epochs}" if rows else ""
        spent = clock(time.perf_counter() - line.begun)
        return at, f"{max(scores):.4f}" if scores else "", spent


def selection_scores(row: Row, job: Job) -> str:
    """The selection metric of each evaluation: `test ndcg@10 0.0541  test_seen_keep ndcg@10 0.0402`."""
    metric = job.experiment.evaluation.selection
    return "  ".join(f"{name} {metric} {value}" for name in job.evaluations if (value := _value(row, job, name)))


def _value(row: Row, job: Job, name: str) -> str:
    """The selection metric of an evaluation, where it was computed."""
    value = row["metrics"].get(name, {}).get(job.experiment.evaluation.selection)
    return "" if value is None else f"{value:.4f}"


def _spent(row: Row) -> float:
    seconds: dict[str, Any] = row["seconds"]
    return float(sum(seconds.values()))
