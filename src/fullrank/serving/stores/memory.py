"""A history store in the memory of one process, for tests and for trying out."""

from __future__ import annotations

import random
from bisect import insort
from collections.abc import Sequence
from typing import Any

from pydantic_core import from_json

from fullrank.serving.stores import KEEP, EventRow, HistoryStore, StoreUnavailable


class MemoryStore(HistoryStore):
    """`memory:`. Everything is gone when the process ends, and other processes see none of it."""

    promise = "nothing survives the end of the process"

    def __init__(self, address: str = "memory:", keep: int = KEEP):
        super().__init__(address, keep)
        self._is_open = False
        self._arrived = 0
        self._events: dict[str, list[tuple[float, int, EventRow]]] = {}
        self._known: dict[str, set[str]] = {}
        self._features: dict[str, str] = {}
        self._bodies: dict[tuple[str, str], tuple[int, str]] = {}
        self._sequence = 0

    async def open(self) -> None:
        self._is_open = True

    async def close(self) -> None:
        self._is_open = False

    async def ping(self) -> None:
        if not self._is_open:
            raise StoreUnavailable("the store in memory is closed")

    async def _add(self, rows: Sequence[EventRow]) -> list[bool]:
        await self.ping()
        return [self._added(event) for event in rows]

    def _added(self, event: EventRow) -> bool:
        """Add one event, and drop those beyond `keep`; False where its id is known."""
        known = self._known.setdefault(event.user, set())
        if event.event_id in known:
            return False
        known.add(event.event_id)
        self._arrived += 1
        events = self._events.setdefault(event.user, [])
        insort(events, (event.time, self._arrived, event))
        for _, _, old in events[: -self.keep]:
            known.discard(old.event_id)
        del events[: -self.keep]
        return True

    async def _last(self, user: str, limit: int) -> str:
        await self.ping()
        return ",".join(event.body for _, _, event in reversed(self._events.get(user, [])[-limit:]))

    async def _put_user(self, user: str, features: str) -> None:
        await self.ping()
        self._features[user] = features

    async def _user(self, user: str) -> str | None:
        await self.ping()
        return self._features.get(user)

    async def _delete_user(self, user: str) -> tuple[int, bool]:
        await self.ping()
        self._known.pop(user, None)
        return len(self._events.pop(user, ())), self._features.pop(user, None) is not None

    async def _put_documents(self, kind: str, rows: Sequence[tuple[str, str]]) -> int:
        await self.ping()
        for key, body in rows:
            self._sequence += 1
            self._bodies[kind, key] = (self._sequence, body)
        return self._sequence

    async def _documents(self, after: int) -> Sequence[tuple[int, Sequence[Any]]]:
        await self.ping()
        return [(n, from_json(body)) for n, body in self._bodies.values() if n > after]

    async def _sample(self, count: int, draw: random.Random) -> list[str]:
        await self.ping()
        users = [user for user, events in self._events.items() if events]
        return draw.sample(users, min(count, len(users)))
