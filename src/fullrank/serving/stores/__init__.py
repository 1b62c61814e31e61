"""History stores of the service: events, features of users, and documents that all processes read.

A store is opened by its address (`open_history_store`), and keeps the data of a call before the
call returns; its `promise` says what "keeps" means (a killed process, a loss of power). SQLite is
for one machine, Redis or Valkey for several, memory for trying out. `fullrank.testing.stores`
checks the duties of every store.
"""

from __future__ import annotations

import asyncio
import importlib
import math
import random
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pydantic_core import PydanticSerializationError, from_json, to_json

from fullrank.core.errors import UserError, brief

KEEP = 1000
"""Events kept of each user unless a store is told otherwise."""
STORES = {
    "sqlite": "fullrank.serving.stores.sqlite:SqliteStore",
    "redis": "fullrank.serving.stores.redis:RedisStore",
    "rediss": "fullrank.serving.stores.redis:RedisStore",
    "unix": "fullrank.serving.stores.redis:RedisStore",
    "memory": "fullrank.serving.stores.memory:MemoryStore",
}
"""Scheme of an address -> module and class; a new store joins by being listed."""


@dataclass(frozen=True, slots=True)
class Event:
    """An event: `user` chose `item` at `time`. Of one user, an `event_id` is stored once."""

    event_id: str
    user: str
    item: int | str
    time: float
    """Seconds since 1970."""
    features: Mapping[str, Any] | None = None
    """Features of the event."""


class EventRow(NamedTuple):
    """An event as stores keep it."""

    event_id: str
    user: str
    time: float
    body: str
    """`["event_id",item,time]`; features stand behind the id, where readers that know of none pass over them."""


@dataclass(frozen=True, slots=True)
class Document:
    """The latest `body` of a (kind, key), and when it was put among all documents; no body: it was removed."""

    kind: str
    key: str
    body: dict[str, Any] | None
    sequence: int


@dataclass(frozen=True, slots=True)
class Forgotten:
    """The data of a user that was deleted."""

    events: int
    features: bool


class StoreUnavailable(UserError):
    """The store cannot be reached, or could not write (code `store-unavailable`). Trying again later may help."""

    def __init__(self, sentence: str):
        super().__init__(sentence, code="store-unavailable")


