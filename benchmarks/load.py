"""Load for a service: requests at times that are drawn beforehand, whatever the answers take (an open loop).

    python -m benchmarks.load --url http://127.0.0.1:8000 --bodies bodies.jsonl --rate 1000 --ramp 600 --hold 60

A process of its own. Arrivals are a Poisson process whose rate rises in a line from 0 to `--rate` over `--ramp` seconds
(ETUDE's protocol) and stays there for `--hold`. A latency counts from the moment that a request was due, so a service
that stalls pays for all that came meanwhile. An answer that is not 200, or none within `--patience`, is an error.
The last line of stdout is one JSON object: `hold` and `ramp` each with sent, completed, errors, rps and percentiles.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import sys
import time
from collections import Counter, deque
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

MOST_CLOSED = 10**6
"""Most requests of a closed loop."""
PERCENTILES = (50, 90, 99, 99.9)


class Connection(asyncio.Protocol):
    """One HTTP/1.1 connection that is kept open; one request at a time."""

    def __init__(self, load: Load):
        self.load, self.transport = load, None
        self.request, self.answer, self.needed = -1, b"", 0

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def send(self, request: int) -> None:
        self.request, self.answer, self.needed = request, b"", 0
        self.transport.write(self.load.bytes_of(request))

    def data_received(self, data: bytes) -> None:
        self.answer = self.answer + data if self.answer else data
        if not self.needed:
            head = self.answer.find(b"\r\n\r\n")
            if head < 0:
                return
            place = self.answer.lower().find(b"content-length:", 0, head)
            self.needed = head + 4 + int(self.answer[place + 15 : self.answer.find(b"\r", place)])
        if len(self.answer) >= self.needed:
            self.load.answered(self, int(self.answer[9:12]))

    def connection_lost(self, error: Exception | None) -> None:
        self.load.lost(self)


class Load:
    """All requests of a run: when each is due, and what came of it."""

    def __init__(self, url: str, bodies: list[bytes], due: np.ndarray, path: str, connections: int):
        parts = urlsplit(url)
        self.host, self.port, self.due, self.most = parts.hostname or "127.0.0.1", parts.port or 80, due, connections
        head = f"POST {path} HTTP/1.1\r\nhost: {self.host}:{self.port}\r\ncontent-type: application/json\r\n"
        self.bodies = [f"{head}content-length: {len(body)}\r\n\r\n".encode() + body for body in bodies]
        self.latency = np.full(len(due), np.nan)
        self.late = np.zeros(len(due))
        self.statuses: Counter[int] = Counter()
        self.idle: list[Connection] = []
        self.opening: set[asyncio.Future[None]] = set()
        self.waiting: deque[int] = deque()
        self.open, self.done = 0, 0
        self.begun = 0.0
        self.until = 0.0
        """End of a closed loop, where each connection asks again as soon as it is answered; 0: an open loop."""

    def bytes_of(self, request: int) -> bytes:
        return self.bodies[request % len(self.bodies)]

    def answered(self, connection: Connection, status: int) -> None:
        request = connection.request
        self.latency[request] = (time.perf_counter() - self.begun - self.due[request]) if status == 200 else np.inf
        self.statuses[status] += 1
        self.done += 1
        connection.request = -1
        if self.until:
            self.call_again(connection)
        elif self.waiting:
            connection.send(self.waiting.popleft())
        else:
            self.idle.append(connection)

    def lost(self, connection: Connection) -> None:
        self.open -= 1
        if connection in self.idle:
            self.idle.remove(connection)
        if connection.request >= 0:
            self.latency[connection.request] = np.inf
            self.statuses[0] += 1
            self.done += 1

    async def run(self, patience: float) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(min(16, self.most)):
            await self._connect(loop)
        self.begun = time.perf_counter() + 0.05
        for request, due in enumerate(self.due):
            ahead = due - (time.perf_counter() - self.begun)
            if ahead > 0:
                await asyncio.sleep(ahead)
            self.late[request] = time.perf_counter() - self.begun - due
            if self.idle:
                self.idle.pop().send(request)
                continue
            self.waiting.append(request)
            if self.open < self.most:
                self.open += 1
                opening = asyncio.ensure_future(self._connect(loop, counted=True))
                self.opening.add(opening)  # the loop itself holds no task
                opening.add_done_callback(self.opening.discard)
        end = time.perf_counter() + patience
        while self.done < len(self.due) and time.perf_counter() < end:
            await asyncio.sleep(0.05)

    def call_again(self, connection: Connection) -> None:
        now = time.perf_counter() - self.begun
        if now < self.until and self.asked < len(self.due):
            self.due[self.asked] = now
            connection.send(self.asked)
            self.asked += 1

    async def run_closed(self, callers: int, seconds: float) -> None:
        """Callers that each wait for their answer."""
        loop = asyncio.get_running_loop()
        self.until, self.asked = seconds, 0
        for _ in range(callers):
            await self._connect(loop)
        self.begun = time.perf_counter()
        for connection in list(self.idle):
            self.call_again(connection)
        await asyncio.sleep(seconds + 1)
        self.due = self.due[: self.asked]
        self.latency, self.late = self.latency[: self.asked], self.late[: self.asked]

    async def _connect(self, loop: asyncio.AbstractEventLoop, counted: bool = False) -> None:
        self.open += not counted
        try:
            _, made = await loop.create_connection(lambda: Connection(self), self.host, self.port)
        except OSError:
            self.open -= 1
            return
        if self.waiting:
            made.send(self.waiting.popleft())
        else:
            self.idle.append(made)


def arrivals(rate: float, ramp: float, hold: float, seed: int) -> np.ndarray:
    """Seconds at which requests are due: Poisson, its rate rising in a line over `ramp`, then held."""
    draw = np.random.default_rng(seed)
    expected = np.cumsum(draw.exponential(size=int(rate * (ramp / 2 + hold) * 1.2) + 100))
    rising = rate * ramp / 2  # requests expected in the ramp: t = sqrt(2 n ramp / rate) there, in a line behind it
    due = np.where(expected < rising, np.sqrt(2 * expected * ramp / rate), ramp + (expected - rising) / rate)
    return due[due < ramp + hold]


def figures(load: Load, low: float, high: float) -> dict[str, Any]:
    """What came of the requests that were due in [low, high)."""
    some = (load.due >= low) & (load.due < high)
    latency = load.latency[some] * 1e3
    good = np.isfinite(latency)
    if not some.any():
        return {}
    found = {
        f"p{p:g}_ms": round(float(np.percentile(latency[good], p)), 2) if good.any() else None for p in PERCENTILES
    }
    return {
        "sent": int(some.sum()),
        "completed": int(good.sum()),
        "errors": int((~good).sum()),
        "rps": round(int(good.sum()) / (high - low), 1),
        **found,
        "mean_ms": round(float(latency[good].mean()), 2) if good.any() else None,
        "sent_late_p99_ms": round(float(np.percentile(load.late[some] * 1e3, 99)), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", required=True)
    parser.add_argument("--path", default="/v1/recommend")
    parser.add_argument("--bodies", type=Path, required=True, help="one request a line, taken in turn")
    parser.add_argument("--rate", type=float, default=100.0, help="requests a second at the end of the ramp")
    parser.add_argument("--callers", type=int, help="a closed loop for --hold seconds: so many wait for their answers")
    parser.add_argument("--ramp", type=float, default=600.0)
    parser.add_argument("--hold", type=float, default=60.0)
    parser.add_argument("--patience", type=float, default=5.0, help="seconds that are waited behind the last request")
    parser.add_argument("--connections", type=int, default=256)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    bodies = given.bodies.read_bytes().splitlines()
    due = arrivals(given.rate, given.ramp, given.hold, given.seed)
    if given.callers is not None:
        given.ramp, due = 0.0, np.zeros(MOST_CLOSED)
    load = Load(given.url, bodies, due, given.path, given.connections)
    work = load.run(given.patience) if given.callers is None else load.run_closed(given.callers, given.hold)
    try:
        import uvloop

        uvloop.run(work)
    except ImportError:
        asyncio.run(work)
    used = resource.getrusage(resource.RUSAGE_SELF)
    end = given.ramp + given.hold
    print(json.dumps({
        "ramp": figures(load, 0, given.ramp),
        "hold": figures(load, given.ramp, end),
        "whole": figures(load, 0, end),
        "statuses": {str(status): count for status, count in sorted(load.statuses.items())},
        "client_us_per_request": round((used.ru_utime + used.ru_stime) / max(len(load.due), 1) * 1e6, 1),
    }))  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
