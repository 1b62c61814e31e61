"""Calls that go together: what queued while one round trip was under way is the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from fullrank.serving.stores import StoreUnavailable, settle

MOST_TOGETHER = 1024
"""Calls of one round trip."""
MOST_WAITING = 100_000
"""Calls that wait; above it they are refused, since the server does not keep up."""


class Gatherer:
    """Hands calls to `send` in lists, in order, one list at a time; `send` returns a result for each."""

    def __init__(self, send: Callable[[Sequence[Any]], Awaitable[Sequence[Any]]], most: int = MOST_TOGETHER):
        self._send, self._most = send, most
        self._waiting: list[tuple[Any, asyncio.Future[Any]]] = []
        self._task: asyncio.Task[None] | None = None

    async def __call__(self, call: Any) -> Any:
        if len(self._waiting) >= MOST_WAITING:
            raise StoreUnavailable(f"{len(self._waiting):,} calls wait for the store; try again later")
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        self._waiting.append((call, future))
        if self._task is None:
            self._task = loop.create_task(self._run())
        return await future

    async def finish(self) -> None:
        """Wait until nothing is under way."""
        while self._task is not None:
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        taken: list[tuple[Any, asyncio.Future[Any]]] = []
        try:
            while self._waiting:
                taken, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
                try:
                    results = await self._send([call for call, _ in taken])
                except StoreUnavailable as error:
                    taken, self._waiting = taken + self._waiting, []  # those too would wait for nothing
                    _fail(taken, error)
                except Exception as error:
                    _fail(taken, error)
                else:
                    for (_, future), result in zip(taken, results, strict=True):
                        settle(future, result)
        finally:
            self._task = None
            _fail(taken + self._waiting, StoreUnavailable("the store was closed meanwhile"))  # cancelled
            self._waiting = []


def _fail(calls: Sequence[tuple[Any, asyncio.Future[Any]]], error: Exception) -> None:
    for _, future in calls:
        settle(future, error)
