"""The file of a SQLite history store: its tables, how it is opened, what is refused in its place, and who writes to it.

One thread writes (`Writer`): a commit costs a flush of the disk, a few milliseconds, whatever it
holds, and sixty-four callers share one.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import stat
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from fullrank.core.errors import UserError
from fullrank.core.file_system import network_file_system
from fullrank.core.files import flush
from fullrank.serving.stores import Gatherer, StoreUnavailable

APPLICATION = 0x66726E6B
"""`PRAGMA application_id` of our files: "frnk"."""
FORMAT = 1
"""`PRAGMA user_version`: goes up when an older reader could not read what is written."""
WAIT = 5.0
"""Seconds that a writer waits for another process that writes."""
CHECKED = 64 * 2**20
"""Bytes of a file up to which it is read whole when it is opened, and damage found before it serves."""
ROOM = 64 << 10
"""Bytes of a disk below which it is full."""
_HEADER = b"SQLite format 3\0"
_TABLES = """
CREATE TABLE user (number INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE, features TEXT);
CREATE TABLE event (
    sequence INTEGER PRIMARY KEY, user INTEGER NOT NULL, time REAL NOT NULL, event_id TEXT NOT NULL, body TEXT NOT NULL
);
CREATE UNIQUE INDEX event_by_id ON event (user, event_id);
CREATE INDEX event_by_time ON event (user, time, sequence);
CREATE TABLE document (
    sequence INTEGER NOT NULL UNIQUE, kind TEXT NOT NULL, key TEXT NOT NULL, body TEXT NOT NULL,
    PRIMARY KEY (kind, key)
) WITHOUT ROWID;
"""
# Numbers of users and of documents only go up. Those of events may be used again once the newest
# event was deleted: they order events of one user and time, and nothing else.


def prepare_file(path: Path) -> None:
    """Make the file, or look whether what is there is a store of ours. Raises `UserError`."""
    disk = network_file_system(path)
    if disk is not None:
        raise UserError(
            f"{str(path)!r} is on a network disk ({disk}), where SQLite cannot keep processes apart; name a path on a "
            "local disk, or a Redis server (redis://HOST:PORT)",
            code="network-disk",
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _refuse_foreign(path)
        # The files beside it take its mode: histories are nobody else's business.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        with suppress(OSError):  # its name has to survive a loss of power too; some file systems cannot flush a folder
            flush(path.parent)
    except OSError as error:
        raise _not_opened(path, f"{error.strerror}; can it be written to?") from error
    try:
        connection = connect(path)
        try:
            _prepare(connection, path)
        finally:
            connection.close()
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError):
            raise _not_opened(path, f"{error}; who else has it open?") from error
        raise _damaged(path, str(error)) from error


def check_room(path: Path) -> None:
    """Raise `StoreUnavailable` where the disk is full: the least write may find a place that events do not."""
    if shutil.disk_usage(path.parent).free < ROOM:
        raise StoreUnavailable(f"the disk of {str(path)!r} has less than {ROOM >> 10} KiB left: make room")


def connect(path: Path, *, reader: bool = False) -> sqlite3.Connection:
    """A connection that commits when it is told to; a writer's waits by itself
    (`begin`). A reader cannot write."""
    connection = sqlite3.connect(path, timeout=1.0 if reader else 0.0, isolation_level=None, check_same_thread=False)
    if reader:
        connection.execute("PRAGMA query_only=ON")
    else:
        try:
            # The first statement reads the file, which a process that closes its last
            # connection holds for a moment.
            patiently(connection, "PRAGMA synchronous=FULL")  # the log is flushed before a commit returns
            connection.execute("PRAGMA secure_delete=ON")  # who is forgotten is overwritten
        except sqlite3.Error:
            connection.close()
            raise
    return connection


def begin(connection: sqlite3.Connection) -> None:
    """Begin to write, waiting for another process that does."""
    patiently(connection, "BEGIN IMMEDIATE")


def patiently(connection: sqlite3.Connection, statement: str) -> sqlite3.Cursor:
    """Execute `statement`, up to `WAIT` seconds later if another process has what it needs.

    SQLite's own waiting sleeps up to 100 ms at a time; a commit of another process takes a few.
    """
    until = time.monotonic() + WAIT
    pause = 0.0002
    while True:
        try:
            return connection.execute(statement)
        except sqlite3.OperationalError as error:
            if not is_busy(error) or time.monotonic() > until:
                raise
        time.sleep(pause)
        pause = min(2 * pause, 0.003)


def is_busy(error: sqlite3.Error) -> bool:
    """Whether another process has what is needed, for now."""
    return (getattr(error, "sqlite_errorcode", 0) & 0xFF) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def _refuse_foreign(path: Path) -> None:
    """Raise `UserError` for a path that is no SQLite file; nothing for one that is not there."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        raise _foreign(path, "is no file")
    with open(path, "rb") as file:
        begins = file.read(len(_HEADER))
    if begins and begins != _HEADER:
        raise _foreign(path, "is no SQLite file")


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Make the tables of a new file, or check that those of an old one are ours and undamaged."""
    begin(connection)  # two processes may come to a new file at the same time
    try:
        application, version = (_pragma(connection, name) for name in ("application_id", "user_version"))
        tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if application == 0 and version == 0 and tables == 0:
            for statement in _TABLES.split(";"):
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id={APPLICATION}")
            connection.execute(f"PRAGMA user_version={FORMAT}")
        elif application != APPLICATION:
            raise _foreign(path, "is a SQLite file of another program")
        elif version > FORMAT:
            raise UserError(
                f"the store {str(path)!r} has format {version}, and this fullrank reads up to {FORMAT}; install "
                "a newer fullrank",
                code="newer-history-store",
            )
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
    if path.stat().st_size <= CHECKED:
        report = patiently(connection, "PRAGMA quick_check(1)").fetchone()[0]
        if report != "ok":
            raise _damaged(path, str(report).splitlines()[0])
    _write_ahead(connection, path)


def _write_ahead(connection: sqlite3.Connection, path: Path) -> None:
    """Have the file keep a write-ahead log, which it remembers.

    Readers then do not wait for the writer, nor it for them, and a commit is one flush.
    """
    mode = patiently(connection, "PRAGMA journal_mode=WAL").fetchone()[0]
    if mode != "wal":
        raise _not_opened(path, "its disk has no shared memory for SQLite's log")


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return connection.execute(f"PRAGMA {name}").fetchone()[0]


def _not_opened(path: Path, reason: str) -> UserError:
    return UserError(
        f"the store {str(path)!r} cannot be opened ({reason}); name a path on a local disk", code="store-not-opened"
    )


def _foreign(path: Path, what: str) -> UserError:
    return UserError(f"{str(path)!r} {what}; name another path for the store, or a new one", code="not-a-history-store")


def _damaged(path: Path, reason: str) -> UserError:
    return UserError(
        f"the store {str(path)!r} is damaged ({reason}); put back a copy, or name a new path",
        code="history-store-damaged",
    )


MOST_TOGETHER = 4096
"""Rows of one transaction, so that other processes have their turn."""
Work = Callable[[sqlite3.Connection], Any]


class Writer:
    """Writes to one file, in a thread of its own: what queued during one transaction is the next one (`Gatherer`)."""

    def __init__(self, path: Path):
        self.path = path
        self._scrub = False
        self._file = _identity(path)
        self._connection = connect(path)
        self._thread = ThreadPoolExecutor(1, "fullrank-store")
        self._gathered = Gatherer(self._send, MOST_TOGETHER)

    async def write(self, work: Work, rows: int = 1, *, scrub: bool = False) -> Any:
        """Run `work` in a transaction, and return its value once that is committed and flushed to the disk.

        `scrub`: deleted bytes leave the log as well.
        """
        return await self._gathered((work, scrub), rows)

    async def close(self) -> None:
        """Write what waits, and end."""
        await self._gathered.finish()
        await asyncio.to_thread(self._thread.shutdown)
        await asyncio.to_thread(self._connection.close)

    def check(self) -> None:
        """Raise `StoreUnavailable` where the file is not the one that was opened:
        what is written would be lost."""
        if _identity(self.path) != self._file:
            raise StoreUnavailable(f"the store {str(self.path)!r} was removed or replaced; restart the service")

    async def _send(self, jobs: Sequence[tuple[Work, bool]]) -> Sequence[Any]:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._commit, jobs)

    def _commit(self, jobs: Sequence[tuple[Work, bool]]) -> Sequence[Any]:
        """The value of each work, or its error where it is not stored."""
        try:
            results = self._transaction([work for work, _ in jobs])
            self.check()
        except StoreUnavailable as error:
            return [error] * len(jobs)
        except sqlite3.OperationalError as error:  # full, locked, read-only, an error of the disk
            return [self._unavailable(error)] * len(jobs)
        except Exception as error:
            if len(jobs) > 1:  # one of them cannot be written, which is no fault of the others
                return [outcome for job in jobs for outcome in self._commit([job])]
            return [self._unavailable(error) if isinstance(error, sqlite3.Error) else error]
        self._scrub |= any(scrub for _, scrub in jobs)
        if self._scrub:
            self._truncate_log()
        return results

    def _transaction(self, works: Sequence[Work]) -> list[Any]:
        """Run works in one transaction, all or none, and return their values."""
        begin(self._connection)
        try:
            results = [work(self._connection) for work in works]
            self._connection.execute("COMMIT")
        finally:
            if self._connection.in_transaction:
                with suppress(sqlite3.Error):  # what went wrong is told by the error that is on its way
                    self._connection.execute("ROLLBACK")
        return results

    def _truncate_log(self) -> None:
        """Move the log into the file and empty it. Where another process reads just
        now, it is tried again later."""
        with suppress(sqlite3.Error):
            busy, _, _ = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            self._scrub = bool(busy)

    def _unavailable(self, error: Exception) -> StoreUnavailable:
        return StoreUnavailable(
            f"the store {str(self.path)!r} could not write ({error}); nothing of the call is stored"
        )


def _identity(path: Path) -> tuple[int, int] | None:
    """Device and inode, which tell a file from another one in its place; None without a file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
