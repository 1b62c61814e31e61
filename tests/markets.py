"""A small marketplace of planted events, prepared: what is tested needs a store, and no particular one."""

from pathlib import Path

from fullrank.data.events.prepare import prepare
from fullrank.data.events.store import Store
from fullrank.data.sources.planted import Planted


def planted_store(place: Path, *settings: str, users: int = 60, items: int = 40, events_per_user: float = 8) -> Store:
    tables = Planted(users=users, items=items, events_per_user=events_per_user).read()
    return prepare(tables.events, place, items=tables.items, set=settings)
