"""The services that routes call, one object in each process: of a recommender, and of a ranking model.

`BaseService` has what both share. `Service` gives lists, and has users, items and the answer log;
`PredictService` gives click probabilities of rows.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path
from secrets import token_hex
from typing import Any

from fullrank.core.errors import UserError
from fullrank.core.log import logger
from fullrank.serving.answers import AnswerLog, LoggedAnswer
from fullrank.serving.base import BaseService
from fullrank.serving.card import model_card, sample_histories
from fullrank.serving.messages import (
    EventsRequest,
    ItemsRequest,
    JsonObject,
    PredictRequest,
    RecommendRequest,
    UserRequest,
)
from fullrank.serving.model import ServedModel, request_history
from fullrank.serving.prediction import ServedPredictor
from fullrank.serving.requests import Answer, Query, check_most
from fullrank.serving.rows import Location, Row
from fullrank.serving.settings import ServeSettings
from fullrank.serving.stores import Document, Event
from fullrank.serving.telemetry import Telemetry, Tracing

log = logger(__name__)
AHEAD = 86_400.0
"""Seconds by which the clock of a caller may be ahead."""
MASKED_HERE = 20_000
"""Items of a catalogue up to which filters are read on the event loop: a column takes some 0.1 ms."""
ITEM = "item"
"""Kind of the documents of items."""


class Service(BaseService[ServedModel]):
    """One process of a recommender."""

    problem = "retrieval"

    def __init__(self, settings: ServeSettings, telemetry: Telemetry | None = None, tracing: Tracing | None = None):
        super().__init__(settings, telemetry, tracing)
        self.log = None if settings.log is None else AnswerLog(settings.log, days=settings.log_days)
        self.items: dict[str, Mapping[str, Any] | None] = {}
        """Item id -> its document; replaced and never changed, so that threads may read it."""
        self._changing = asyncio.Lock()

    async def check(self) -> JsonObject:
        answer = await self.recommend(RecommendRequest(history=[], k=1))
        return {"version": answer["version"], "items": self.model.items.catalog.size, "store": self.store.promise}

    # -- lists

    async def recommend(self, request: RecommendRequest, request_id: str | None = None) -> JsonObject:
        """The body of an answer. Raises `UserError` for what cannot be answered."""
        user = None if request.user is None else str(request.user)
        model = self._answering(user, request.version)
        history = request_history(request)
        if history is not None:
            check_most("events in history", len(history), self.settings.history_most)
        elif user is not None:
            events = await self._stored(self.store.history(user, self.settings.history_most))
            history = [(event.item, event.time, event.features) for event in events]
        else:
            raise UserError(
                "give a user, or a history (an empty one gets popular items)", code="no-history", public=True
            )
        features, ranked = None, model.ranked and request.ranker is not False
        if user is not None and (ranked or model.features.readers["user"].fields):
            features = await self._stored(self.store.user(user))
        if request.filters:
            await _prepare_mask(model, request.filters)
        others = {source: self._names(source) for source in ("event", "request")}
        query = model.read(request, history, features, others)
        with self._span("model"):
            answer: Answer = await self.batcher.submit(model.answer, query, model.group(query))
        return self._body(model, request, query, answer, request_id or token_hex(8))

    async def similar(self, item: str, k: int) -> JsonObject:
        """Items most like one."""
        model = self.model
        check_most("k", k, self.settings.k_most)
        number = model.number(item)
        answer = await self.batcher.submit(model.similar, (number, k), ("similar", id(model)))
        return {
            "item": model.items.ids[number],
            "version": model.name,
            "items": list_entries(model, answer, titles=True),
        }

    # -- users

    async def add_events(self, request: EventsRequest) -> JsonObject:
        """Store events; they are kept as the store promises when this returns."""
        model = self.model
        check_most("events", len(request.events), self.settings.batch_most)
        self._check("event", [sent.features or {} for sent in request.events], lambda row: ("events", row, "features"))
        now, typed = time.time(), model.items.numbers.typed
        events = []
        for sent in request.events:
            user, item, at = str(sent.user), typed(sent.item), now if sent.time is None else sent.time
            if at > now + AHEAD:
                raise UserError(
                    f"the event of user {user!r} at {at:,.0f} lies in the future, and would stay the user's last "
                    f"for long: send seconds since 1970 (now {now:,.0f}), or leave time out for now",
                    code="time-in-future",
                    public=True,
                )
            key = sent.event_id
            if key is None:  # the same event sent twice has the same id, where its time says that it is the same
                key = token_hex(16) if sent.time is None else _event_id(user, item, at)
            events.append(Event(key, user, item, at, sent.features))
        new = await self._stored(self.store.add_events(events))
        stored, duplicates = sum(new), len(new) - sum(new)
        self.telemetry.events(stored, duplicates)
        unknown = dict.fromkeys(event.item for event in events if not model.knows(event.item))
        return {"stored": stored, "duplicates": duplicates, "unknown_items": list(unknown)}

    async def put_user(self, user: str, request: UserRequest) -> JsonObject:
        """Store features of a user for the model and its ranker, in place of those that were put before."""
        ranker, names = self.model.state.ranker, self._names("user")
        of_ranker = () if ranker is None else ranker.fields
        if ranker is not None:
            for_ranker = request.features.keys() - (names - {*of_ranker})
            ranker.check({name: value for name, value in request.features.items() if name in for_ranker})
        self._check("user", [request.features], lambda _: ("features",), of_ranker)
        await self._stored(self.store.put_user(user, request.features))
        return {"user": user, "features": request.features}

    async def history(self, user: str, limit: int) -> JsonObject:
        """A user's last events, oldest first."""
        check_most("limit", limit, self.settings.history_most)
        events, title = await self._stored(self.store.history(user, limit)), self.model.title
        past: list[JsonObject] = []
        for event in events:
            past.append({"item": event.item, "time": event.time, "title": title(event.item)})
            if event.features:
                past[-1]["features"] = event.features
        return {"user": user, "events": past}

    async def delete_user(self, user: str) -> JsonObject:
        """Forget a user: events, features, logged answers."""
        gone = await self._stored(self.store.delete_user(user))
        answers = 0 if self.log is None else await asyncio.to_thread(self.log.forget, user)
        return {"user": user, "events": gone.events, "features": gone.features, "answers": answers}

    # -- items

    async def search_items(self, query: str, limit: int) -> JsonObject:
        """Items by words of their title."""
        model = self.model
        numbers = await asyncio.to_thread(model.items.search, query, limit)
        return {"items": [model.described(int(number)) for number in numbers]}

    def item(self, item: str) -> JsonObject:
        """Title, popularity and columns of one item."""
        model = self.model
        return model.described(model.number(item))

    async def put_items(self, request: ItemsRequest) -> JsonObject:
        """Add and change items: they hold here when this returns, and in every process within a second.

        Raises `UserError` for a change that the version which answers cannot take in; then none is
        made.
        """
        check_most("items", len(request.items), self.settings.batch_most)
        model = self.model
        async with self._changing:
            while True:
                # A change is of the documents of all processes so far: what it does not
                # mention stays as it is.
                await self._stored(super()._take_in())
                bodies = self._merged(model, request)
                new = {key: not model.knows(body["id"]) for key, body in bodies.items()}
                # Made before it is stored: what this version cannot take in is refused, and
                # no process hears of it.
                items = {**self.items, **bodies}
                state = await asyncio.to_thread(model.changed, items, bodies.keys())
                meanwhile = await self._stored(self.store.documents(self._sequence))
                if not any(document.kind == ITEM and document.key in bodies for document in meanwhile):
                    break
            await self._stored(self.store.put_documents(ITEM, bodies))
            self.items = items
            await self.batcher.call(partial(model.put, state))
            await self._bring_up_to_date()
        origin = model.items.origin
        return {"items": [{"item": body["id"], "new": new[key], **origin(body["id"])} for key, body in bodies.items()]}

    # -- inside

    def _names(self, source: str) -> set[str]:
        """The features that any open version reads: one that does not
        read them passes them over."""
        return set[str]().union(*(model.features.readers[source].fields for model in self.versions.models()))

    def _check(
        self, source: str, rows: Sequence[Row], at: Callable[[int], Location], more: Collection[str] = ()
    ) -> None:
        """Raise `RowMistakes` for features to be stored that no open version reads, or whose values this one refuses.

        Where no version reads any, all are kept.
        """
        if names := self._names(source):
            self.model.features.readers[source].columns(rows, at, {*names, *more})

    def body_schemas(self) -> JsonObject:
        forms = {
            "Features": ("request", "Features of the user and of the request, as the model reads them."),
            "UserFeatures": ("user", "Features of the user, as the model reads them, beside fields of a ranker."),
            "EventFeatures": ("event", "Features of an event and of its request, as the model reads them."),
        }
        readers = self.model.features.readers
        return {name: readers[source].schema(name, text) for name, (source, text) in forms.items()}

    def _open_model(self, folder: Path) -> ServedModel:
        model = ServedModel.open(folder, self.settings, self.items)
        while model.documents is not (items := self.items):  # opening takes a while: little is left for `_adopt`
            model.put(model.changed(items))
        return model

    def _adopt(self, model: ServedModel) -> None:
        if model.documents is not self.items:
            model.put(model.changed(self.items))

    async def _bring_up_to_date(self) -> None:
        """Have every open version take in the documents of items as they are now."""
        for model in self.versions.models():
            if model.documents is not self.items:
                state = await asyncio.to_thread(model.changed, self.items)
                await self.batcher.call(partial(model.put, state))

    def _keep(self, documents: Sequence[Document]) -> None:
        super()._keep(documents)
        fresh = {document.key: document.body for document in documents if document.kind == ITEM}
        if any(self.items.get(key) != body for key, body in fresh.items()):
            self.items = {**self.items, **fresh}

    def _opened(self) -> None:
        log.info(f"the store: {self.store.promise}")
        if self.log is not None:
            self.log.open()

    async def _flush(self) -> None:
        if self.log is not None:
            await asyncio.to_thread(self.log.close)

    def _served(self) -> JsonObject:
        return {"items": self.model.items.size, "store": self.store.promise}

    def _count(self) -> None:
        live = self.model.items.at(time.time())
        self.telemetry.items(int((~live.barred).sum()), int(live.barred.sum()))

    def _card(self, model: ServedModel) -> JsonObject:
        ranker = None if model.state.ranker is None else model.state.ranker.run
        histories = sample_histories(model.run)
        return model_card(model.run, model.predictor, histories=histories, ranker=ranker, reads=model.features.reads)

    def _changing_card(self, model: ServedModel) -> JsonObject:
        return {"search": model.state.finder.described(), "filters": model.items.filterable}

    async def _take_in(self) -> None:
        documents = await self.store.documents(self._sequence)
        for document in documents:  # at once: a swap does not wait for items
            self.versions.follow(document)
        if documents or any(model.documents is not self.items for model in self.versions.models()):
            async with self._changing:
                await super()._take_in()  # again: an item may have been changed here since
                await self._bring_up_to_date()

    def _merged(self, model: ServedModel, request: ItemsRequest) -> dict[str, JsonObject]:
        """The documents of the items of a request: the former one of each, and
        what the request says over it."""
        bodies: dict[str, JsonObject] = {}
        for change in request.items:
            item = model.items.numbers.typed(change.id)
            key = str(item)
            before: Mapping[str, Any] = bodies.get(key) or self.items.get(key) or {}
            stated = change.model_dump(exclude_unset=True, exclude={"id"})
            if stated.get("features") and before.get("features"):
                stated["features"] = {**before["features"], **stated["features"]}
            bodies[key] = {**before, **stated, "id": item}
        return bodies

    def _body(
        self, model: ServedModel, request: RecommendRequest, query: Query, answer: Answer, request_id: str
    ) -> JsonObject:
        """The body of an answer, which is logged on the way."""
        items = list_entries(model, answer, titles=request.titles or request.explain)
        body: JsonObject = {
            "request_id": request_id,
            "version": model.name,
            "source": answer.source,
            "ranked": answer.ranked,
            "items": items,
        }
        if answer.steps is not None:
            body["steps"] = answer.steps
        if query.untimed:
            body["untimed"] = True
        if query.features.missing:
            body["not_given"] = query.features.missing
        if request.explain:
            add_reasons(model, query, answer, body)
        if self.log is not None:
            logged = LoggedAnswer(
                time.time(),
                request_id,
                query.user,
                model.name,
                answer.source,
                request.k,
                items=[entry["item"] for entry in items],
                scores=answer.scores,
                history=len(query.items),
                filtered=bool(request.filters or request.exclude or request.allow is not None),
                ranked=answer.ranked,
            )
            self.log.add([logged])
        return body


