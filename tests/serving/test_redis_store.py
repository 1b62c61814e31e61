"""A Redis store under faults: a server that is stopped, hangs, is killed, is full, or refuses; and what it promises."""

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fullrank.serving.stores import Event, HistoryStore, StoreUnavailable, open_history_store
from fullrank.serving.stores.redis import promise_of
from redis_servers import SERVERS, Server, missing
from refusals import refused
from serving.served import call, with_store
from store_writer import PARTS, check

LIMIT = 2.0
"""Seconds within which a call fails where the server is away."""


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator:
    """Makes servers with settings of their own."""
    if missing(request.param):
        pytest.skip(missing(request.param))
    started = []

    def start(**settings: str) -> Server:
        folder = tmp_path / f"{len(started)}"
        folder.mkdir()
        started.append(Server(folder, request.param, **settings).__enter__())
        return started[-1]

    yield start
    for one in started:
        one.kill()


async def all_fail(store: HistoryStore) -> None:
    """Every call, many at once, fails in time."""
    begin = time.monotonic()
    calls = [store.add_events(call(f"lost {n}")) for n in range(50)]
    calls += [store.history(f"{n}", 5) for n in range(50)]
    calls += [store.ping(), store.user("u"), store.put_user("v", {}), store.documents(), store.delete_user("v")]
    found = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(answer, StoreUnavailable) for answer in found), found
    assert time.monotonic() - begin < LIMIT


def test_stopped_and_back(server: Callable) -> None:
    """The same client goes on, without a failed call, once the server is there again."""
    one = server(appendfsync="always")

    async def work(store: HistoryStore) -> None:
        for n in range(2):
            assert await store.add_events(call(f"{n}")) == [True] * PARTS
            await asyncio.gather(*(store.history("u", 5) for _ in range(20)), store.put_documents("item", {"a": {}}))
            (one.stop if n else one.kill)()
            await all_fail(store)
            await asyncio.to_thread(one.start)
            found = await asyncio.gather(store.ping(), store.history("u", 100), store.add_events(call(f"{n}")))
            assert (len(found[1]), found[2]) == (PARTS * (n + 1), [False] * PARTS), "what was stored is there"

    with_store(one.address, work)


def test_a_server_that_hangs(server: Callable) -> None:
    one = server()

    async def work(store: HistoryStore) -> None:
        await store.add_events(call("a"))
        one.pause()
        try:
            await all_fail(store)
            waiting = asyncio.ensure_future(store.history("u", 5))
            await asyncio.sleep(0.8)  # those that come while another one waits are not kept longer
            await all_fail(store)
            with pytest.raises(StoreUnavailable):
                await waiting
        finally:
            one.resume()
        assert [e.event_id for e in (await store.history("u", 100))[:PARTS]] == ["a/0", "a/1", "a/2"]
        await store.add_events(call("b"))

    with_store(one.address, work)


def test_no_server(tmp_path: Path) -> None:
    for address in ("redis://127.0.0.1:1", f"unix://{tmp_path}/none", "redis://:SECRET@no-such-host.invalid"):
        begin = time.monotonic()
        with refused("store-unavailable") as told:
            with_store(address, lambda store: store.ping())
        assert time.monotonic() - begin < LIMIT and "SECRET" not in str(told)


@pytest.mark.parametrize("kills", [1, pytest.param(6, marks=pytest.mark.slow)])
def test_sigkill_of_the_server_loses_no_acknowledged_event(server: Callable, kills: int) -> None:
    one = server(appendfsync="always")

    async def work(store: HistoryStore) -> None:
        assert "survive a killed server and a loss of power" in store.promise
        acked = []
        for kill in range(kills):
            before, away = len(acked), asyncio.Event()

            async def caller(number: int, kill: int, away: asyncio.Event) -> None:
                for n in range(100_000):
                    events = call(f"{kill}-{number}-{n}", f"{number % 4}")
                    try:
                        await store.add_events(events)
                    except StoreUnavailable:
                        break
                    acked.extend(event.event_id for event in events)
                away.set()

            killer = threading.Timer(0.3 + 0.1 * kill, one.kill)
            killer.start()
            await asyncio.gather(*(caller(n, kill, away) for n in range(16)))
            await asyncio.to_thread(killer.join)
            assert len(acked) - before > 100
            if kills > 1:  # the server keeps half of a transaction that was cut until it is killed again
                await asyncio.to_thread(one.repair)
            await asyncio.to_thread(one.start)
            await check(store, acked)

    with_store(one.address, work)


def test_a_call_cut_by_a_loss_of_power_is_not_there_in_part(server: Callable) -> None:
    """The end of the log is gone; two restarts later nothing of the cut call is back, and it can be sent again."""
    one = server(appendfsync="always")

    async def work(store: HistoryStore) -> None:
        for name in "ab":
            await store.add_events(call(name))
        one.kill()
        log = next(one.folder.glob("appendonlydir/*.incr.aof"))
        os.truncate(log, log.stat().st_size - 100)  # within the transaction of b
        one.repair()
        for name in "cd":
            await asyncio.to_thread(one.start)
            await store.add_events(call(name))
            one.kill()
        await asyncio.to_thread(one.start)
        told = [event.event_id for event in await store.history("u", 100)]
        assert told == [f"{name}/{n}" for name in "acd" for n in range(PARTS)]
        assert await store.add_events(call("b")) == [True] * PARTS

    with_store(one.address, work)


