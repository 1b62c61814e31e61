"""Batcher: one model thread that answers the requests which queued while its last batch ran.

No timed window: under light load a request goes alone and at once, under load batches grow
by themselves. The queue is bounded: what does not fit is refused at once (`Overloaded`),
and what waited too long is given up (`Late`), so a burst fails some requests instead of
slowing down all of them.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from math import inf
from queue import SimpleQueue
from typing import Any

from fullrank.core.errors import UserError
from fullrank.core.log import logger
from fullrank.serving.stores import settle

log = logger(__name__)
Answering = Callable[[Sequence[Any]], Sequence[Any]]
"""A function from the requests of one group to their answers, on the model thread."""


class Overloaded(UserError):
    """More requests wait than the queue holds."""

    def __init__(self, waiting: int) -> None:
        super().__init__(f"{waiting:,} requests wait already; come back in a second", code="overloaded", public=True)


class Late(UserError):
    """A request that waited longer than it may."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"no answer within {seconds:g} seconds; come back in a second", code="deadline", public=True)


def stopping() -> UserError:
    """The error for a request to a service that ends."""
    return UserError("the service is being stopped; try again when it is back", code="service-stopping", public=True)


@dataclass(slots=True)
class Queued:
    """A request in the queue."""

    answer: Answering
    group: Hashable
    """Requests of one group go through the model together."""
    request: Any
    future: asyncio.Future[Any]
    since: float


class Batcher:
    """The queue and its thread; `submit` and `call` are for the event loop that it was started in."""

    def __init__(
        self,
        *,
        most: int = 64,
        queue: int = 512,
        timeout: float = 2.0,
        observe: Callable[[int, float, float], None] = lambda size, waited, took: None,
    ):
        """`observe` is told the size of each batch, the seconds that its oldest
        waited, and those that it took."""
        self.most, self.queue, self.timeout, self._observe = most, queue, timeout, observe
        self.waiting = 0
        """Requests that have no answer yet."""
        self._jobs: SimpleQueue[Queued | None] = SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    def start(self) -> None:
        """Start the model thread; to be called in the event loop that will submit."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="fullrank-model", daemon=True)
        self._thread.start()

    async def close(self) -> None:
        """Answer what waits, then end the thread."""
        self._closed = True
        if self._thread is not None:
            self._jobs.put(None)
            await asyncio.to_thread(self._thread.join, 30)
            self._thread = None

    def submit(self, answer: Answering, request: Any, group: Hashable = None) -> asyncio.Future[Any]:
        """A future of the answer. Raises `Overloaded` where the queue is full."""
        if self.waiting >= self.queue and not self._closed:
            raise Overloaded(self.waiting)
        return self._put(answer, group, request, time.perf_counter())

    async def call(self, work: Callable[[], Any]) -> Any:
        """Run other work on the model thread, between two batches, so that it meets no forward pass.

        The bound of the queue and the deadline hold for requests alone, not for this work.
        """
        return await self._put(lambda requests: [work() for _ in requests], object(), None, inf)

    def _put(self, answer: Answering, group: Hashable, request: Any, since: float) -> asyncio.Future[Any]:
        if self._closed:  # a request behind the last batch would wait for ever
            raise stopping()
        assert self._loop is not None
        future: asyncio.Future[Any] = self._loop.create_future()
        self.waiting += 1
        self._jobs.put(Queued(answer, group, request, future, since))
        return future

    def _run(self) -> None:
        while (jobs := self._take()) is not None:
            self._answer(jobs)

    def _take(self) -> list[Queued] | None:
        """The queued requests, at most `most`; None once the queue is closed."""
        first = self._jobs.get()
        if first is None:
            return None
        jobs = [first]
        while len(jobs) < self.most and not self._jobs.empty():  # this thread alone takes, so none is gone
            job = self._jobs.get()
            if job is None:
                self._jobs.put(None)  # behind the requests that were submitted before the close
                break
            jobs.append(job)
        return jobs

    def _answer(self, jobs: list[Queued]) -> None:
        """Answer a batch group by group: what was cancelled is left out, and what
        waited too long gets `Late`."""
        started = time.perf_counter()
        waited = max(started - jobs[0].since, 0.0)
        groups: dict[Hashable, list[Queued]] = {}
        done: list[tuple[asyncio.Future[Any], Any]] = []
        for job in jobs:
            if job.future.cancelled():
                done.append((job.future, None))
            elif started - job.since > self.timeout:
                done.append((job.future, Late(self.timeout)))
            else:
                groups.setdefault(job.group, []).append(job)
        for group in groups.values():
            done += zip((job.future for job in group), answers_of(group), strict=True)
        took = time.perf_counter() - started
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(self._deliver, done)
        except RuntimeError:  # the loop has closed: nobody waits any more
            return
        try:
            self._observe(len(jobs), waited, took)
        except Exception:  # without this thread nobody would be answered again
            log.exception("a batch could not be counted")

    def _deliver(self, done: list[tuple[asyncio.Future[Any], Any]]) -> None:
        """Give each request its answer, on the event loop."""
        self.waiting -= len(done)
        for future, answer in done:
            settle(future, answer)


def answers_of(jobs: list[Queued]) -> list[Any]:
    """The answers of one group. Where the batch fails, each request is tried alone, so
    one cannot spoil the others."""
    try:
        answers = list(jobs[0].answer([job.request for job in jobs]))
        if len(answers) != len(jobs):
            raise RuntimeError(f"{len(answers)} answers for {len(jobs)} requests")
        return answers
    except Exception as error:  # the request is answered by it; the thread has to live on
        if len(jobs) == 1:
            if not isinstance(error, UserError):
                log.exception("a request failed")
            return [error]
        return [answer for job in jobs for answer in answers_of([job])]