async def _prepare_mask(model: ServedModel, filters: Mapping[str, Any]) -> None:
    """Make the mask of filters on a thread, where many items would keep the event loop; raises as `read` would."""
    items = model.items.at(time.time())
    if items.size > MASKED_HERE and not items.has_mask(filters):
        await asyncio.to_thread(items.mask, filters)


def _event_id(user: str, item: int | str, moment: float) -> str:
    return sha256(f"{user}\0{item}\0{moment!r}".encode()).hexdigest()[:32]


def list_entries(model: ServedModel, answer: Answer, *, titles: bool) -> list[JsonObject]:
    """The places of a list, best first."""
    places, ids = zip(answer.ids, answer.scores, strict=True), model.items.ids
    if titles:
        return [{**model.named(number), "score": score} for number, score in places]
    return [{"item": ids[number], "score": score} for number, score in places]


def add_reasons(model: ServedModel, query: Query, answer: Answer, body: JsonObject) -> None:
    """Put reasons into a body.

    For each item these are the events of the history that it is like, and how much each feature
    moved its score; for each event, the attention that it got.
    """

    def of(number: int) -> JsonObject:
        return {name: value for name, value in model.named(number).items() if name != "popularity"}

    explanation = answer.explanation
    if explanation is None:
        return
    if explanation.because is not None:
        for entry, events in zip(body["items"], explanation.because, strict=True):
            entry["because"] = [{**of(event), "similarity": likeness} for event, likeness in events]
    for name, moved in explanation.features.items():
        for entry, value in zip(body["items"], moved.tolist(), strict=True):
            entry.setdefault("moved", {})[name] = round(value, 4)
    if explanation.attention is not None:
        shares = explanation.attention.T.round(4).tolist()
        read = query.items[len(query.items) - len(shares) :].tolist()
        body["attention"] = [{**of(item), "shares": row} for item, row in zip(read, shares, strict=True)]


