"""`LocalProcesses`: a killed worker's item is tried again, no more is asked for than there is room, nobody is left."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from fullrank.core.errors import UserError
from fullrank.core.files import NotWritten
from fullrank.parallel import Lost, processes
from fullrank.parallel.processes import LocalProcesses
from refusals import refused


class Stub:
    """Stands for a worker process: answers at once, and dies of the items that are named in `deadly`, so many times."""

    deadly: dict[int, int]
    alive: int

    def __init__(self, task: Any) -> None:
        self.task = task
        type(self).alive += 1

    def send(self, item: int) -> None:
        self.item = item

    def outcome(self) -> Any:
        if self.deadly.get(self.item, 0):
            self.deadly[self.item] -= 1
            raise Lost("it was ended by signal 9")
        return self.task.sent(self.item)

    def end(self) -> None:
        type(self).alive -= 1


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> type[Stub]:
    Stub.deadly, Stub.alive = {}, 0
    monkeypatch.setattr(processes, "_Process", Stub)
    return Stub


def test_lost_processes_cost_their_item_tries(stub: type[Stub]) -> None:
    stub.deadly.update({1: 1, 3: 2})
    outcomes = dict(LocalProcesses(jobs=2, tries=2).map(abs, [1, 2, 3]))
    assert outcomes.pop(1) == 1 and outcomes.pop(2) == 2 and stub.alive == 0, "nobody is left behind"
    assert isinstance(error := outcomes[3], UserError) and error.code == "worker-died"
    assert "part 3: its worker is lost (it was ended by signal 9), 2 times" in str(error)
    stub.deadly[3] = 2
    with refused("worker-died", "part 3"):
        LocalProcesses(jobs=2).total(abs, range(9))
    assert stub.alive == 0


def test_items_are_asked_for_by_free_processes_and_end_with_the_caller(stub: type[Stub]) -> None:
    taken = list[int]()

    def items() -> Iterator[int]:
        for number in range(4):
            taken.append(number)
            yield number

    outcomes = LocalProcesses(jobs=2).map(abs, items())
    next(outcomes)
    assert taken == [0, 1], "no more than there are processes"
    outcomes.close()
    assert stub.alive == 0
    with refused("setting-out-of-range", "jobs=0"):
        LocalProcesses(jobs=0)


def fails(number: int) -> int:
    raise KeyError(number) if number else NotWritten(Path("part"), "no space left")


@pytest.mark.process
def test_results_and_errors_come_from_other_processes() -> None:
    engine = LocalProcesses(jobs=2)
    assert engine.total(abs, [-1, -2, 3]) == 6
    outcomes: dict[int, Any] = dict(engine.map(fails, [0, 1]))
    assert type(outcomes[0]) is UserError and outcomes[0].code == "not-written", "of whatever class it is there"
    assert str(outcomes[1]) == "KeyError: 1" and "in fails" in outcomes[1].__notes__[0]


def killed_once(file: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A thread that kills the first worker when a file is there; the pids that it killed."""
    started, killed, real = list[int](), list[int](), processes._Process.__init__

    def noted(self: processes._Process, task: Any) -> None:
        real(self, task)
        assert self._process.pid is not None
        started.append(self._process.pid)

    def kill() -> None:
        until = time.monotonic() + 120
        while not file.exists() and time.monotonic() < until:
            time.sleep(0.005)
        killed.append(started[0])
        with suppress(OSError):
            os.kill(started[0], signal.SIGKILL)

    monkeypatch.setattr(processes._Process, "__init__", noted)
    threading.Thread(target=kill, daemon=True).start()
    return killed
