"""The history store of one machine: a SQLite file, which several processes of the service may share.

Each process has one thread that writes (`sqlite_file.Writer`). A history is read in the thread that
asks: it takes tens of microseconds, less than handing it to another thread. Every query gives one
row of JSON, whatever it found: SQLite lets go of the interpreter at each row, and has to wait for
it again while a model computes.
"""

from __future__ import annotations

import asyncio
import random
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic
from typing import Any

from pydantic_core import from_json

from fullrank.serving.stores import KEEP, EventRow, HistoryStore, StoreUnavailable
from fullrank.serving.stores.sqlite_file import FORMAT, Writer, check_room, connect, prepare_file

TRIMMED_EVERY = 64
"""A user's older events are looked for after so many new ones, on average: to count them for each costs too much."""
PROBE = 1.0
"""Least seconds between two writes by which `ping` looks whether the store takes events."""
_PAGE = 1000
"""Documents of one query."""
_GOLDEN = 0x9E3779B97F4A7C15


class SqliteStore(HistoryStore):
    """`sqlite:PATH` or a path. The disk has to be a local one."""

    promise = (
        "what was acknowledged is flushed to the disk: it survives a killed process and a loss of power, as far as the "
        "disk keeps its word"
    )

    def __init__(self, address: str, keep: int = KEEP):
        super().__init__(address, keep)
        name = address[len("sqlite:") :] if address.lower().startswith("sqlite:") else address
        self.file = self.path = Path(name).expanduser().absolute()
        self._writer: Writer | None = None
        self._written = -PROBE
        """When `ping` last wrote."""
        self._readers = threading.local()
        self._connections: list[sqlite3.Connection] = []
        self._slow: ThreadPoolExecutor | None = None

    async def open(self) -> None:
        await asyncio.to_thread(prepare_file, self.path)
        self._readers = threading.local()
        self._writer = Writer(self.path)
        self._slow = ThreadPoolExecutor(1, "fullrank-store-reader")

    async def close(self) -> None:
        writer, slow, self._writer, self._slow = self._writer, self._slow, None, None
        if writer is None or slow is None:
            return
        await writer.close()
        await asyncio.to_thread(slow.shutdown)
        while self._connections:
            self._connections.pop().close()

    async def ping(self) -> None:
        self._open_writer().check()
        self._row("SELECT 1 FROM user LIMIT 1")
        if monotonic() - self._written > PROBE:
            check_room(self.path)
            await self._open_writer().write(_rewrite)
            self._written = monotonic()

    async def _add(self, rows: Sequence[EventRow]) -> list[bool]:
        return await self._open_writer().write(lambda connection: self._insert(connection, rows), len(rows))

    def _insert(self, connection: sqlite3.Connection, rows: Sequence[EventRow]) -> list[bool]:
        """Insert events, and now and then trim those of a user who got
        some; whether each was new."""
        numbers: dict[str, int] = {}
        new, grown = [], set()
        for event_id, user, time, body in rows:
            number = numbers.get(user)
            if number is None:
                number = numbers[user] = _number(connection, user)
            done = connection.execute(
                "INSERT INTO event (user, time, event_id, body) VALUES (?, ?, ?, ?) "
                "ON CONFLICT (user, event_id) DO NOTHING",
                (number, time, event_id, body),
            )
            new.append(done.rowcount == 1)
            # Spread evenly over any pattern in which users take turns, unlike every 64th row.
            if new[-1] and done.lastrowid is not None and done.lastrowid * _GOLDEN % 2**64 < 2**64 // TRIMMED_EVERY:
                grown.add(number)
        for number in grown:
            connection.execute(
                "DELETE FROM event WHERE user = ?1 AND (time, sequence) < (SELECT time, sequence FROM event "
                "WHERE user = ?1 ORDER BY time DESC, sequence DESC LIMIT 1 OFFSET ?2)",
                (number, self.keep - 1),
            )
        return new

    async def _last(self, user: str, limit: int) -> str:
        # The order of a sub-query is the order in which its rows are joined; the
        # component checks hold it.
        (bodies,) = self._row(
            "SELECT group_concat(body) FROM (SELECT body FROM event WHERE user = (SELECT number FROM user "
            "WHERE name = ?) ORDER BY time DESC, sequence DESC LIMIT ?)",
            (user, limit),
        )
        return bodies or ""

    async def _put_user(self, user: str, features: str) -> None:
        await self._open_writer().write(
            lambda connection: connection.execute(
                "INSERT INTO user (name, features) VALUES (?, ?) "
                "ON CONFLICT (name) DO UPDATE SET features = excluded.features",
                (user, features),
            )
        )

    async def _user(self, user: str) -> str | None:
        row = self._row("SELECT features FROM user WHERE name = ?", (user,))
        return None if row is None else row[0]

    async def _delete_user(self, user: str) -> tuple[int, bool]:
        return await self._open_writer().write(lambda connection: _forget(connection, user), scrub=True)

    async def _put_documents(self, kind: str, rows: Sequence[tuple[str, str]]) -> int:
        return await self._open_writer().write(lambda connection: _put(connection, kind, rows), len(rows))

    async def _documents(self, after: int) -> Sequence[tuple[int, list[Any]]]:
        (newest,) = self._row("SELECT max(sequence) FROM document")
        if newest is None or newest <= after:  # nearly always, four times a second
            return []
        return await self._read_aside(lambda connection: list(_pages(connection, after)))

    async def _sample(self, count: int, draw: random.Random) -> list[str]:
        return await self._read_aside(lambda connection: _sample(connection, count, draw))

    def _open_writer(self) -> Writer:
        if self._writer is None:
            raise StoreUnavailable(f"the store {str(self.path)!r} is closed")
        return self._writer

    def _read(self, query: Callable[[sqlite3.Connection], Any]) -> Any:
        """Run a query on this thread's connection."""
        self._open_writer()
        try:
            connection = getattr(self._readers, "connection", None)
            if connection is None:
                connection = self._readers.connection = connect(self.path, reader=True)
                self._connections.append(connection)
            return query(connection)
        except sqlite3.Error as error:
            raise StoreUnavailable(f"the store {str(self.path)!r} could not be read ({error})") from error

    def _row(self, query: str, values: Sequence[Any] = ()) -> Any:
        """The first row of a query; None where there is none."""
        return self._read(lambda connection: connection.execute(query, values).fetchone())

    async def _read_aside(self, query: Callable[[sqlite3.Connection], Any]) -> Any:
        """Run a query that may take long, on a thread of its own."""
        self._open_writer()
        return await asyncio.get_running_loop().run_in_executor(self._slow, self._read, query)


