"""What one process of a service holds, and what its routes ask of it: of a recommender, and of a ranking model.

`BaseService` has what both share. `Service` gives lists, and has users, items and the answer log; `PredictService`
gives click probabilities of rows.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
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
from fullrank.serving.model import ServedModel, given_history
from fullrank.serving.prediction import ServedPredictor
from fullrank.serving.requests import Answer, Ask, check_most
from fullrank.serving.rows import Place, Row
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
        """What was said of items, by id; replaced and never changed, so that threads may read it."""
        self._changing = asyncio.Lock()

    async def check(self) -> JsonObject:
        answer = await self.recommend(RecommendRequest(history=[], k=1))
        return {"version": answer["version"], "items": self.model.items.catalog.size, "store": self.store.promise}

    # -- lists

    async def recommend(self, asked: RecommendRequest, request_id: str | None = None) -> JsonObject:
        """The body of an answer. Raises `UserError` for what cannot be answered."""
        user = None if asked.user is None else str(asked.user)
        model = self._answering(user, asked.version)
        history = given_history(asked)
        if history is None:
            if user is None:
                raise UserError(
                    "give a user, or a history (an empty one gets popular items)", code="no-history", public=True
                )
            events = await self._stored(self.store.history(user, self.settings.history_most))
            history = [(event.item, event.time, event.features) for event in events]
        else:
            check_most("events in history", len(history), self.settings.history_most)
        features = None
        if user is not None and (model.features.readers["user"].fields or (model.ranked and asked.ranker is not False)):
            features = await self._stored(self.store.user(user))
        if asked.filters:
            await _prepare_mask(model, asked.filters)
        ask = model.read(asked, history, features, {of: self._names(of) for of in ("event", "asked")})
        with self._span("model"):
            answer: Answer = await self.batcher.submit(model.answer, ask, model.group(ask))
        return self._body(model, asked, ask, answer, request_id or token_hex(8))

    async def similar(self, item: str, k: int) -> JsonObject:
        """Items most like one."""
        model = self.model
        check_most("k", k, self.settings.k_most)
        number = model.number(item)
        answer = await self.batcher.submit(model.similar, (number, k), ("similar", id(model)))
        return {"item": model.items.ids[number], "version": model.name, "items": listed(model, answer, titles=True)}

    # -- users

    async def add_events(self, asked: EventsRequest) -> JsonObject:
        """Store events; they are kept as the store promises when this returns."""
        model = self.model
        check_most("events", len(asked.events), self.settings.batch_most)
        self._check("event", [one.features or {} for one in asked.events], lambda row: ("events", row, "features"))
        now, typed = time.time(), model.items.numbers.typed
        events = []
        for one in asked.events:
            user, item = str(one.user), typed(one.item)
            if one.time is not None and one.time > now + AHEAD:
                raise UserError(
                    f"the event of user {user!r} at {one.time:,.0f} lies in the future, and would stay the user's last "
                    f"for long: send seconds since 1970 (now {now:,.0f}), or leave time out for now",
                    code="time-in-future",
                    public=True,
                )
            key = one.event_id
            if key is None:  # the same event sent twice has the same id, where its time says that it is the same
                key = token_hex(16) if one.time is None else _event_id(user, item, one.time)
            events.append(Event(key, user, item, now if one.time is None else one.time, one.features))
        new = await self._stored(self.store.add_events(events))
        stored = sum(new)
        self.telemetry.events(stored, len(new) - stored)
        strange = [event.item for event in events if not model.knows(event.item)]
        return {
            "stored": stored, "duplicates": len(new) - stored, "unknown_items": list(dict.fromkeys(strange))
        }  # fmt: skip

    async def put_user(self, user: str, asked: UserRequest) -> JsonObject:
        """Keep what the model and its ranker read of a user, in place of what was put before."""
        ranker, names = self.model.state.ranker, self._names("user")
        of_ranker = () if ranker is None else ranker.fields
        if ranker is not None:
            ranker.check({name: one for name, one in asked.features.items() if name in of_ranker or name not in names})
        self._check("user", [asked.features], lambda _: ("features",), of_ranker)
        await self._stored(self.store.put_user(user, asked.features))
        return {"user": user, "features": asked.features}

    async def history(self, user: str, limit: int) -> JsonObject:
        """A user's last events, oldest first."""
        check_most("limit", limit, self.settings.history_most)
        events, title = await self._stored(self.store.history(user, limit)), self.model.title
        told = [
            {"item": one.item, "time": one.time, "title": title(one.item)}
            | ({"features": one.features} if one.features else {})
            for one in events
        ]
        return {"user": user, "events": told}

    async def delete_user(self, user: str) -> JsonObject:
        """Forget a user: events, features, logged answers."""
        gone = await self._stored(self.store.delete_user(user))
        answers = 0 if self.log is None else await asyncio.to_thread(self.log.forget, user)
        return {"user": user, "events": gone.events, "features": gone.features, "answers": answers}

    # -- items

    async def search_items(self, query: str, limit: int) -> JsonObject:
        """Items by words of their title."""
        model = self.model
        found = await asyncio.to_thread(model.items.search, query, limit)
        return {"items": [model.described(int(number)) for number in found]}

    def item(self, item: str) -> JsonObject:
        """What is known of one item."""
        model = self.model
        return model.described(model.number(item))

    async def put_items(self, asked: ItemsRequest) -> JsonObject:
        """Add and change items: they hold here when this returns, and in every process within a second.

        Raises `UserError` for a change that the version which answers cannot take in; then none is made.
        """
        check_most("items", len(asked.items), self.settings.batch_most)
        model = self.model
        async with self._changing:
            while True:
                # A change is of what all processes said so far: what is not mentioned in it stays as it is.
                await self._stored(super()._take_in())
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

    # -- inside

    def _names(self, of: str) -> set[str]:
        """The features that any open version reads: one that does not read them passes them over."""
        return set[str]().union(*(model.features.readers[of].fields for model in self.versions.models()))

    def _check(self, of: str, rows: Sequence[Row], at: Callable[[int], Place], more: Collection[str] = ()) -> None:
        """Raise `RowMistakes` for features to be stored that no version reads, or this one not so; where no version
        reads any, all are kept."""
        if names := self._names(of):
            self.model.features.readers[of].columns(rows, at, {*names, *more})

    def body_schemas(self) -> JsonObject:
        forms = {
            "Features": ("asked", "Features of the user and of the request, as the model reads them."),
            "UserFeatures": ("user", "Features of the user, as the model reads them, beside fields of a ranker."),
            "EventFeatures": ("event", "Features of an event and of its request, as the model reads them."),
        }
        return {name: self.model.features.readers[of].schema(name, told) for name, (of, told) in forms.items()}

    def _open_model(self, folder: Path) -> ServedModel:
        model = ServedModel.open(folder, self.settings, self.items)
        while model.documents is not (items := self.items):  # opening takes a while: little is left for `_adopt`
            model.put(model.changed(items))
        return model

    def _adopt(self, model: ServedModel) -> None:
        if model.documents is not self.items:
            model.put(model.changed(self.items))

    async def _bring_up_to_date(self) -> None:
        """Have every open version take in what is said of items now."""
        for model in self.versions.models():
            if model.documents is not self.items:
                state = await asyncio.to_thread(model.changed, self.items)
                await self.batcher.call(lambda model=model, state=state: model.put(state))  # type: ignore[misc]

    def _keep(self, documents: Sequence[Document]) -> None:
        super()._keep(documents)
        fresh = {one.key: one.body for one in documents if one.kind == ITEM}
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

    def _merged(self, model: ServedModel, asked: ItemsRequest) -> dict[str, JsonObject]:
        """The documents of the items of a request: what was said of each before, and what it says."""
        bodies: dict[str, JsonObject] = {}
        for one in asked.items:
            item = model.items.numbers.typed(one.id)
            key = str(item)
            before: Mapping[str, Any] = bodies.get(key) or self.items.get(key) or {}
            given = one.model_dump(exclude_unset=True, exclude={"id"})
            if given.get("features") and before.get("features"):
                given["features"] = {**before["features"], **given["features"]}
            bodies[key] = {**before, **given, "id": item}
        return bodies

    def _body(
        self, model: ServedModel, asked: RecommendRequest, ask: Ask, answer: Answer, request_id: str
    ) -> JsonObject:
        items = listed(model, answer, titles=asked.titles or asked.explain)
        body: JsonObject = {
            "request_id": request_id, "version": model.name, "source": answer.source, "ranked": answer.ranked,
            "items": items,
        }  # fmt: skip
        if answer.steps is not None:
            body["steps"] = answer.steps
        if ask.untimed:
            body["untimed"] = True
        if ask.told.lacking:
            body["not_given"] = ask.told.lacking
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


