"""A history store in the memory of one process, for tests and for trying out."""

from __future__ import annotations

import random
from bisect import insort
from collections.abc import Mapping, Sequence
from typing import Any

from fullrank.serving.stores import (
    KEEP,
    Document,
    Event,
    Forgotten,
    HistoryStore,
    StoreUnavailable,
    document_rows,
    event_rows,
    json_text,
    json_value,
    latest,
)


class MemoryStore(HistoryStore):
    """`memory:`. Everything is gone when the process ends, and other processes see none of it."""

    promise = "nothing survives the end of the process"

    def __init__(self, address: str = "memory:", keep: int = KEEP):
        super().__init__(address, keep)
        self._is_open = False
        self._arrived = 0
        self._events: dict[str, list[tuple[float, int, Event]]] = {}
        self._known: dict[str, set[str]] = {}
        self._features: dict[str, str] = {}
        self._documents: dict[tuple[str, str], tuple[int, str]] = {}
        self._sequence = 0

    async def open(self) -> None:
        self._is_open = True

    async def close(self) -> None:
        self._is_open = False

    async def ping(self) -> None:
        if not self._is_open:
            raise StoreUnavailable("the store in memory is closed")

    async def add_events(self, events: Sequence[Event]) -> list[bool]:
        await self.ping()
        event_rows(events)
        return [self._added(event) for event in events]

    def _added(self, event: Event) -> bool:
        known = self._known.setdefault(event.user, set())
        if event.event_id in known:
            return False
        known.add(event.event_id)
        self._arrived += 1
        events = self._events.setdefault(event.user, [])
        insort(events, (float(event.time), self._arrived, event))
        for _, _, old in events[: -self.keep]:
            known.discard(old.event_id)
        del events[: -self.keep]
        return True

    async def history(self, user: str, limit: int) -> list[Event]:
        await self.ping()
        return [event for _, _, event in self._events.get(user, ())[-limit:]] if limit > 0 else []

    async def put_user(self, user: str, features: Mapping[str, Any]) -> None:
        await self.ping()
        text = json_text(dict(features))
        json_text(user)  # as strict as the others
        self._features[user] = text

    async def user(self, user: str) -> dict[str, Any] | None:
        await self.ping()
        found = self._features.get(user)
        return None if found is None else json_value(found)

    async def delete_user(self, user: str) -> Forgotten:
        await self.ping()
        self._known.pop(user, None)
        return Forgotten(len(self._events.pop(user, ())), self._features.pop(user, None) is not None)

    async def put_documents(self, kind: str, bodies: Mapping[str, dict[str, Any] | None]) -> int:
        await self.ping()
        rows = document_rows(kind, bodies)
        for key, body in rows:
            self._sequence += 1
            self._documents[kind, key] = (self._sequence, body)
        return self._sequence if rows else 0

    async def documents(self, after: int = 0) -> list[Document]:
        await self.ping()
        return latest((n, json_value(body)) for n, body in self._documents.values() if n > after)

    async def sample_users(self, count: int, seed: int = 0) -> list[str]:
        await self.ping()
        users = [user for user, events in self._events.items() if events]
        return random.Random(seed).sample(users, min(max(count, 0), len(users)))