class HistoryStore(ABC):
    """A store of the data that must survive the service.

    Every method but `open` and `close` may be called at any time, by many tasks of one event loop,
    and raises `StoreUnavailable` where the store cannot be reached; nothing is half-written then.

    A call that was cancelled, or that failed, may have been stored all the same: send
    events again with their ids.
    """

    promise: str
    """One sentence: which data survive what once a call has returned. Some stores know it only when they are open."""
    file: Path | None = None
    """The file that `open` makes where it is not there; None for a store that makes none."""

    def __init__(self, address: str, keep: int = KEEP):
        self.address = address
        """As logs and errors may show it: without a password."""
        self.keep = keep
        """Events of each user that are kept at least; older ones go, with their ids, and are never shown."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.address!r}, keep={self.keep})"

    @abstractmethod
    async def open(self) -> None:
        """Connect; once, before anything else. Raises `UserError` where the place holds something else."""

    @abstractmethod
    async def close(self) -> None:
        """Finish what was begun and let go. Calls after it raise `StoreUnavailable`."""

    @abstractmethod
    async def ping(self) -> None:
        """Return, quickly, if the store can be reached and takes events. Raises `StoreUnavailable`."""

    async def add_events(self, events: Sequence[Event]) -> list[bool]:
        """Store all events of the call or none; they are kept on return. Raises `UserError` for what is no event.

        True: new. False: its user has an event of this id already (also earlier in the
        same call), which stays.
        """
        rows = [EventRow(e.event_id, e.user, _time(e), _event_json(e)) for e in events]
        return await self._add(rows) if rows else []

    async def history(self, user: str, limit: int) -> list[Event]:
        """The last `limit` events of a user, at most `keep`: oldest first by time, and by arrival in equal times."""
        limit = min(limit, self.keep)
        rows = from_json(f"[{await self._last(user, limit)}]") if limit > 0 and _storable(user) else []
        return [_event(user, row) for row in reversed(rows)]

    async def put_user(self, user: str, features: Mapping[str, Any]) -> None:
        """Store the features of a user in place of those that were there. Raises `UserError`."""
        text = json_text(dict(features))
        json_text(user)  # half a character, which UTF-8 cannot hold, would fail inside the store
        await self._put_user(user, text)

    async def user(self, user: str) -> dict[str, Any] | None:
        """The features of a user, or None."""
        text = await self._user(user) if _storable(user) else None
        return None if text is None else from_json(text)

    async def delete_user(self, user: str) -> Forgotten:
        """Delete events, event ids and features of a user. Raises `UserError`."""
        json_text(user)
        return Forgotten(*await self._delete_user(user))

    async def put_documents(self, kind: str, bodies: Mapping[str, dict[str, Any] | None]) -> int:
        """Store the body of each key, all or none; None removes one. Returns the number of the last (0 for no keys)."""
        rows = [(key, json_text([kind, key, body])) for key, body in bodies.items()]
        return await self._put_documents(kind, rows) if rows else 0

    async def documents(self, after: int = 0) -> list[Document]:
        """The latest document of each (kind, key) with a `sequence` above `after`, in that order.

        Whoever asks with the last number that it was given misses no document,
        whichever process put it.
        """
        latest: dict[tuple[str, str], Document] = {}
        for sequence, (kind, key, body) in await self._documents(after):
            latest[kind, key] = Document(kind, key, body, sequence)  # one that was put again between two pages
        return sorted(latest.values(), key=lambda document: document.sequence)

    async def sample_users(self, count: int, seed: int = 0) -> list[str]:
        """Up to `count` different users who have events; the same ones for equal content and seed."""
        return await self._sample(max(count, 0), random.Random(seed))

    # -- the part of each store: bodies are JSON, and users can be stored

    @abstractmethod
    async def _add(self, rows: Sequence[EventRow]) -> list[bool]:
        """See `add_events`."""

    @abstractmethod
    async def _last(self, user: str, limit: int) -> str:
        """The bodies of a user's last events, newest first, with commas between them."""

    @abstractmethod
    async def _put_user(self, user: str, features: str) -> None:
        """See `put_user`."""

    @abstractmethod
    async def _user(self, user: str) -> str | bytes | None:
        """See `user`."""

    @abstractmethod
    async def _delete_user(self, user: str) -> tuple[int, bool]:
        """How many events there were, and whether there were features."""

    @abstractmethod
    async def _put_documents(self, kind: str, rows: Sequence[tuple[str, str]]) -> int:
        """See `put_documents`; rows are a key, and `["kind","key",body]`."""

    @abstractmethod
    async def _documents(self, after: int) -> Sequence[tuple[int, Sequence[Any]]]:
        """The sequence and [kind, key, body] of each that was put after `after`, page by page."""

    @abstractmethod
    async def _sample(self, count: int, draw: random.Random) -> list[str]:
        """See `sample_users`."""


def open_history_store(address: str, keep: int = KEEP) -> HistoryStore:
    """The store at an address, not yet connected: call its `open`.

    Addresses: `sqlite:PATH` or a path; `redis://[:PASSWORD@]HOST[:PORT][/DB]`, `rediss://` (TLS)
    and `unix://[:PASSWORD@]PATH`, with `?prefix=NAME` where several services share a server;
    `memory:`. Raises `UserError`.
    """
    scheme, colon, _ = address.partition(":")
    kind = scheme.lower()
    if (
        not colon
        or "/" in scheme
        or "\\" in scheme
        or len(scheme) == 1
        or (kind not in STORES and "://" not in address)
    ):
        kind = "sqlite"  # a path, also `C:\\x` and one with a colon in it
    if address.strip().lower() in ("", "sqlite:") or "\0" in address or kind not in STORES:
        shown = brief(scheme + ":...") if "://" in address else brief(address)  # what follows may hold a password
        raise UserError(
            f"{shown} is no address of a store (allowed: a path, sqlite:PATH, redis://HOST:PORT, rediss://HOST:PORT, "
            "unix://PATH, memory:)",
            code="unknown-store-address",
        )
    module, _, name = STORES[kind].partition(":")
    store: type[HistoryStore] = getattr(importlib.import_module(module), name)
    return store(address, keep)