READ_HERE = 200
"""Rows up to which a request is read on the event loop: a thread costs some 0.1 ms."""


class PredictService(BaseService[ServedPredictor]):
    """One process. Its store holds which versions answer, and nothing about users."""

    problem = "ranking"

    async def predict(self, request: PredictRequest, request_id: str | None = None) -> JsonObject:
        """The body of an answer: the probability of each row, in their order. Raises `RowMistakes` and `UserError`."""
        check_most("rows", len(request.rows), self.settings.rows_most)
        model = self._answering(None if request.user is None else str(request.user), request.version)
        if len(request.rows) <= READ_HERE:
            frame = model.rows.frame(request.rows)
        else:
            frame = await asyncio.to_thread(model.rows.frame, request.rows)
        with self._span("model"):
            probabilities: list[float] = await self.batcher.submit(model.answer, frame, id(model))
        self.telemetry.rows.inc(len(probabilities))
        return {"request_id": request_id or token_hex(8), "version": model.name, "probabilities": probabilities}

    async def check(self) -> JsonObject:
        answer = await self.predict(PredictRequest(rows=[dict.fromkeys(self.model.rows.fields)]))
        return {"version": answer["version"], "columns": len(self.model.rows.fields)}

    def body_schemas(self) -> JsonObject:
        text = "An impression: every column, null where it is missing."
        return {"Row": self.model.rows.schema("Row", text, whole=True)}

    def _open_model(self, folder: Path) -> ServedPredictor:
        return ServedPredictor.open(folder, self.settings)

    def _served(self) -> JsonObject:
        return {"columns": len(self.model.rows.fields)}

    def _card(self, model: ServedPredictor) -> JsonObject:
        return model.card()