def _event_id(user: str, item: int | str, moment: float) -> str:
    return sha256(f"{user}\0{item}\0{moment!r}".encode()).hexdigest()[:32]


def listed(model: ServedModel, answer: Answer, *, titles: bool) -> list[JsonObject]:
    """The places of a list, best first."""
    places = zip(answer.ids, answer.scores, strict=True)
    if titles:
        return [{**model.named(one), "score": score} for one, score in places]
    ids = model.items.ids
    return [{"item": ids[one], "score": score} for one, score in places]


def add_reasons(model: ServedModel, ask: Ask, answer: Answer, body: JsonObject) -> None:
    """Put into a body why: the events of the history that each item is like, what each feature moved, and the attention
    that each event got."""

    def of(number: int) -> JsonObject:
        return {name: value for name, value in model.named(number).items() if name != "popularity"}

    told = answer.explanation
    if told is not None and told.because is not None:
        for one, events in zip(body["items"], told.because, strict=True):
            one["because"] = [{**of(event), "similarity": likeness} for event, likeness in events]
    for name, moved in told.features.items() if told is not None else ():
        for one, value in zip(body["items"], moved.tolist(), strict=True):
            one.setdefault("moved", {})[name] = round(value, 4)
    if told is not None and told.attention is not None:
        shares = told.attention.T.round(4).tolist()
        read = ask.items[len(ask.items) - len(shares) :].tolist()
        body["attention"] = [{**of(item), "shares": own} for item, own in zip(read, shares, strict=True)]


