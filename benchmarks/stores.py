"""History stores of the service: acknowledged events a second, milliseconds of a call, and bytes of an event.

Every call adds one event of a user among a hundred; one caller, and sixty-four at once. Redis runs on this machine, in
a folder of its own, with `appendfsync` always (an acknowledged event survives a killed server), and everysec.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from benchmarks.harness import Benchmark, Figures, Say, main, require, rounded
from fullrank.serving.stores import Event, HistoryStore, open_history_store
from fullrank.testing.stores import check_store
from tests.redis_servers import Server, missing

USERS = 100
CALLERS = 64
HISTORY = 50
"""Events of a history that is read: what the `sasrec` recipe reads."""
SERVER = "redis-server"


def check() -> None:
    with tempfile.TemporaryDirectory() as home:
        try:
            asyncio.run(check_store(lambda name, keep: open_history_store(f"{home}/{name}.db", keep)))
        except AssertionError as error:
            require(False, f"the store is wrong: {error}")


async def measured(store: HistoryStore, calls: int) -> Figures:
    """Figures of an empty store."""
    await store.open()
    await store.add_events([Event(f"{n}", "reader", n, float(n)) for n in range(4 * HISTORY)])

    async def caller(name: int, times: int, spent: list[float]) -> None:
        for n in range(times):
            event = Event(f"{store.address[:8]}-{name:04}-{n:06}", f"user-{(n + name) % USERS:08}", n, 1.7e9 + n)
            begun = time.perf_counter()
            await store.add_events([event])
            spent.append(time.perf_counter() - begun)

    found: Figures = {}
    for callers in (1, CALLERS):
        spent: list[float] = []
        begun = time.perf_counter()
        await asyncio.gather(*(caller(callers + n, max(calls // callers, 20), spent) for n in range(callers)))
        found[f"events_per_second_{callers}"] = len(spent) / (time.perf_counter() - begun)
        p50, p99 = np.percentile(spent, (50, 99))
        found[f"add_p50_ms_{callers}"], found[f"add_p99_ms_{callers}"] = p50 * 1e3, p99 * 1e3
    found["history_us"] = await _read(store, 1)
    found[f"history_us_{CALLERS}"] = await _read(store, CALLERS)
    with _computing():
        found["history_us_beside_python"] = await _read(store, 1, 40)
    await store.close()
    return found


async def _read(store: HistoryStore, together: int, times: int = 1000) -> float:
    """Microseconds of a history, so many asked for at once."""
    begun = time.perf_counter()
    for _ in range(max(times // together, 20)):
        await asyncio.gather(*(store.history("reader", HISTORY) for _ in range(together)))
    return (time.perf_counter() - begun) / (max(times // together, 20) * together) * 1e6


@contextmanager
def _computing() -> Iterator[None]:
    """A thread that never waits, with the interpreter's switches as the service sets them."""
    stop, before = threading.Event(), sys.getswitchinterval()

    def compute() -> None:
        while not stop.is_set():
            sum(range(100))

    thread = threading.Thread(target=compute)
    sys.setswitchinterval(0.0005)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        sys.setswitchinterval(before)


async def _bytes_of_an_event(store: HistoryStore, size: int) -> None:
    await store.open()
    for n in range(0, size, 1000):
        await store.add_events(
            [Event(f"{m:032x}", f"user-{m % (size // 50):08}", m, 1.7e9 + m) for m in range(n, n + 1000)]
        )
    await store.close()


def measure(options: argparse.Namespace, say: Say) -> Figures:
    figures: Figures = {}
    with tempfile.TemporaryDirectory(dir=options.folder) as home:
        say("sqlite")
        found = asyncio.run(measured(open_history_store(f"{home}/x.db"), options.calls))
        figures |= {f"sqlite_{name}": value for name, value in found.items()}
        asyncio.run(_bytes_of_an_event(open_history_store(f"{home}/y.db"), options.events))
        figures["sqlite_bytes_per_event"] = (Path(home) / "y.db").stat().st_size / options.events
        for fsync in ("always", "everysec") if missing(SERVER) is None else ():
            say(f"redis, appendfsync {fsync}")
            folder = Path(home) / fsync
            folder.mkdir()
            with Server(folder, SERVER, appendfsync=fsync) as server:
                found = asyncio.run(measured(open_history_store(server.address), options.calls))
                figures |= {f"redis_{fsync}_{name}": value for name, value in found.items()}
                if fsync == "everysec":
                    before = _memory(server)
                    asyncio.run(_bytes_of_an_event(open_history_store(f"{server.address}?prefix=y"), options.events))
                    figures["redis_bytes_per_event"] = (_memory(server) - before) / options.events
    if missing(SERVER) is not None:
        say(f"redis left out: {missing(SERVER)}")
    return rounded(figures)


def _memory(server: Server) -> int:
    told = subprocess.run(
        ["redis-cli", "-p", str(server.port), "info", "memory"], capture_output=True, text=True, check=True
    ).stdout
    return int(told.split("used_memory:")[1].split()[0])


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--calls", type=int, default=5000, help="calls of one caller, and of all together (5,000)")
    parser.add_argument("--events", type=int, default=100_000, help="events whose bytes are counted (100,000)")
    parser.add_argument("--folder", type=Path, help="where the files lie (default: where temporary files do)")


BENCHMARK = Benchmark("stores", "what history stores of the service take and cost", _arguments, check, measure)

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
