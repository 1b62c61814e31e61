"""Checks of every history store: events once and in order, documents that no reader misses, users who are forgotten.

A test of a store of yours is one line, ``asyncio.run(check_store(lambda name, keep:
MyStore(place(name), keep)))``. `name` tells places apart: two stores of one name share what they
hold, and a new name is an empty one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

from fullrank.core.errors import UserError
from fullrank.serving.stores import Document, Event, Forgotten, HistoryStore, StoreUnavailable

Make = Callable[[str, int], HistoryStore]
KEPT = 20
"""Events of each user that the stores of these checks keep."""
ODD = ["", "ü€😀", "a b", 'quo"te', "back\\slash", "new\nline", "nul\0", "{x}:y", "e", "n", "-1", "x" * 500]
"""User, event and document names that a store must keep apart as they are."""


async def check_store(make: Make, *, shared: bool = True) -> None:
    """Run every check on an empty store; those of two processes where the place can be `shared`."""
    for check in CHECKS:
        await run_check(make, check)
    for of_two in SHARED if shared else ():
        await run_check(make, of_two, 2)


async def run_check(make: Make, check: Callable[..., Awaitable[None]], count: int = 1) -> None:
    """One check on so many stores at one empty place."""
    stores = [make(check.__name__, KEPT) for _ in range(count)]
    async with AsyncExitStack() as stack:
        for store in stores:
            await store.open()
            stack.push_async_callback(store.close)
        await check(*stores)


async def check_once(store: HistoryStore) -> None:
    """An event id is stored once a user, also within a call; the first event stays."""
    first = [Event("a", "u", 1, 5.0), Event("b", "u", 2, 6.0), Event("a", "u", 3, 7.0)]
    _equal("a call with an id twice", await store.add_events(first), [True, True, False])
    again = [Event("a", "u", 4, 1.0), Event("c", "u", 5, 8.0), Event("a", "v", 6, 1.0)]
    _equal("a later call", await store.add_events(again), [False, True, True])
    _equal("the history", await store.history("u", 10), [first[0], first[1], again[1]])
    _equal("of another user", await store.history("v", 10), [again[2]])
    _equal("no events", await store.add_events([]), [])


async def check_order(store: HistoryStore) -> None:
    """Oldest first by time, then by arrival, across calls; the last ones where there are more."""
    times = [3.0, 1.0, 3.0, -2.5, 1e9 + 0.123456789, 3.0, 0.0, 1.0]
    events = [Event(f"{9 - n}", "u", n, time) for n, time in enumerate(times)]
    for event in events[:4]:
        await store.add_events([event])
    await store.add_events(events[4:])
    in_order = sorted(events, key=lambda event: event.time)  # stable
    _equal("the history", await store.history("u", 100), in_order)
    for limit in (0, 1, 3, 8):
        _equal(f"the last {limit}", await store.history("u", limit), in_order[len(in_order) - limit :])
    _equal("of nobody", await store.history("nobody", 5), [])


async def check_values(store: HistoryStore) -> None:
    """Ids and features come back as given: text or number, any character, exact times."""
    for user in ODD:
        known = ({name: [name, 0.1, None, 1]} if n % 2 else None for n, name in enumerate(ODD))
        events = [Event(name, user, name, 1700000000.1 + n / 7, next(known)) for n, name in enumerate(ODD)]
        _equal("new ids", await store.add_events(events), [True] * len(events))
        _equal(f"of user {user!r}", await store.history(user, KEPT), events)
    items: list[int | str] = [1, "1", 0, -5, 2**63 - 1, -(2**63), "0", "null", "true"]
    events = [Event(f"{n}", "items", item, n) for n, item in enumerate(items)]
    await store.add_events(events)
    stored = [event.item for event in await store.history("items", KEPT)]
    _equal("items", [(type(item), item) for item in stored], [(type(item), item) for item in items])


async def check_kept(store: HistoryStore) -> None:
    """Exactly the last `keep` events of each user are shown, in whatever order they came."""
    await store.add_events([Event("only", "v", 1, -1.0)])
    times = [float(n * 7919 % 1009) for n in range(1000)]
    for start in range(0, 1000, 10):
        batch = range(start, start + 10)
        await store.add_events([Event(f"{n}", "u", n, times[n], {"n": n} if n % 3 else None) for n in batch])
    last = sorted(range(1000), key=lambda n: times[n])[-store.keep :]
    _equal("the kept events", [event.item for event in await store.history("u", 1000)], last)
    await store.add_events([Event("old", "u", 1, -1e9)])
    _equal("after an older one", [event.item for event in await store.history("u", 1000)], last)
    _equal("known ids", await store.add_events([Event(f"{n}", "u", n, times[n]) for n in last]), [False] * len(last))
    _equal("another's", len(await store.history("v", 5)), 1)


async def check_features(store: HistoryStore) -> None:
    """Features of a user are those that were put last, whole."""
    _equal("features of nobody", await store.user("u"), None)
    await store.add_events([Event("a", "u", 1, 1.0)])
    _equal("features of who has events alone", await store.user("u"), None)
    features: dict[str, Any] = {"age": 3, "list": [1, "ü", None, 0.1], "nested": {"a": True}}
    await store.put_user("u", features)
    _equal("features", await store.user("u"), features)
    await store.put_user("u", {"age": 4})
    _equal("features put again", await store.user("u"), {"age": 4})
    _equal("events", len(await store.history("u", 5)), 1)


async def check_forgotten(store: HistoryStore) -> None:
    """Nothing is left of a deleted user, event ids too; everybody else stays."""
    for user in ("u", "v"):
        await store.add_events([Event(f"{n}", user, n, n) for n in range(5)])
        await store.put_user(user, {"x": 1})
    _equal("what was deleted", await store.delete_user("u"), Forgotten(5, True))
    _equal("deleted again", await store.delete_user("u"), Forgotten(0, False))
    _equal("history and features", (await store.history("u", 5), await store.user("u")), ([], None))
    _equal("a sample", await store.sample_users(5), ["v"])
    _equal("the other's history and features", (len(await store.history("v", 9)), await store.user("v")), (5, {"x": 1}))
    _equal("its ids", await store.add_events([Event("3", "u", 1, 1.0), Event("3", "v", 1, 1.0)]), [True, False])
    _equal("who has events alone", await store.delete_user("u"), Forgotten(1, False))


async def check_documents(store: HistoryStore) -> None:
    """The latest of each key, once, by the order in which they were put; a removed one says so."""
    _equal("at first", await store.documents(), [])
    bodies: dict[str, dict[str, Any] | None] = {name: {"n": n, "name": name} for n, name in enumerate(ODD)}
    last = await store.put_documents("item", bodies)
    documents = await store.documents()
    _equal("documents", [(d.kind, d.key, d.body) for d in documents], [("item", key, bodies[key]) for key in ODD])
    _equal("the last number", documents[-1].sequence, last)
    _equal("after the last", await store.documents(last), [])
    later = await store.put_documents("item", {ODD[3]: None, "new": {}})
    more = await store.put_documents("versions", {ODD[3]: {"a": 1}})
    assert last < later < more, f"the numbers went {last}, {later}, {more}"
    new = [("item", ODD[3], None), ("item", "new", {}), ("versions", ODD[3], {"a": 1})]
    _equal("what is new", [(d.kind, d.key, d.body) for d in await store.documents(last)], new)
    _equal("all", len(await store.documents()), len(ODD) + 2)
    _equal("nothing to put", await store.put_documents("item", {}), 0)
    many = await store.put_documents("many", {f"{n}": {"n": n} for n in range(2500)})
    documents = await store.documents(more)
    _equal("many", [d.body for d in documents], [{"n": n} for n in range(2500)])
    _equal("half of them", len(await store.documents(documents[1249].sequence)), 1250)
    _equal("none of them", await store.documents(many), [])


async def check_sample(store: HistoryStore) -> None:
    """Different users who have events, as many as there are, the same for one seed."""
    _equal("of an empty store", await store.sample_users(3), [])
    await store.put_user("features alone", {})
    await store.add_events([Event(f"{n}-{m}", f"{n}", n, m) for n in range(200) for m in range(n % 3 + 1)])
    everybody = {f"{n}" for n in range(200)}
    for count in (0, 1, 20, 150, 200, 1000):
        users = await store.sample_users(count, seed=7)
        assert len(users) == len(set(users)) == min(count, 200) and set(users) <= everybody, f"a sample of {count}"
        _equal(f"a sample of {count} again", await store.sample_users(count, seed=7), users)
    samples = {tuple(await store.sample_users(10, seed)) for seed in range(5)}
    assert len(samples) > 1, "every seed gives one sample"


async def check_together(store: HistoryStore) -> None:
    """Callers at once learn of their own events; a shared id is new to one of them."""

    async def caller(number: int) -> list[bool]:
        mine, common = Event(f"own {number}", f"u{number}", number, 1.0), Event("common", "all", 1, 1.0)
        return await store.add_events([mine, common])

    answers = await asyncio.gather(*map(caller, range(100)))
    assert all(mine for mine, _ in answers), "an event of one caller alone was known"
    _equal("callers to whom the common event was new", sum(common for _, common in answers), 1)
    histories = await asyncio.gather(*(store.history(f"u{n}", 5) for n in range(100)))
    _equal("what each has", [[event.item for event in events] for events in histories], [[n] for n in range(100)])
    users = await asyncio.gather(*(store.user(f"u{n}") for n in range(10)))
    _equal("features", users, [None] * 10)


async def check_refused(store: HistoryStore) -> None:
    """Data that cannot be stored is refused with the whole call, and a question about it finds nothing."""
    good = Event("good", "u", 1, 1.0)
    bad = [
        Event("x", "u", 1, float("nan")),
        Event("x", "u", 1, float("inf")),
        Event("x", "u", "\ud800", 1.0),
        Event("\ud800", "u", 1, 1.0),
        Event("x", "\ud800", 1, 1.0),
        Event("x", "u", True, 1.0),
    ]
    for event in bad:
        await _is_refused(store.add_events([good, event]))
    await _is_refused(store.put_user("u", {"x": "\ud800"}))
    await _is_refused(store.put_user("\ud800", {}))
    await _is_refused(store.put_documents("item", {"a": {}, "b": {"x": object()}}))
    _equal(
        "what is there", (await store.history("u", 5), await store.user("u"), await store.documents()), ([], None, [])
    )
    _equal("half a character", (await store.history("\ud800", 5), await store.user("\ud800")), ([], None))
    _equal("the good one alone", await store.add_events([good]), [True])


async def check_cancelled(store: HistoryStore) -> None:
    """A caller that goes away harms nobody else."""
    calls = await _under_way(store)
    for call in calls[::2]:
        call.cancel()
    answers = await asyncio.gather(*calls, return_exceptions=True)
    _equal("those who stayed", answers[1::2], [[True]] * 10)
    _equal("a later call", await store.add_events([Event("b", "u0", 1, 2.0)]), [True])


async def check_closed(store: HistoryStore) -> None:
    """Closing completes running calls; later ones say `StoreUnavailable`, until it opens."""
    await store.ping()
    calls = await _under_way(store)
    await store.close()
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert all(answer == [True] for answer in answers), f"calls that were under way when it was closed: {answers}"
    await store.close()
    requests: list[Callable[[], Awaitable[Any]]] = [
        store.ping,
        store.documents,
        lambda: store.add_events([Event("b", "u", 1, 1.0)]),
        lambda: store.history("u", 5),
        lambda: store.user("u"),
        lambda: store.put_user("u", {}),
        lambda: store.delete_user("u"),
        lambda: store.put_documents("item", {"a": {}}),
        lambda: store.sample_users(5),
    ]
    for request in requests:
        try:
            await request()
        except StoreUnavailable as error:
            _equal("the code", error.code, "store-unavailable")
        else:
            raise AssertionError("a closed store answered")
    await store.open()
    _equal("after it was opened again", [e.item for e in await store.history("u7", 5)], [7])


async def check_seen_by_the_other(first: HistoryStore, second: HistoryStore) -> None:
    """Data stored by one process is seen by another."""
    await first.add_events([Event("a", "u", 1, 1.0)])
    _equal("the other's history", [e.item for e in await second.history("u", 5)], [1])
    _equal("the other's event of this id", await second.add_events([Event("a", "u", 1, 1.0)]), [False])
    await second.put_user("u", {"x": 1})
    _equal("features", await first.user("u"), {"x": 1})
    _equal("the other deletes", await second.delete_user("u"), Forgotten(1, True))
    _equal("the history", await first.history("u", 5), [])


async def check_no_document_is_missed(first: HistoryStore, second: HistoryStore) -> None:
    """Two put documents at once; a reader that goes on from its last number misses none."""
    seen: dict[tuple[str, str], Document] = {}
    writing = True

    async def put(store: HistoryStore, kind: str) -> None:
        for n in range(60):
            await store.put_documents(kind, {f"{n}": {"n": n}, "again": {"n": n}})

    async def read() -> None:
        after, going_on = 0, True
        while going_on:
            going_on = writing
            for document in await second.documents(after):
                assert document.sequence > after, f"number {document.sequence} after {after}"
                after = document.sequence
                seen[document.kind, document.key] = document
            await asyncio.sleep(0.002)

    reading = asyncio.ensure_future(read())
    await asyncio.gather(put(first, "one"), put(second, "other"))
    writing = False
    await reading
    expected = {(kind, key) for kind in ("one", "other") for key in (*map(str, range(60)), "again")}
    _equal("documents that were missed", sorted(expected - set(seen)), [])
    _equal("the last body", [document.body for document in seen.values() if document.key == "again"], [{"n": 59}] * 2)


CHECKS = (
    check_once,
    check_order,
    check_values,
    check_kept,
    check_features,
    check_forgotten,
    check_documents,
    check_sample,
    check_together,
    check_refused,
    check_cancelled,
    check_closed,
)
SHARED = (
    check_seen_by_the_other,
    check_no_document_is_missed,
)


async def _under_way(store: HistoryStore) -> list[asyncio.Task[list[bool]]]:
    """Twenty calls that have begun, an event of another user each."""
    calls = [asyncio.ensure_future(store.add_events([Event("a", f"u{n}", n, 1.0)])) for n in range(20)]
    await asyncio.sleep(0)
    return calls


def _equal(what: str, seen: Any, expected: Any) -> None:
    assert seen == expected, f"{what}: {seen!r}, not {expected!r}"


async def _is_refused(call: Awaitable[Any]) -> None:
    try:
        await call
    except StoreUnavailable:
        raise AssertionError("a mistake of the caller was told as a store that is away") from None
    except UserError:
        return
    raise AssertionError("what cannot be stored was taken")
