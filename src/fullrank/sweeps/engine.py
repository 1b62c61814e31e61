"""Where the jobs of a sweep run: an engine is handed work and gives rows back as they end, in whatever order.

Which jobs there are, what is finished already, the time limit, the rows on disk and the display belong to the runner.
`Local` is the one engine so far: this process, one job after another.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from fullrank.core.files import write_text
from fullrank.data.impressions.store import AnyStore
from fullrank.sweeps.cost import Cost
from fullrank.sweeps.jobs import Job
from fullrank.sweeps.records import Row
from fullrank.sweeps.run_job import CELLS, failed_row, run_job


@dataclass(frozen=True)
class Work:
    """One job and all that it needs; plain data, so that it can be sent to another process."""

    job: Job
    store: AnyStore
    out: Path
    """Folder of the sweep, which the process that runs the job must see too: the run folder is made in it."""
    cost: Cost | None = None
    """What the job was expected to take; None where it was not measured."""
    progress: bool = False
    """Print the progress of the training to stderr."""

    def run(self, device: str = "auto") -> Row:
        """The job's row, whatever happens (an interrupt apart): an error is in the row, its traceback in the folder.

        `device` is where the model runs (`ops.device`).
        """
        begun = time.perf_counter()
        trace = self.out / CELLS / f"{self.job.folder}.error.txt"
        try:
            row = run_job(self.job, self.store, self.out, cost=self.cost, progress=self.progress, device=device)
            trace.unlink(missing_ok=True)
            return row
        except Exception as error:
            write_text(trace, traceback.format_exc())
            return failed_row(self.job, self.store, error, time.perf_counter() - begun)


@runtime_checkable
class Engine(Protocol):
    """Runs work somewhere."""

    def run(self, work: Iterable[Work]) -> Iterator[tuple[Work, Row]]:
        """Every piece of work with its row (`Work.run()`), each once and as soon as it ends, in any order.

        `work` is made as it is asked for: whether a job still fits the time allowed is decided at that moment, so an
        engine asks for a piece when it has a place to start it. A row is on disk before the next one is asked for;
        where the caller stops asking, the iterator is closed, and what still runs is to be ended.
        """
        ...


@dataclass(frozen=True)
class Local:
    """This process, one job after another. Satisfies `Engine`."""

    device: str = "auto"
    """Where models run."""

    def run(self, work: Iterable[Work]) -> Iterator[tuple[Work, Row]]:
        for one in work:
            yield one, one.run(self.device)
