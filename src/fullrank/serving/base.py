"""BaseService: one process of a service of any family of models: how it opens, follows changes and closes.

Settings, store, versions, the batcher with its model thread, and the metrics. Everything here runs
on the event loop; models answer on the batcher's thread, new versions are made on threads beside
both. `Service` recommends, `PredictService` gives click probabilities.
"""

from __future__ import annotations

import asyncio
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

from fullrank.core.errors import UserError
from fullrank.core.log import logger
from fullrank.core.registry import Problem
from fullrank.run import Run
from fullrank.serving.batcher import Batcher
from fullrank.serving.messages import JsonObject
from fullrank.serving.problems import without_paths
from fullrank.serving.settings import ServeSettings
from fullrank.serving.stores import Document, StoreUnavailable, open_history_store
from fullrank.serving.telemetry import Telemetry, Tracing
from fullrank.serving.version_checks import CanarySettings, list_versions
from fullrank.serving.versions import Versions, Watched

log = logger(__name__)
POLL = 0.25
"""Seconds between two looks at the changes of other processes."""
AGAIN = 5.0
"""Seconds until a change that could not be followed is tried again."""
NO_SPAN = nullcontext()
M = TypeVar("M")
"""A version that is open; it has a `name`."""


class BaseService(ABC, Generic[M]):
    """One process. `open` it in the event loop that will ask; `close` answers what waits."""

    problem: Problem
    """Which family of models it serves."""

    def __init__(self, settings: ServeSettings, telemetry: Telemetry | None = None, tracing: Tracing | None = None):
        """Raises `UserError` for a store address that cannot be read, and for a
        setting without effect here."""
        settings.require_effect(self.problem)
        self.settings = settings
        self.store = open_history_store(settings.store, keep=settings.history_most)
        self.telemetry, self.tracing = telemetry or Telemetry(), tracing
        self.batcher = Batcher(
            most=settings.max_batch, queue=settings.queue, timeout=settings.timeout, observe=self.telemetry.batch
        )
        self.versions: Versions[M] = Versions(
            self._open_model,
            Watched(
                base=Path(os.path.realpath(settings.run)),  # which takes links that lead nowhere
                folder=None if settings.watch is None else Path(settings.watch),
                settings=CanarySettings(tolerance=settings.tolerance, recall=settings.recall),
                canaries=None if settings.canary is None else Path(settings.canary),
                auto_activate=settings.auto_activate,
                problem=self.problem,
            ),
            keep=settings.keep,
            run=lambda step: self.versions.on_loop(self.batcher.call(step), None),  # between two batches, however slow
            adopt=self._adopt,
            changed=lambda: self.telemetry.versions(self.versions.state.shares),
        )
        self._sequence = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._cards: WeakKeyDictionary[M, asyncio.Task[JsonObject]] = WeakKeyDictionary()
        self.ready = False

    async def open(self) -> None:
        """Open the store and the versions. Raises `UserError` where one of them cannot be.

        A store that is a new file is opened last, once a version can answer: a start that
        is refused leaves no file.
        """
        self.batcher.start()
        new = self.store.file is not None and not self.store.file.exists()
        documents: list[Document] = []
        if not new:
            await self.store.open()
            documents = await self.store.documents()
            self._keep(documents)
        await self.versions.begin(documents)
        if new:
            await self.store.open()
            await self._take_in()  # documents of a process that began at the same time
        self._opened()
        await self.versions.start(self.store)
        self._tasks.append(asyncio.create_task(self._follow()))
        self.telemetry.versions(self.versions.state.shares)
        self.ready = True

    async def close(self) -> None:
        """Stop following changes, answer what waits, close the store."""
        self.ready = False
        for task in self._tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        await self.versions.close()
        await self.batcher.close()
        await self._flush()
        await self.store.close()
        self.telemetry.close()
        if self.tracing is not None:
            await asyncio.to_thread(self.tracing.close)

    @property
    def model(self) -> M:
        """The version with the largest share of users."""
        return self.versions.active

    async def readiness(self) -> tuple[JsonObject, int]:
        """Whether requests can be answered, and the HTTP status.

        A store that cannot be reached is reported and leaves the status 200: requests that bring
        their history are still answered, and taking every process out of the balancer would not
        bring the store back.
        """
        if not self.ready:
            return {"status": "starting"}, 503
        problems = [] if self.versions.detail is None else [without_paths(self.versions.detail)]
        try:
            await asyncio.wait_for(self.store.ping(), 2)
        except (UserError, TimeoutError):
            problems.append("the store cannot be reached, or takes no events")
        if self.batcher.waiting >= self.settings.queue:
            problems.append("the queue is full")
        status, version = "degraded" if problems else "ok", self.versions.state.first
        return {"status": status, "problems": problems, "version": version, **self._served()}, 200

    async def metrics(self) -> tuple[bytes, str]:
        """The metrics for Prometheus, and their content type."""
        self.telemetry.queue.set(self.batcher.waiting)
        self._count()
        return await asyncio.to_thread(self.telemetry.rendered)

    async def card(self, version: str | None = None) -> JsonObject:
        """The card of a version, computed once, beside what answers."""
        model = self.model if version is None else self.versions.named(version)
        if model not in self._cards or _failed(self._cards[model]):
            self._cards[model] = asyncio.create_task(asyncio.to_thread(self._card, model))
        return {**await asyncio.shield(self._cards[model]), **self._changing_card(model)}

    # -- differences of the families; where one has nothing to do, it leaves the method out

    @abstractmethod
    async def check(self) -> JsonObject:
        """Answer one request, and say what answered: version, items or columns, store."""

    def body_schemas(self) -> JsonObject:
        """JSON schemas that bodies refer to and that follow from the run."""
        return {}

    @abstractmethod
    def _open_model(self, folder: Path) -> M:
        """Open a run, on the versions' thread. Raises `UserError`."""

    def _adopt(self, model: M) -> None:
        """Bring a version up to date, on the event loop, before it answers."""

    def _keep(self, documents: Sequence[Document]) -> None:
        """Keep the store's `documents` since `_sequence`."""
        self._sequence = max([self._sequence, *(document.sequence for document in documents)])

    async def _take_in(self) -> None:
        """Take in the changes of other processes."""
        documents = await self.store.documents(self._sequence)
        for document in documents:
            self.versions.follow(document)
        self._keep(documents)

    def _opened(self) -> None:
        """Open the log that is written beside answers, and log the promise of the store."""

    async def _flush(self) -> None:
        """Write what waits in buffers, at the end."""

    def _answering(self, user: str | None, version: str | None) -> M:
        """The version that is named, or else the one that the split of users gives this user."""
        return self.versions.for_user(user) if version is None else self.versions.named(version)

    @abstractmethod
    def _served(self) -> JsonObject:
        """Facts of the model for readyz."""

    def _count(self) -> None:
        """Set the gauges that are only read when metrics are."""

    @abstractmethod
    def _card(self, model: M) -> JsonObject:
        """The card, on a thread."""

    def _changing_card(self, model: M) -> JsonObject:
        """The part of a card that changes while the version serves."""
        return {}

    # -- inside

    async def _follow(self) -> None:
        """Follow the changes of other processes."""
        away = False
        while True:
            await asyncio.sleep(POLL)
            try:
                await self._take_in()
                if away:
                    log.warning("the store is back")
                away = False
            except StoreUnavailable as error:
                self.telemetry.store_errors.inc()
                if not away:
                    log.warning(f"{error}; what serves goes on serving")
                away = True
            except Exception:  # the next change has to be followed all the same
                log.exception("a change could not be followed; it is tried again")
                await asyncio.sleep(AGAIN)

    async def _stored(self, call: Any) -> Any:
        """A call of the store, counted where it fails."""
        try:
            with self._span("store"):
                return await call
        except StoreUnavailable:
            self.telemetry.store_errors.inc()
            raise

    def _span(self, name: str) -> AbstractContextManager[Any]:
        """A span of the request's trace; nothing where nobody traces."""
        return NO_SPAN if self.tracing is None else self.tracing.span(name)


def family_of(settings: ServeSettings) -> Problem:
    watched = (
        [] if settings.watch is None else [version.path for version in list_versions(Path(settings.watch)).values()]
    )
    for run in (Path(settings.run), *watched):
        with suppress(UserError):
            return Run.open(run).spec.problem
    return "retrieval"  # opening it says what is wrong


def _failed(task: asyncio.Task[Any]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)
