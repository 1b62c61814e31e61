"""`LocalProcesses`: the rows of one process, a killed worker's job is tried again, and nobody is left behind."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import pytest

from fullrank.data.events.store import Store
from fullrank.sweeps import processes
from fullrank.sweeps.engine import Engine, Work, failed_row
from fullrank.sweeps.processes import LocalProcesses
from refusals import refused
from tests.training.conftest import same_weights

from .conftest import Sweeps, tiny
from .test_engine import lasting

pytestmark = pytest.mark.usefixtures("cheap")


class Stub:
    """Stands for a worker process: answers at once, and dies of the jobs that are named in `deadly`, so many times."""

    deadly: dict[str, int]
    alive: int

    def __init__(self, device: str) -> None:
        self.pipe, self.theirs = Pipe()
        type(self).alive += 1

    def send(self, work: Any) -> None:
        self.job = work
        self.theirs.send("ready")

    def row(self) -> Any:
        self.pipe.recv()
        name = self.job.job.folder
        if self.deadly.get(name, 0):
            self.deadly[name] -= 1
            type(self).alive -= 1
            return None
        return failed_row(self.job.job, self.job.store, RuntimeError("answered"), 0.0)

    def ending(self) -> str:
        return "the process that ran it was ended by signal 9"

    def end(self) -> None:
        type(self).alive -= 1


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> type[Stub]:
    Stub.deadly, Stub.alive = {}, 0
    monkeypatch.setattr(processes, "_Process", Stub)
    return Stub


def test_lost_processes_cost_tries_and_no_row(stub: type[Stub], swept: Sweeps) -> None:
    stub.deadly.update({"sasrec-seed0": 1, "gru4rec-seed0": 2})
    outcome = swept.outcome("[sasrec, popularity, gru4rec]", engine=LocalProcesses(jobs=2, tries=2))
    errors = {row["cell"]: row["error"] for row in outcome.rows.all}
    assert errors["sasrec"] == errors["popularity"] == "RuntimeError: answered" and len(outcome.rows.all) == 3
    assert "ended by signal 9" in errors["gru4rec"]
    assert stub.alive == 0, "nobody is left behind"


def test_work_is_asked_for_by_free_processes_and_ends_with_the_caller(
    store: Store, out: Path, stub: type[Stub]
) -> None:
    asked = list[str]()

    def work() -> Iterator[Work]:
        for job in tiny("[sasrec]", seeds=(0, 1, 2, 3)).jobs():
            asked.append(job.folder)
            yield Work(job, store, out)

    rows = LocalProcesses(jobs=2).run(work())
    next(rows)
    assert asked == ["sasrec-seed0", "sasrec-seed1"], "no more than there are processes"
    rows.close()  # type: ignore[attr-defined]
    assert stub.alive == 0
    with refused("setting-out-of-range", "jobs=0"):
        LocalProcesses(jobs=0)


@pytest.mark.slow
def test_a_killed_worker_changes_no_row_and_no_weight(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, swept: Sweeps
) -> None:
    grid = tiny("[{name: long, recipe: sasrec, set: {training.max_epochs: 20}}, popularity]")
    here = swept(grid, tmp_path / "here")
    killed = killed_once(out, monkeypatch)
    engine = LocalProcesses(jobs=1)
    assert isinstance(engine, Engine)
    rows = swept(grid, engine=engine)
    assert killed and rows[0]["resumed_at_step"], "it went on from its last checkpoint"
    for row, other in zip(lasting(rows), lasting(here), strict=True):
        assert row == {**other, "resumed_at_step": row.get("resumed_at_step")}
    assert same_weights(out / "cells/long-seed0", tmp_path / "here/cells/long-seed0")
    assert len((out / "rows.jsonl").read_text().splitlines()) == 2


def killed_once(out: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A thread that kills the first worker when `long-seed0` has a checkpoint; the pids that it killed."""
    started, killed, real = list[int](), list[int](), processes._Process.__init__

    def noted(self: processes._Process, device: str) -> None:
        real(self, device)
        assert self._process.pid is not None
        started.append(self._process.pid)

    def kill() -> None:
        until = time.monotonic() + 120
        while not (out / "cells" / "long-seed0" / "checkpoints" / "last.json").exists() and time.monotonic() < until:
            time.sleep(0.005)
        killed.append(started[0])
        with suppress(OSError):
            os.kill(started[0], signal.SIGKILL)

    monkeypatch.setattr(processes._Process, "__init__", noted)
    threading.Thread(target=kill, daemon=True).start()
    return killed
