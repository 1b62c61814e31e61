"""A process that writes events to a store and prints the ids that were acknowledged: `store_writer.py ADDRESS NAME`.

Sixteen callers at once send calls of three events, each call to a user of its own among four; every third call is sent
twice. It goes on until it is killed, or for as many calls as a third argument says.
"""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

from fullrank.serving.stores import Event, HistoryStore, open_history_store

CALLERS = 16
USERS = 4
PARTS = 3


def started(address: str, name: str, *more: str) -> subprocess.Popen[str]:
    """The process; it has printed `ready` on the first line of its stdout before the others."""
    command = [sys.executable, __file__, address, name, *more]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": _path()})
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


def acknowledged(process: subprocess.Popen[str]) -> list[str]:
    """The ids that it printed until it ended."""
    said, _ = process.communicate(timeout=60)
    lines = said.split("\n")[:-1]  # a killed process may leave half of a line
    return [part for line in lines for part in line.split()]


async def check(store: HistoryStore, acked: list[str]) -> int:
    """Every acknowledged event is there once, and calls are whole. How many events there are."""
    found: list[str] = []
    for user in range(USERS):
        found += [event.event_id for event in await store.history(f"{user}", store.keep)]
    assert len(found) == len(set(found)), "an event is there twice"
    missing = set(acked) - set(found)
    assert not missing, f"{len(missing)} of {len(acked)} acknowledged events are lost, such as {sorted(missing)[:5]}"
    calls: dict[str, int] = {}
    for event_id in found:
        call = event_id.rpartition("/")[0]
        calls[call] = calls.get(call, 0) + 1
    assert set(calls.values()) <= {PARTS}, "half of a call is there"
    return len(found)


async def _write(address: str, name: str, most: int) -> None:
    store = open_history_store(address, 1_000_000)
    await store.open()
    print("ready", flush=True)

    async def caller(number: int) -> None:
        for call in range(number, most, CALLERS):
            events = [Event(f"{name}-{call}/{n}", f"{call % USERS}", n, float(call)) for n in range(PARTS)]
            for _ in range(2 if call % 3 == 0 else 1):
                await store.add_events(events)
            os.write(1, (" ".join(event.event_id for event in events) + "\n").encode())

    await asyncio.gather(*map(caller, range(CALLERS)))
    await store.close()


def _path() -> str:
    import fullrank

    return str(Path(fullrank.__file__).parents[1])


if __name__ == "__main__":
    asyncio.run(_write(sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 10**9))
