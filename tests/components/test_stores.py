"""Every history store passes the checks of `fullrank.testing.stores`, which catch planted faults."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest

from fullrank.serving.stores import STORES, Document, Event, open_history_store
from fullrank.serving.stores.memory import MemoryStore
from fullrank.testing import stores
from fullrank.testing.stores import CHECKS, SHARED, run_check
from redis_servers import SERVERS, Server, missing

KINDS = ("memory", "sqlite", *SERVERS)


@pytest.fixture(scope="module", params=KINDS)
def make(request, tmp_path_factory) -> Iterator:
    """Makes stores of one kind; a server of its own is started where it is found."""
    kind, folder = request.param, tmp_path_factory.mktemp("stores")
    if kind in ("memory", "sqlite"):
        place = "memory:" if kind == "memory" else f"sqlite:{folder}"
        yield lambda name, keep: open_history_store(place if kind == "memory" else f"{place}/{name}.db", keep)
        return
    if missing(kind):
        pytest.skip(missing(kind))
    with Server(folder, kind) as server:
        yield lambda name, keep: open_history_store(f"{server.address}?prefix={name}", keep)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_stores(make, check) -> None:
    asyncio.run(run_check(make, check))


@pytest.mark.parametrize("check", SHARED, ids=lambda check: check.__name__)
def test_stores_of_two_processes(make, check) -> None:
    if isinstance(make("x", 1), MemoryStore):
        pytest.skip("memory is not shared")
    asyncio.run(run_check(make, check, 2))


def test_every_kind_of_store_is_checked() -> None:
    """A new store in the table needs a place in `make` above."""
    assert {place.rpartition(":")[2] for place in STORES.values()} == {"MemoryStore", "SqliteStore", "RedisStore"}


class Twice(MemoryStore):
    """Planted: stores an event as often as it comes."""

    def _added(self, event):
        self._known.clear()
        return super()._added(event)


class Everybody(MemoryStore):
    """Planted: an event id is known of all users together."""

    def _added(self, event):
        return all(event.event_id not in known for known in self._known.values()) and super()._added(event)


class Arriving(MemoryStore):
    """Planted: the order of arrival."""

    def _added(self, event):
        return super()._added(event._replace(time=0.0))


class Textual(MemoryStore):
    """Planted: item ids are text."""

    async def history(self, user, limit):
        return [Event(e.event_id, e.user, str(e.item), e.time) for e in await super().history(user, limit)]


class Bare(MemoryStore):
    """Planted: features of events are lost."""

    async def add_events(self, events):
        return await super().add_events([replace(event, features=None) for event in events])


class Hoarding(MemoryStore):
    """Planted: keeps, and shows, twice as much as it was told."""

    def _added(self, event):
        self.keep, keep = 2 * self.keep, self.keep
        try:
            return super()._added(event)
        finally:
            self.keep = keep

    async def history(self, user, limit):
        self.keep, keep = 2 * self.keep, self.keep
        try:
            return await super().history(user, limit)
        finally:
            self.keep = keep


class Merging(MemoryStore):
    """Planted: features join those that were there."""

    async def put_user(self, user, features):
        await super().put_user(user, {**(await self.user(user) or {}), **features})


class Remembering(MemoryStore):
    """Planted: the event ids of who is forgotten stay."""

    async def delete_user(self, user):
        known = self._known.get(user, set())
        found = await super().delete_user(user)
        self._known[user] = known
        return found


class Overlooking(MemoryStore):
    """Planted: a document that is put again keeps its number."""

    async def put_documents(self, kind, bodies):
        before = dict(self._bodies)
        last = await super().put_documents(kind, bodies)
        for place, (number, _) in before.items():
            self._bodies[place] = (number, self._bodies[place][1])
        return last


class Repeating(MemoryStore):
    """Planted: a sample may hold one user twice, and who has no events."""

    async def sample_users(self, count, seed=0):
        return [*await super().sample_users(count, seed), *self._features][:count]


class Halving(MemoryStore):
    """Planted: what stands before a mistake is stored."""

    async def add_events(self, events):
        return [(await super(Halving, self).add_events([event]))[0] for event in events]


class Deaf(MemoryStore):
    """Planted: answers when it is closed."""

    async def ping(self):
        pass


class Hasty(MemoryStore):
    """Planted: shows the numbers of documents that are put while another is on its way, in the wrong order."""

    async def documents(self, after=0):
        return (await super().documents(after))[::-1]


@pytest.mark.parametrize(
    ("fault", "check"),
    [
        (Twice, "once"), (Everybody, "once"), (Arriving, "order"), (Textual, "values"), (Bare, "values"),
        (Hoarding, "kept"), (Merging, "features"), (Remembering, "forgotten"), (Overlooking, "documents"),
        (Hasty, "documents"), (Repeating, "sample"), (Halving, "refused"), (Deaf, "closed"),
    ],
)  # fmt: skip
def test_planted_faults_are_caught(fault, check) -> None:
    with pytest.raises(AssertionError):
        asyncio.run(run_check(lambda name, keep: fault(keep=keep), getattr(stores, f"check_{check}")))


class Late(MemoryStore):
    """Planted: a number is taken first and seen later, so that a reader goes past a document and never sees it."""

    def __init__(self, shared, numbers):
        super().__init__()
        self._shared, self._numbers = shared, numbers

    async def put_documents(self, kind, bodies):
        numbers = [next(self._numbers) for _ in bodies]
        await asyncio.sleep(0.003 if kind == "one" else 0)
        self._shared += [Document(kind, k, b, n) for (k, b), n in zip(bodies.items(), numbers, strict=True)]
        return numbers[-1]

    async def documents(self, after=0):
        return sorted((d for d in self._shared if d.sequence > after), key=lambda document: document.sequence)


def test_a_document_that_is_seen_late_is_caught() -> None:
    shared = []
    numbers = iter(range(1, 10**6))
    with pytest.raises(AssertionError, match="missed"):
        asyncio.run(run_check(lambda name, keep: Late(shared, numbers), stores.check_no_document_is_missed, 2))


def test_the_files_of_a_store_are_private(tmp_path) -> None:
    async def opened():
        store = open_history_store(str(tmp_path / "x.db"))
        await store.open()
        await store.add_events([Event("a", "u", 1, 1.0)])
        modes = [file.stat().st_mode & 0o777 for file in tmp_path.iterdir()]
        await store.close()
        return modes

    assert asyncio.run(opened()) == [0o600] * 3
