"""Worker processes on this machine, each at one item at a time."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from typing import Any, TypeVar

from fullrank.core.checks import check_whole
from fullrank.parallel import Attempt, Lost, Outcomes, Runner, pull

A = TypeVar("A")
R = TypeVar("R")


@dataclass(frozen=True)
class LocalProcesses(Runner):
    """Worker processes that live as long as there are jobs. One that is killed costs its own job a try, and no other.

    They are started anew, not forked, so a script that starts them is guarded by ``if __name__ == "__main__"``.
    """

    jobs: int = 2
    """Jobs at a time, a process each."""
    threads: int = 1
    """Threads of each process, recorded in its rows."""
    device: str = "auto"
    """Where models run."""
    tries: int = 2
    """Starts of a job whose process is killed; later ones go on from the last checkpoint."""

    def __post_init__(self) -> None:
        for name in ("jobs", "threads", "tries"):
            check_whole(name, getattr(self, name), 1, 1024)

    def map(self, task: Callable[[A], R], items: Iterable[A]) -> Outcomes[A, R]:
        attempt = Attempt(task, self.threads)
        processes, idle = list[_Process](), list[_Process]()
        waiting = ThreadPoolExecutor(self.jobs)  # a thread for each process

        def start(item: A) -> Future[R | Exception]:
            if not idle:
                processes.append(_Process(attempt))
                idle.append(processes[-1])
            process = idle.pop()
            process.send(item)
            return waiting.submit(ended, process)

        def ended(process: _Process) -> R | Exception:
            outcome: R | Exception = process.outcome()
            idle.append(process)
            return outcome

        try:
            yield from pull(start, lambda: self.jobs, items, self.tries)
        finally:
            for process in processes:
                process.end()
            waiting.shutdown()


class _Process:
    """A worker process, which does one task on each item that it is sent."""

    def __init__(self, task: Attempt[Any, Any]):
        context = get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, task), daemon=True)
        self._process.start()
        theirs.close()  # so that the pipe ends with the process

    def send(self, item: Any) -> None:
        with suppress(OSError):  # it was killed while it had nothing to do: told when its outcome is read
            self.pipe.send(item)

    def outcome(self) -> Any:
        """The outcome of what was sent. Raises `Lost` where the process has ended instead."""
        try:
            return self.pipe.recv()
        except (EOFError, OSError):
            raise Lost(self.ending()) from None

    def ending(self) -> str:
        """How the process ended."""
        self._process.join()
        code = self._process.exitcode or 0
        if code < 0:
            return f"it was ended by signal {-code}"
        return f"it ended with exit code {code}; a script starts processes below `if __name__ == '__main__':`"

    def end(self) -> None:
        """End it at once, and leave what it writes as a kill does: the run folder of a job is whole up to the last
        checkpoint, the file of a part is whole or absent."""
        self._process.kill()
        self._process.join()
        self.pipe.close()


def _serve(pipe: Any, task: Attempt[Any, Any]) -> None:
    """The worker's side of the pipe: take an item, send back its outcome,
    until the caller closes it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group: the caller decides
    end_with_parent()
    while True:
        try:
            item = pipe.recv()
        except EOFError:
            return
        pipe.send(task.sent(item))


def end_with_parent(seconds: float = 0.0) -> None:
    """End this process once the one that started it is gone, killed or not.

    So nobody is left in the folders of a caller, or at the port of a service. With `seconds` it is
    told to stop by SIGTERM first, and has so long to end.
    """
    parent = parent_process()
    assert parent is not None, "for processes that multiprocessing started"

    def watch() -> None:
        parent.join()
        if seconds:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(seconds)
        os._exit(1)

    threading.Thread(target=watch, name="fullrank-parent", daemon=True).start()
