"""Several processes of this machine, a job each at a time. Satisfies `Engine`."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait
from typing import Any

from fullrank.core.checks import check_whole
from fullrank.core.log import logger
from fullrank.sweeps.engine import Work, failed_row
from fullrank.sweeps.records import Row
from fullrank.sweeps.sent_work import SentWork

log = logger(__name__)


@dataclass(frozen=True)
class LocalProcesses:
    """Worker processes that live as long as there are jobs. One that is killed costs its job a try, and no other."""

    jobs: int = 2
    """Jobs at a time, a process each."""
    threads: int = 1
    """Threads of each process, recorded in its rows."""
    device: str = "auto"
    """Where models run."""
    tries: int = 2
    """How often a job is started whose process is killed; from the second on it goes on from its last checkpoint."""

    def __post_init__(self) -> None:
        for name in ("jobs", "threads", "tries"):
            check_whole(name, getattr(self, name), 1, 1024)

    def run(self, work: Iterable[Work]) -> Iterator[tuple[Work, Row]]:
        left, idle, busy = iter(work), list[_Process](), dict[_Process, tuple[Work, int]]()
        try:
            while True:
                while len(busy) < self.jobs and (one := next(left, None)) is not None:
                    self._start(one, 1, idle, busy)
                if not busy:
                    return
                ended = wait([process.pipe for process in busy])
                for process in [process for process in busy if process.pipe in ended]:
                    one, tried = busy.pop(process)
                    row = process.row()
                    if row is not None:
                        idle.append(process)
                    elif tried < self.tries:
                        log.info(f"{one.job.folder}: its process ended ({process.ending()}), it is tried again")
                        self._start(one, tried + 1, idle, busy)
                        continue
                    yield one, row or failed_row(one.job, one.store, RuntimeError(process.ending()), 0.0)
        finally:
            for process in [*busy, *idle]:
                process.end()

    def _start(self, one: Work, tried: int, idle: list[_Process], busy: dict[_Process, tuple[Work, int]]) -> None:
        process = idle.pop() if idle else _Process(self.device)
        busy[process] = (one, tried)
        process.send(SentWork.of(one, threads=self.threads))


class _Process:
    """A process that runs the work it is sent. Its pipe is ready to be read when the row is there, or it has ended."""

    def __init__(self, device: str):
        context = get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, device), daemon=True)
        self._process.start()
        theirs.close()  # so that the pipe ends with the process

    def send(self, work: SentWork) -> None:
        with suppress(OSError):  # it was killed while it had nothing to do: told when its row is read
            self.pipe.send(work)

    def row(self) -> Row | None:
        """The row of what was sent; None where the process has ended instead."""
        try:
            found: Row = self.pipe.recv()
            return found
        except (EOFError, OSError):
            return None

    def ending(self) -> str:
        """How the process ended."""
        self._process.join()
        code = self._process.exitcode or 0
        if code < 0:
            return f"the process that ran it was ended by signal {-code}"
        return (
            f"the process that ran it ended with exit code {code}; a script that runs a sweep in processes calls it "
            "below `if __name__ == '__main__':`"
        )

    def end(self) -> None:
        """End it at once, which leaves the run folder of its job as a kill does: whole up to the last checkpoint."""
        self._process.kill()
        self._process.join()
        self.pipe.close()


def _serve(pipe: Any, device: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group: the sweep decides
    threading.Thread(target=_end_with_parent, daemon=True).start()
    while True:
        try:
            work: SentWork = pipe.recv()
        except EOFError:
            return
        pipe.send(work.run(device))


def _end_with_parent() -> None:
    """A sweep that was killed leaves nobody in its run folders, so that the next call may go on with them."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