def _rewrite(connection: sqlite3.Connection) -> None:
    """Write what stands there once more, as many pages as a few new events would
    take: to try whether they fit."""
    connection.execute(f"PRAGMA user_version={FORMAT}")
    connection.execute(
        "UPDATE event SET event_id = event_id, time = time WHERE sequence > (SELECT max(sequence) - 16 FROM event)"
    )


def _number(connection: sqlite3.Connection, user: str) -> int:
    row = connection.execute("SELECT number FROM user WHERE name = ?", (user,)).fetchone()
    if row is None:
        row = connection.execute("INSERT INTO user (name) VALUES (?) RETURNING number", (user,)).fetchone()
    return row[0]


def _forget(connection: sqlite3.Connection, user: str) -> tuple[int, bool]:
    row = connection.execute("SELECT number, features FROM user WHERE name = ?", (user,)).fetchone()
    if row is None:
        return 0, False
    events = connection.execute("DELETE FROM event WHERE user = ?", row[:1]).rowcount
    connection.execute("DELETE FROM user WHERE number = ?", row[:1])
    return events, row[1] is not None


def _put(connection: sqlite3.Connection, kind: str, rows: Sequence[tuple[str, str]]) -> int:
    """Put documents, numbered inside the one transaction that writes: who sees
    a number sees all before it."""
    last: int = connection.execute("SELECT coalesce(max(sequence), 0) FROM document").fetchone()[0]
    for number, (key, body) in enumerate(rows, last + 1):
        connection.execute(
            "INSERT INTO document (sequence, kind, key, body) VALUES (?, ?, ?, ?) "
            "ON CONFLICT (kind, key) DO UPDATE SET sequence = excluded.sequence, body = excluded.body",
            (number, kind, key, body),
        )
    return last + len(rows)


def _pages(connection: sqlite3.Connection, after: int) -> Iterator[tuple[int, list[Any]]]:
    """(sequence, [kind, key, body]) of the documents that were put after
    `after`, read page by page."""
    while True:
        page = connection.execute(
            "SELECT group_concat('[' || sequence || ',' || body || ']') FROM "
            "(SELECT sequence, body FROM document WHERE sequence > ? ORDER BY sequence LIMIT ?)",
            (after, _PAGE),
        ).fetchone()[0]
        if page is None:
            return
        for after, body in from_json(f"[{page}]"):
            yield after, body


def _sample(connection: sqlite3.Connection, count: int, draw: random.Random) -> list[str]:
    """Users at random numbers, those that are near a gap somewhat more often; all
    of them where they are few."""
    has_events = "EXISTS (SELECT 1 FROM event WHERE event.user = number)"
    low, high = connection.execute("SELECT min(number), max(number) FROM user").fetchone()
    if low is None or count == 0:
        return []
    if high - low < 8 * count:
        rows = connection.execute(f"SELECT name FROM user WHERE {has_events} ORDER BY number").fetchall()
        return draw.sample([name for (name,) in rows], min(count, len(rows)))
    users: dict[str, None] = {}
    for _ in range(4 * count):
        row = connection.execute(
            f"SELECT name FROM user WHERE number >= ? AND {has_events} ORDER BY number LIMIT 1",
            (draw.randint(low, high),),
        ).fetchone()
        if row is not None:
            users[row[0]] = None
        if len(users) == count:
            break
    if len(users) < count:  # most numbers are gone, or have features alone
        more = connection.execute(f"SELECT name FROM user WHERE {has_events} ORDER BY number LIMIT ?", (count,))
        users |= dict.fromkeys(name for (name,) in more)
    return list(users)[:count]
