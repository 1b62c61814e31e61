"""Gatherer: what queued while one round trip to a store was under way is the next one."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from fullrank.serving.stores import StoreUnavailable, settle

MOST_WAITING = 100_000
"""Rows that wait; above it calls are refused, since the store does not keep up."""


class Gatherer:
    """Hands calls to `send` in lists of up to `most` rows, in order, one list at a time.

    `send` returns an outcome for each: its result, or its error. What it raises is the error of all of them.
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
        futures: list[asyncio.Future[Any]] = []
        try:
            while self._waiting:
                calls, futures = self._take(self._most)
                outcomes: Sequence[Any]
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
        taken, rows = list[tuple[Any, int, asyncio.Future[Any]]](), 0
        while self._waiting and (not taken or rows + self._waiting[0][1] <= most):
            taken.append(self._waiting.popleft())
            rows += taken[-1][1]
        self._rows -= rows
        return [call for call, _, _ in taken], [future for _, _, future in taken]
