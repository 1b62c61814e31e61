"""Service: what one process of the service holds, and what its routes ask of it.

Settings, store, versions, the batcher with its model thread, the answer log and the metrics. Everything here runs on
the event loop; models answer on the batcher's thread, new versions and new items are made on threads beside both.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from hashlib import sha256
from pathlib import Path
from secrets import token_hex
from typing import Any
from weakref import WeakKeyDictionary

from fullrank.core.errors import UserError
from fullrank.core.log import logger
from fullrank.serving.answers import AnswerLog, LoggedAnswer
from fullrank.serving.batcher import Batcher
from fullrank.serving.bodies import add_reasons, listed
from fullrank.serving.canary import CanarySettings
from fullrank.serving.card import model_card, sample_histories
from fullrank.serving.messages import EventsRequest, ItemsRequest, RecommendRequest, UserRequest
from fullrank.serving.model import ServedModel, given_history
from fullrank.serving.problems import without_places
from fullrank.serving.requests import Answer, Ask, check_most
from fullrank.serving.settings import ServeSettings
from fullrank.serving.stores import Event, StoreUnavailable, open_history_store
from fullrank.serving.telemetry import Telemetry
from fullrank.serving.tracing import Tracing
from fullrank.serving.versions import Versions

log = logger(__name__)
POLL = 0.25
"""Seconds between two looks at what other processes wrote."""
AHEAD = 86_400.0
"""Seconds by which the clock of a caller may be ahead."""
AGAIN = 5.0
"""Seconds until what could not be followed is tried again."""
NO_SPAN = nullcontext()
MASKED_HERE = 20_000
"""Items of a catalogue up to which filters are read on the event loop: a column takes some 0.1 ms."""
ITEM = "item"
"""Kind of the documents of items."""


class Service:
    """One process. `open` it in the event loop that will ask; `close` answers what waits and flushes."""

    def __init__(self, settings: ServeSettings, telemetry: Telemetry | None = None, tracing: Tracing | None = None):
        """Raises `UserError` for an address of a store that is none."""
        self.settings = settings
        self.store = open_history_store(settings.store, keep=settings.history_most)
        self.telemetry, self.tracing = telemetry or Telemetry(), tracing
        self.batcher = Batcher(
            most=settings.max_batch, queue=settings.queue, timeout=settings.timeout, observe=self.telemetry.batch
        )
        self.log = None if settings.log is None else AnswerLog(settings.log, days=settings.log_days)
        self.versions: Versions[ServedModel] = Versions(
            self._open_model,
            base=Path(settings.run).resolve(),
            folder=None if settings.watch is None else Path(settings.watch),
            settings=CanarySettings(tolerance=settings.tolerance, recall=settings.recall),
            canaries=None if settings.canary is None else Path(settings.canary),
            auto_activate=settings.auto_activate,
            keep=settings.keep,
            run=self._on_model_thread,
            adopt=self._adopt,
            changed=lambda: self.telemetry.versions(self.versions.state.shares),
        )
        self.items: dict[str, Mapping[str, Any] | None] = {}
        """What was said of items, by id; replaced and never changed, so that threads may read it."""
        self._sequence = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._changing = asyncio.Lock()
        self._cards: WeakKeyDictionary[ServedModel, asyncio.Task[dict[str, Any]]] = WeakKeyDictionary()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.ready = False

    async def open(self) -> None:
        """Open the store and the versions. Raises `UserError` where one of them cannot be."""
        self._loop = asyncio.get_running_loop()
        await self.store.open()
        log.info(f"the store: {self.store.promise}")
        self.batcher.start()
        documents = await self.store.documents()
        self.items = {one.key: one.body for one in documents if one.kind == ITEM}
        self._sequence = max((one.sequence for one in documents), default=0)
        await self.versions.start(self.store, documents)
        if self.log is not None:
            self.log.open()
        self._tasks.append(asyncio.create_task(self._follow()))
        self.telemetry.versions(self.versions.state.shares)
        self.ready = True

    async def close(self) -> None:
        """Stop following changes, answer what waits, flush the log, close the store."""
        self.ready = False
        for task in self._tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        if self._loop is not None:
            await self.versions.close()
            await self.batcher.close()
        if self.log is not None:
            await asyncio.to_thread(self.log.close)
        await self.store.close()
        self.telemetry.close()
        if self.tracing is not None:
            await asyncio.to_thread(self.tracing.close)

    @property
    def model(self) -> ServedModel:
        """The version with the largest share of users."""
        return self.versions.active

    # -- lists

    async def recommend(self, asked: RecommendRequest, request_id: str | None = None) -> dict[str, Any]:
        """The body of an answer. Raises `UserError` for what cannot be answered."""
        user = None if asked.user is None else str(asked.user)
        model = self.versions.for_user(user) if asked.version is None else self.versions.named(asked.version)
        history = given_history(asked)
        if history is None:
            if user is None:
                raise UserError("give a user, or a history (an empty one gets popular items)", code="no-history")
            events = await self._stored(self.store.history(user, self.settings.history_most))
            history = [(event.item, event.time) for event in events]
        else:
            check_most("events in history", len(history), self.settings.history_most)
        features = None
        if user is not None and model.state.ranker is not None and asked.ranker is not False:
            features = await self._stored(self.store.user(user))
        if asked.filters:
            await _prepare_mask(model, asked.filters)
        ask = model.read(asked, history, features)
        with self._span("model"):
            answer: Answer = await self.batcher.submit(model.answer, ask, model.group(ask))
        return self._body(model, asked, ask, answer, request_id or token_hex(8))

    async def similar(self, item: str, k: int) -> dict[str, Any]:
        """Items most like one."""
        model = self.model
        check_most("k", k, self.settings.k_most)
        number = model.number(item)
        answer = await self.batcher.submit(model.similar, (number, k), ("similar", id(model)))
        return {"item": model.items.ids[number], "version": model.name, "items": listed(model, answer, titles=True)}

    # -- users

    async def add_events(self, asked: EventsRequest) -> dict[str, Any]:
        """Store events; they are kept as the store promises when this returns."""
        model = self.model
        check_most("events", len(asked.events), self.settings.batch_most)
        now, typed = time.time(), model.numbers.typed
        events = []
        for one in asked.events:
            user, item = str(one.user), typed(one.item)
            if one.time is not None and one.time > now + AHEAD:
                raise UserError(
                    f"the event of user {user!r} at {one.time:,.0f} lies in the future, and would stay the user's last "
                    f"for long: send seconds since 1970 (now {now:,.0f}), or leave time out for now",
                    code="time-in-future",
                )
            key = one.event_id
            if key is None:  # the same event sent twice has the same id, where its time says that it is the same
                key = token_hex(16) if one.time is None else _event_id(user, item, one.time)
            events.append(Event(key, user, item, now if one.time is None else one.time))
        new = await self._stored(self.store.add_events(events))
        stored = sum(new)
        self.telemetry.events(stored, len(new) - stored)
        strange = [event.item for event in events if not model.knows(event.item)]
        return {
            "stored": stored, "duplicates": len(new) - stored, "unknown_items": list(dict.fromkeys(strange))
        }  # fmt: skip

    async def put_user(self, user: str, asked: UserRequest) -> dict[str, Any]:
        """Keep what the ranker reads of a user, in place of what was put before."""
        ranker = self.model.state.ranker
        if ranker is not None:
            ranker.check(asked.features)
        await self._stored(self.store.put_user(user, asked.features))
        return {"user": user, "features": asked.features}

    async def history(self, user: str, limit: int) -> dict[str, Any]:
        """A user's last events, oldest first."""
        check_most("limit", limit, self.settings.history_most)
        events, title = await self._stored(self.store.history(user, limit)), self.model.title
        told = [{"item": one.item, "time": one.time, "title": title(one.item)} for one in events]
        return {"user": user, "events": told}

    async def delete_user(self, user: str) -> dict[str, Any]:
        """Forget a user: events, features, logged answers."""
        gone = await self._stored(self.store.delete_user(user))
        answers = 0 if self.log is None else await asyncio.to_thread(self.log.forget, user)
        return {"user": user, "events": gone.events, "features": gone.features, "answers": answers}

    # -- items

    async def search_items(self, query: str, limit: int) -> dict[str, Any]:
        """Items by words of their title."""
        model = self.model
        found = await asyncio.to_thread(model.items.search, query, limit)
        return {"items": [model.described(int(number)) for number in found]}

    def item(self, item: str) -> dict[str, Any]:
        """What is known of one item."""
        model = self.model
        return model.described(model.number(item))

    async def put_items(self, asked: ItemsRequest) -> dict[str, Any]:
        """Add and change items: they hold here when this returns, and in every process within a second.

        Raises `UserError` for a change that the version which answers cannot take in; then none is made.
        """
        check_most("items", len(asked.items), self.settings.batch_most)
        model = self.model
        async with self._changing:
            while True:
                # A change is of what all processes said so far: what is not mentioned in it stays as it is.
                await self._stored(self._read_changes())
                bodies = self._merged(model, asked)
                new = {key: not model.knows(body["id"]) for key, body in bodies.items()}
                # Made before it is stored: what this version cannot take in is refused, and no process hears of it.
                items = {**self.items, **bodies}
                state = await asyncio.to_thread(model.changed, items, bodies.keys())
                meanwhile = await self._stored(self.store.documents(self._sequence))
                if not any(one.kind == ITEM and one.key in bodies for one in meanwhile):
                    break
            await self._stored(self.store.put_documents(ITEM, bodies))
            self.items = items
            await self.batcher.call(lambda: model.put(state))
            await self._bring_up_to_date()
        live = model.items
        return {
            "items": [{"item": body["id"], "new": new[key], **live.origin(body["id"])} for key, body in bodies.items()]
        }

    # -- operations

    async def readiness(self) -> tuple[dict[str, Any], int]:
        """Whether requests can be answered, and the HTTP status.

        A store that is away is told and leaves the status 200: histories in requests are still answered, and taking
        every process out of the balancer would not bring the store back.
        """
        if not self.ready:
            return {"status": "starting"}, 503
        problems = [] if self.versions.detail is None else [without_places(self.versions.detail)]
        try:
            await asyncio.wait_for(self.store.ping(), 2)
        except (UserError, TimeoutError):
            problems.append("the store cannot be reached")
        if self.batcher.waiting >= self.settings.queue:
            problems.append("the queue is full")
        return {
            "status": "degraded" if problems else "ok", "problems": problems, "version": self.model.name,
            "items": self.model.items.size, "store": self.store.promise,
        }, 200  # fmt: skip

    async def metrics(self) -> tuple[bytes, str]:
        """What Prometheus reads, and its content type."""
        self.telemetry.queue(self.batcher.waiting)
        live = self.model.items.at(time.time())
        self.telemetry.items(int((~live.barred).sum()), int(live.barred.sum()))
        return await asyncio.to_thread(self.telemetry.rendered)

    async def card(self, version: str | None = None) -> dict[str, Any]:
        """The card of a version, computed once, beside what answers."""
        model = self.model if version is None else self.versions.named(version)
        if model not in self._cards or _failed(self._cards[model]):
            self._cards[model] = asyncio.create_task(asyncio.to_thread(_card, model))
        card = await asyncio.shield(self._cards[model])
        return {**card, "search": model.state.finder.described(), "filters": model.items.filterable}

    # -- inside

    def _open_model(self, folder: Path) -> ServedModel:
        model = ServedModel.open(folder, folder.name, self.settings, self.items)
        while model.documents is not (items := self.items):  # opening takes a while: little is left for `_adopt`
            model.put(model.changed(items))
        return model

    def _on_model_thread(self, step: Any) -> Any:
        """Run a step of the check of a version between two batches; called from the versions' thread."""
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(self.batcher.call(step), self._loop).result()

    def _adopt(self, model: ServedModel) -> None:
        """On the event loop, before a version answers: it takes in what was said of items while it opened."""
        if model.documents is not self.items:
            model.put(model.changed(self.items))

    async def _bring_up_to_date(self) -> None:
        """Have every open version take in what is said of items now."""
        for model in self.versions.models():
            if model.documents is not self.items:
                state = await asyncio.to_thread(model.changed, self.items)
                await self.batcher.call(lambda model=model, state=state: model.put(state))  # type: ignore[misc]

    async def _follow(self) -> None:
        """Follow what other processes wrote."""
        away = False
        while True:
            await asyncio.sleep(POLL)
            try:
                await self._take_in()
                if away:
                    log.warning("the store is back")
                away = False
            except StoreUnavailable as error:
                self.telemetry.store_error()
                if not away:
                    log.warning(f"{error}; what serves goes on serving")
                away = True
            except Exception:  # the next change has to be followed all the same
                log.exception("a change could not be followed; it is tried again")
                await asyncio.sleep(AGAIN)

    async def _take_in(self) -> None:
        documents = await self.store.documents(self._sequence)
        for document in documents:  # at once: a swap does not wait for items
            self.versions.follow(document)
        if documents or any(model.documents is not self.items for model in self.versions.models()):
            async with self._changing:
                await self._read_changes()  # again: an item may have been changed here since
                await self._bring_up_to_date()

    async def _read_changes(self) -> None:
        """Read what any process wrote since the last look; whoever asks holds `_changing`."""
        documents = await self.store.documents(self._sequence)
        for document in documents:
            self.versions.follow(document)
        fresh = {one.key: one.body for one in documents if one.kind == ITEM}
        if any(self.items.get(key) != body for key, body in fresh.items()):
            self.items = {**self.items, **fresh}
        self._sequence = max([self._sequence, *(one.sequence for one in documents)])

    def _merged(self, model: ServedModel, asked: ItemsRequest) -> dict[str, dict[str, Any]]:
        """The documents of the items of a request: what was said of each before, and what it says."""
        bodies: dict[str, dict[str, Any]] = {}
        for one in asked.items:
            item = model.numbers.typed(one.id)
            key = str(item)
            before: Mapping[str, Any] = bodies.get(key) or self.items.get(key) or {}
            given = one.model_dump(exclude_unset=True, exclude={"id"})
            if given.get("features") and before.get("features"):
                given["features"] = {**before["features"], **given["features"]}
            bodies[key] = {**before, **given, "id": item}
        return bodies

    async def _stored(self, call: Any) -> Any:
        """A call of the store, counted where it fails."""
        try:
            with self._span("store"):
                return await call
        except StoreUnavailable:
            self.telemetry.store_error()
            raise

    def _span(self, name: str) -> AbstractContextManager[Any]:
        """A span of the request's trace; nothing where nobody traces."""
        return NO_SPAN if self.tracing is None else self.tracing.span(name)

    def _body(
        self, model: ServedModel, asked: RecommendRequest, ask: Ask, answer: Answer, request_id: str
    ) -> dict[str, Any]:
        items = listed(model, answer, titles=asked.titles or asked.explain)
        body: dict[str, Any] = {
            "request_id": request_id, "version": model.name, "source": answer.source, "ranked": answer.ranked,
            "items": items,
        }  # fmt: skip
        if answer.steps is not None:
            body["steps"] = answer.steps
        if asked.explain:
            add_reasons(model, ask, answer, body)
        if self.log is not None:
            self.log.add([
                LoggedAnswer(
                    time.time(), request_id, ask.user, model.name, answer.source, asked.k,
                    [one["item"] for one in items], answer.scores, len(ask.items),
                    bool(asked.filters or asked.exclude or asked.allow is not None), answer.ranked,
                )
            ])  # fmt: skip
        return body


async def _prepare_mask(model: ServedModel, filters: Mapping[str, Any]) -> None:
    """Make the mask of filters on a thread, where many items would keep the event loop; raises as `read` would."""
    items = model.items.at(time.time())
    if items.size > MASKED_HERE and not items.has_mask(filters):
        await asyncio.to_thread(items.mask, filters)


def _card(model: ServedModel) -> dict[str, Any]:
    ranker = None if model.state.ranker is None else model.state.ranker.run
    histories = sample_histories(model.run)
    return model_card(model.run, model.predictor, histories=histories, ranker=ranker, name=model.name)


def _failed(task: asyncio.Task[Any]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)


def _event_id(user: str, item: int | str, moment: float) -> str:
    return sha256(f"{user}\0{item}\0{moment!r}".encode()).hexdigest()[:32]
