"""`Processes`: the rows of one process, a killed worker's job is tried again, and nobody is left behind."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from fullrank.data.events.store import Store
from fullrank.sweeps import processes
from fullrank.sweeps.engine import Engine, Work
from fullrank.sweeps.processes import Processes
from fullrank.sweeps.sweep import sweep
from refusals import refused

from .test_engine import lasting
from .test_sweep import Tiny, cheap, same, weights  # noqa: F401


def killed_once(out: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A thread that kills the first worker that has a checkpoint of `long-seed0`; the pids it killed."""
    started, killed, real = list[int](), list[int](), processes._Process.__init__

    def noted(self: processes._Process, device: str) -> None:
        real(self, device)
        assert self._process.pid is not None
        started.append(self._process.pid)

    def kill() -> None:
        until = time.monotonic() + 60
        while not (out / "cells" / "long-seed0" / "checkpoints" / "last.json").exists() and time.monotonic() < until:
            time.sleep(0.005)
        killed.append(started[0])
        with suppress(OSError):
            os.kill(started[0], signal.SIGKILL)

    monkeypatch.setattr(processes._Process, "__init__", noted)
    threading.Thread(target=kill, daemon=True).start()
    return killed


def test_a_killed_worker_costs_a_try_and_the_rows_are_those_of_one_process(
    store: Store, tiny: Tiny, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = tiny("[{name: long, recipe: sasrec, set: {training.max_epochs: 20}}, popularity]")
    here = sweep(grid, store, tmp_path / "here", progress=False)
    killed = killed_once(out, monkeypatch)
    engine = Processes(jobs=1)
    assert isinstance(engine, Engine)
    rows = sweep(grid, store, out, progress=False, engine=engine)
    assert killed and rows[0]["resumed_at_step"], "it went on from its last checkpoint"
    for row, other in zip(lasting(rows), lasting(here), strict=True):
        assert row == {**other, "resumed_at_step": row.get("resumed_at_step")}
    assert same(weights(out, "long-seed0"), weights(tmp_path / "here", "long-seed0"))
    assert len((out / "rows.jsonl").read_text().splitlines()) == 2