def settle(future: asyncio.Future[Any], outcome: Any) -> None:
    """Give whoever waits the result or the error of a call; nothing where nobody waits any more.

    Each gets a `StoreUnavailable` of its own: an error that is raised again and
    again grows its traceback.
    """
    if future.done():
        return
    if isinstance(outcome, StoreUnavailable):
        future.set_exception(StoreUnavailable(str(outcome)))
    elif isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


MOST_WAITING = 100_000
"""Rows that wait; above it calls are refused, since the store does not keep up."""


class Gatherer:
    """Hands calls that queued during one round trip to `send` together, in the next one.

    Calls go in order, in lists of up to `most` rows, one list at a time. `send` returns an outcome
    for each: its result, or its error. What it raises is the error of all of them.
    """

    def __init__(self, send: Callable[[Sequence[Any]], Awaitable[Sequence[Any]]], most: int):
        self._send, self._most = send, most
        self._waiting: deque[tuple[Any, int, asyncio.Future[Any]]] = deque()
        self._rows = 0  # of those that wait
        self._task: asyncio.Task[None] | None = None

    async def __call__(self, call: Any, rows: int = 1) -> Any:
        """The result of a call, with which so many rows go. Raises its error."""
        if self._rows + rows > max(MOST_WAITING, rows):
            raise StoreUnavailable(f"{self._rows:,} rows wait for the store; try again later")
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        self._waiting.append((call, rows, future))
        self._rows += rows
        if self._task is None:
            self._task = loop.create_task(self._run())
        return await future

    async def finish(self) -> None:
        """Wait until nothing is under way."""
        while self._task is not None:
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        """Send what waits, list after list, until nothing does; what is left at the end fails."""
        futures: list[asyncio.Future[Any]] = []
        try:
            while self._waiting:
                calls, futures = self._take(self._most)
                try:
                    outcomes = await self._send(calls)
                except Exception as error:
                    if isinstance(error, StoreUnavailable):  # those that wait would wait for nothing
                        futures += self._take(self._rows)[1]
                    outcomes = [error] * len(futures)
                for future, outcome in zip(futures, outcomes, strict=True):
                    settle(future, outcome)
        finally:
            self._task = None
            for future in futures + self._take(self._rows)[1]:
                settle(future, StoreUnavailable("the store was closed meanwhile"))  # cancelled

    def _take(self, most: int) -> tuple[list[Any], list[asyncio.Future[Any]]]:
        """The first calls with so many rows, one call at least, and their futures."""
        calls: list[Any] = []
        futures: list[asyncio.Future[Any]] = []
        while self._waiting and (not calls or self._waiting[0][1] <= most):
            call, rows, future = self._waiting.popleft()
            calls.append(call)
            futures.append(future)
            most -= rows
            self._rows -= rows
        return calls, futures


def json_text(value: Any) -> str:
    """JSON, as stores hold it."""
    try:
        return to_json(value).decode()
    except (PydanticSerializationError, ValueError) as error:
        raise UserError(
            f"{brief(value)} cannot be stored as JSON: {str(error)[:100]}; give text, numbers, lists and mappings",
            code="not-storable",
            public=True,
        ) from None


def _storable(text: str) -> bool:
    """Whether a text can be stored: one with half a character (a lone surrogate)
    cannot, so nothing is known of it."""
    try:
        return bool(text.isascii() or text.encode())
    except UnicodeEncodeError:
        return False


def _time(event: Event) -> float:
    if not math.isfinite(event.time):
        raise UserError(
            f"the time of event {brief(event.event_id)} is {event.time}; give seconds since 1970",
            code="time-not-finite",
            public=True,
        )
    return float(event.time)


def _event_json(event: Event) -> str:
    if isinstance(event.item, bool):
        raise UserError(f"{event.item} is no item id; give text or a whole number", code="not-an-item-id", public=True)
    json_text(event.user)
    known = [dict(event.features)] if event.features else []
    return json_text([event.event_id, *known, event.item, float(event.time)])


def _event(user: str, row: list[Any]) -> Event:
    """The event of a stored body; a store may have put values before it."""
    features = row.pop(-3) if isinstance(row[-3], dict) else None
    *_, event_id, item, at = row
    return Event(event_id, user, item, at, features)
