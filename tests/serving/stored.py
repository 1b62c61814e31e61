"""A history store that is opened, worked with, and closed; and calls of events."""

import asyncio
from collections.abc import Callable

from fullrank.serving.stores import Event, open_history_store
from store_writer import PARTS


def with_store(address: object, work: Callable, keep: int = 1_000_000):
    """What `work` returns, given the store at an address."""

    async def run():
        store = open_history_store(str(address), keep)
        await store.open()
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(run())


def call(name: str, user: str = "u") -> list:
    """Events that are sent at once."""
    return [Event(f"{name}/{part}", user, part, 1.0) for part in range(PARTS)]