def test_a_server_that_lost_its_data_goes_on_above(server: Callable) -> None:
    """Readers ask for what is above the last number that they saw."""
    one = server(appendonly="no")

    async def work(store: HistoryStore) -> None:
        assert "may be lost" in store.promise
        last = await store.put_documents("item", {f"{n}": {} for n in range(3000)})
        await asyncio.to_thread(one.kill)
        await asyncio.to_thread(one.start)
        assert await store.documents() == []
        await store.put_documents("item", {"new": {}})
        assert [document.key for document in await store.documents(last)] == ["new"]

    with_store(one.address, work)


def test_scripts_are_loaded_again(server: Callable) -> None:
    async def work(store) -> None:
        await store.add_events(call("a"))
        await store._client.script_flush()
        found = await asyncio.gather(store.history("u", 5), store.user("u"), store.documents())
        found[1] = await store.add_events(call("b"))
        assert (len(found[0]), found[1], found[2]) == (3, [True] * 3, [])

    with_store(server().address, work)


def test_a_full_server_takes_nothing_half(server: Callable) -> None:
    one = server(maxmemory="3mb", maxmemory_policy="noeviction")

    async def work(store) -> None:
        acked = []
        with refused("store-unavailable", "maxmemory"):
            for n in range(10_000):
                events = [Event(f"{n}/{part}", f"{n % 4}", "x" * 1000, float(n)) for part in range(PARTS)]
                await store.add_events(events)
                acked += [event.event_id for event in events]
        assert acked
        with refused("store-unavailable", "maxmemory"):
            for n in range(100):  # room that comes free meanwhile may do for one
                await store.put_documents("item", {f"{n}": {"x": "x" * 100_000}})
        await check(store, acked)
        await store._client.config_set("maxmemory", "1mb")
        with refused("store-unavailable", "maxmemory"):
            await store.ping()
        await store._client.config_set("maxmemory", 0)
        await store.ping()
        assert await store.add_events(call("after")) == [True] * PARTS

    with_store(one.address, work)


def test_nothing_is_left_of_who_is_forgotten(server: Callable) -> None:
    async def work(store) -> None:
        await store.add_events([Event(f"{n}", "other", n, float(n)) for n in range(5)])
        await store.put_user("other", {})
        before = {key async for key in store._client.scan_iter()}
        await store.add_events([Event(f"SECRET {n}", "SECRET", n, float(n)) for n in range(200)])
        await store.put_user("SECRET", {"x": 1})
        await store.delete_user("SECRET")
        assert {key async for key in store._client.scan_iter()} == before
        assert await store._client.zrange("fullrank:users", 0, -1) == [b"other"]
        assert await store._client.hkeys("fullrank:features") == [b"other"]

    with_store(server().address, work, keep=100)


def test_ids_of_older_events_go_with_them(server: Callable) -> None:
    async def work(store) -> None:
        for n in range(20):
            await store.add_events([Event(f'"{n}\\{m}\n', "u", m, float(n)) for m in range(50)])
        assert await store._client.zcard("fullrank:history:u") == 100
        assert await store._client.hlen("fullrank:ids:u") == 101, "a hundred ids, and the number of the last arrival"

    with_store(server().address, work, keep=100)


def test_passwords_are_never_shown(server: Callable, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    one = server(requirepass="SECRET@1")
    place = one.address.removeprefix("redis://")
    told = []

    async def work(store: HistoryStore) -> None:
        await store.add_events(call("a"))
        told.extend([repr(store), store.address, store.promise])
        await asyncio.to_thread(one.stop)
        with refused("store-unavailable", place) as away:
            await store.ping()
        told.append(str(away))
        await asyncio.to_thread(one.start)

    with_store(f"redis://:SECRET%401@{place}/3", work)
    for wrong in (f"redis://me:SECRET-no@{place}", f"redis://{place}"):
        with refused("store-unavailable", place) as refusal:
            with_store(wrong, lambda store: store.ping())
        told += [str(refusal), repr(open_history_store(wrong))]
    for bad in ("redis://:SECRET@", "redis://:SECRET@host/db", "redis://:SECRET@host?x=1", "redis://:SECRET@host:x"):
        with refused("unknown-store-address") as refusal:
            open_history_store(bad)
        told.append(str(refusal))
    assert "SECRET" not in "\n".join([*told, caplog.text])


def test_prefixes_and_databases_are_apart(server: Callable) -> None:
    address = server().address
    for place in ("", "/1", "?prefix=other", "/1?prefix=other"):
        assert with_store(address + place, lambda store: store.add_events(call("a"))) == [True] * PARTS


def test_what_cannot_be_the_store_is_refused(server: Callable) -> None:
    async def nothing(store) -> None:
        await store._client.set("fullrank:format", 2)

    one = server()
    with_store(one.address, nothing)
    with refused("newer-history-store", "'2'", "prefix"):
        with_store(one.address, nothing)
    with refused("unfit-store-server", "cluster"):
        with_store(server(cluster_enabled="yes").address, nothing)


def test_a_server_that_keeps_its_settings_to_itself(server: Callable) -> None:
    one = server(rename_command="CONFIG|hidden")
    assert "did not say" in with_store(one.address, _promise)


async def _promise(store: HistoryStore) -> str:
    return store.promise


def test_promises() -> None:
    yes = {"appendonly": "yes"}
    assert "may be lost" in promise_of({"appendonly": "no", "appendfsync": "always"})
    assert "loss of power (" in promise_of({**yes, "appendfsync": "always"})
    assert "two seconds" in promise_of({**yes, "appendfsync": "everysec"})
    assert "30 seconds" in promise_of({**yes, "appendfsync": "no"})
    full = {**yes, "appendfsync": "always", "maxmemory": "1000", "maxmemory-policy": "allkeys-lru"}
    assert "noeviction" in promise_of(full)
    assert "noeviction" not in promise_of({**full, "maxmemory": "0"})
    assert "noeviction" not in promise_of({**full, "maxmemory-policy": "volatile-lru"})