READ_HERE = 200
"""Rows up to which a request is read on the event loop: a thread costs some 0.1 ms."""


class PredictService(BaseService[ServedPredictor]):
    """One process. Its store holds which versions answer, and nothing of anybody."""

    problem = "ranking"

    async def predict(self, asked: PredictRequest, request_id: str | None = None) -> JsonObject:
        """The body of an answer: the probability of each row, in their order. Raises `RowMistakes` and `UserError`."""
        check_most("rows", len(asked.rows), self.settings.rows_most)
        model = self._answering(None if asked.user is None else str(asked.user), asked.version)
        if len(asked.rows) <= READ_HERE:
            frame = model.rows.frame(asked.rows)
        else:
            frame = await asyncio.to_thread(model.rows.frame, asked.rows)
        with self._span("model"):
            found: list[float] = await self.batcher.submit(model.answer, frame, id(model))
        self.telemetry.rows.inc(len(found))
        return {"request_id": request_id or token_hex(8), "version": model.name, "probabilities": found}

    async def check(self) -> JsonObject:
        answer = await self.predict(PredictRequest(rows=[dict.fromkeys(self.model.rows.fields)]))
        return {"version": answer["version"], "columns": len(self.model.rows.fields)}

    def body_schemas(self) -> JsonObject:
        return {
            "Row": self.model.rows.schema("Row", "An impression: every column, null where it is missing.", whole=True)
        }

    def _open_model(self, folder: Path) -> ServedPredictor:
        return ServedPredictor.open(folder, self.settings)

    def _served(self) -> JsonObject:
        return {"columns": len(self.model.rows.fields)}

    def _card(self, model: ServedPredictor) -> JsonObject:
        return model.card()
