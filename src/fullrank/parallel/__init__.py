"""Runners: who runs the tasks of a verb that works in parts or in jobs, and what becomes of a worker that is lost.

A task is a function of an item (the number of a part, a job of a sweep) that can be sent to another
process; what it gives comes back in any order. Preparation, lists, evaluation, sweeps and searches
call a runner and know of no process, session or cluster. `Local` is this process, `processes.py`
has those of this machine, `spark.py` and `ray.py` the machines of a cluster; a part computed with
one thread of torch has the same bits on all of them.
"""

from __future__ import annotations

import operator
import traceback
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass
from functools import reduce
from itertools import islice
from pathlib import Path
from typing import Any, Generic, TypeVar

from fullrank.core.errors import UserError, reason_line
from fullrank.core.log import logger
from fullrank.core.memory import available_bytes

log = logger(__name__)

POLL_SECONDS = 5.0
"""Seconds between two looks whether there is more room or less, while no item ends."""
MOST_THREADS = 8
"""Threads beyond which the interpreter's lock leaves nothing to gain."""
A = TypeVar("A")
R = TypeVar("R")
Outcomes = Generator[tuple[A, R | Exception], None, None]
"""Items with their results; where a task failed, with its error."""


class Runner(ABC):
    """Runs a task on items."""

    device: str = "auto"
    """Where models run."""
    jobs: int | None = None
    """Tasks at a time, where that is known beforehand."""
    threads: int | None = None
    """Threads of torch in each; None: as many as there are."""
    remote: bool = False
    """Whether tasks run on other machines, whose devices are not known here."""
    placed: Path | None = None
    """A node's local folder that a store is copied into; None: read where it lies."""
    session: Any = None
    """The Spark session that reads a table; None: this process does."""

    @abstractmethod
    def map(self, task: Callable[[A], R], items: Iterable[A]) -> Outcomes[A, R]:
        """Every item with the task's result, each once and as soon as it ends, in any order; a generator.

        An error of the task, or the loss of its worker, takes the place of the result, and the
        other items go on. An item is asked for when there is room to start it: whether a job still
        fits the time allowed is decided then. Where the caller closes the generator, what still
        runs is ended.
        """

    def results(self, task: Callable[[A], R], items: Iterable[A]) -> Iterator[tuple[A, R]]:
        """Every item with its result. Raises the first error, and ends what still runs."""
        with closing(self.map(task, items)) as outcomes:
            for item, outcome in outcomes:
                if isinstance(outcome, Exception):
                    raise outcome
                yield item, outcome

    def total(self, task: Callable[[A], R], items: Iterable[A]) -> R:
        """The results of all items, added. Raises the first error."""
        return reduce(operator.add, (result for _, result in self.results(task, items)))

    def share(self, files: Callable[[], dict[str, bytes]]) -> Any | None:
        """Send files to every worker, as an object with a `value`; None if workers see ours."""
        return None

    def check(self) -> None:
        """Raise `UserError` where tasks could not run, before anything is measured or written."""
        return None


@dataclass(frozen=True)
class Local(Runner):
    """This process, one item after another."""

    device: str = "auto"
    """Where models run."""
    threads: int | None = None
    """Threads of torch in a task; None: as many as there are."""

    def map(self, task: Callable[[A], R], items: Iterable[A]) -> Outcomes[A, R]:
        outcome_of = Attempt(task, self.threads)
        for item in items:
            yield item, outcome_of(item)


@dataclass(frozen=True)
class Threads(Runner):
    """Threads of this process, limited by cores and memory; results in the order of items."""

    task_bytes: int = 0
    """Memory that a task takes."""

    def map(self, task: Callable[[A], R], items: Iterable[A]) -> Outcomes[A, R]:
        free, most = available_bytes(), thread_count()
        fit = most if free is None or not self.task_bytes else free // 2 // self.task_bytes
        attempt = Attempt(task)
        yield from in_order(lambda item: (item, attempt(item)), items, min(most, max(fit, 1)))


def thread_count() -> int:
    """Threads at a time: polars' number, one a core unless POLARS_MAX_THREADS says else."""
    import polars as pl

    return min(pl.thread_pool_size(), MOST_THREADS)


def in_order(task: Callable[[A], R], items: Iterable[A], threads: int) -> Iterator[R]:
    """`task` of each item, in order. At most `threads` + 1 are held, which bounds memory."""
    if threads == 1:
        yield from map(task, items)
        return
    with ThreadPoolExecutor(threads) as pool:
        waiting: deque[Future[R]] = deque()
        for item in items:
            waiting.append(pool.submit(task, item))
            if len(waiting) > threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


@dataclass(frozen=True)
class Attempt(Generic[A, R]):
    """A task as workers call it: with these threads of torch, and an error in place of a result."""

    task: Callable[[A], R]
    threads: int | None = None
    """None: as many as there are."""

    def result(self, item: A) -> R:
        if self.threads is None:
            return self.task(item)
        import torch

        before = torch.get_num_threads()
        torch.set_num_threads(self.threads)
        try:
            return self.task(item)
        finally:
            torch.set_num_threads(before)

    def __call__(self, item: A) -> R | Exception:
        try:
            return self.result(item)
        except Exception as error:
            return error

    def sent(self, item: A) -> R | Exception:
        """The outcome for another process: any error becomes one made of its text alone."""
        outcome = self(item)
        if isinstance(outcome, UserError):
            return UserError(str(outcome), code=outcome.code)
        if not isinstance(outcome, Exception):
            return outcome
        plain = RuntimeError(f"{type(outcome).__name__}: {outcome}")
        plain.add_note("".join(traceback.format_exception(outcome)))
        return plain


class Lost(Exception):
    """The worker of a task is gone; the text says how."""


def pull(
    start: Callable[[A], Future[R | Exception]],
    room: Callable[[], int],
    items: Iterable[A],
    tries: int,
    lost: tuple[type[Exception], ...] = (Lost,),
) -> Outcomes[A, R]:
    """`Runner.map` by workers: `start` hands an item to one, and as many work at a time as there is `room` for.

    A worker whose error is one of `lost` costs its own item one of so many `tries`, and no other
    item.
    """
    left, running = iter(items), dict[Future[R | Exception], tuple[A, int]]()
    while True:
        for item in islice(left, max(room() - len(running), 0)):
            running[start(item)] = (item, 1)
        if not running:
            return
        for future in wait(running, POLL_SECONDS, FIRST_COMPLETED).done:
            item, tried = running.pop(future)
            error = future.exception()
            if isinstance(error, lost):
                name = f"part {item}" if isinstance(item, int) else item
                reason = f"{name}: its worker is lost ({reason_line(error)})"
                if tried < tries:
                    log.info(f"{reason}, it is handed in again")
                    running[start(item)] = (item, tried + 1)
                    continue
                error = UserError(
                    f"{reason}, {tried} times, perhaps for want of memory: take fewer workers or more parts; what is "
                    "written stays",
                    code="worker-died",
                )
            yield item, error if isinstance(error, Exception) else future.result()
