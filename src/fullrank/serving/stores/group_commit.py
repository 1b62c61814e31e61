"""Group commit: one thread writes to a SQLite file, and what queued during one transaction is the next one.

A commit costs a flush of the disk, a few milliseconds, whatever it holds: sixty-four callers share one.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from fullrank.serving.stores import StoreUnavailable, settle
from fullrank.serving.stores.sqlite_file import begin, connect

MOST_TOGETHER = 4096
"""Rows of one transaction, so that other processes have their turn."""
MOST_WAITING = 100_000
"""Rows that wait to be written; above it calls are refused, since the disk does not keep up."""

Work = Callable[[sqlite3.Connection], Any]


@dataclass(slots=True)
class _Job:
    work: Work
    rows: int
    scrub: bool
    future: asyncio.Future[Any]


class Writer:
    """The thread that writes to one file. `write` returns when what it was given is committed and flushed."""

    def __init__(self, path: Path):
        self.path = path
        self._queue: SimpleQueue[_Job | None] = SimpleQueue()
        self._waiting = 0  # rows; changed on the event loop alone
        self._scrub = False
        self._closed = False
        self._file = _identity(path)
        self._connection = connect(path)
        self._thread = threading.Thread(target=self._run, name="fullrank-store", daemon=True)
        self._thread.start()

    async def write(self, work: Work, rows: int = 1, *, scrub: bool = False) -> Any:
        """What `work` returns, which is part of a transaction; `scrub`: deleted bytes leave the log as well."""
        if self._closed:
            raise StoreUnavailable(f"the store {str(self.path)!r} is closed")
        if self._waiting + rows > max(MOST_WAITING, rows):
            raise StoreUnavailable(f"{self._waiting:,} rows wait to be written to {str(self.path)!r}; try again later")
        future = asyncio.get_running_loop().create_future()
        self._waiting += rows
        future.add_done_callback(lambda _: self._done(rows))
        self._queue.put(_Job(work, rows, scrub, future))
        return await future

    def close(self) -> None:
        """Write what waits, and end. Blocks until that is done."""
        if not self._closed:
            self._closed = True
            self._queue.put(None)
            self._thread.join()
            self._connection.close()

    def check(self) -> None:
        """Raise `StoreUnavailable` where the file is not the one that was opened: what is written would be lost."""
        if _identity(self.path) != self._file:
            raise StoreUnavailable(f"the store {str(self.path)!r} was removed or replaced; restart the service")

    def _done(self, rows: int) -> None:
        self._waiting -= rows

    def _run(self) -> None:
        ending = False
        while not ending:
            jobs, rows = [self._queue.get()], 0
            with suppress(Empty):
                while rows < MOST_TOGETHER and jobs[-1] is not None:
                    rows += jobs[-1].rows
                    jobs.append(self._queue.get_nowait())
            ending = jobs[-1] is None
            self._commit([job for job in jobs if job is not None])

    def _commit(self, jobs: Sequence[_Job]) -> None:
        if not jobs:
            return
        try:
            results = self._transaction([job.work for job in jobs])
            self.check()
        except StoreUnavailable as error:
            _answer([(job, error) for job in jobs])
        except sqlite3.OperationalError as error:  # full, locked, read-only, an error of the disk
            _answer([(job, self._unavailable(error)) for job in jobs])
        except Exception as error:
            if len(jobs) > 1:  # one of them cannot be written, which is no fault of the others
                for job in jobs:
                    self._commit([job])
            else:
                _answer([(jobs[0], self._unavailable(error) if isinstance(error, sqlite3.Error) else error)])
        else:
            self._scrub |= any(job.scrub for job in jobs)
            if self._scrub:
                self._truncate_log()
            _answer(list(zip(jobs, results, strict=True)))

    def _transaction(self, works: Sequence[Work]) -> list[Any]:
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
        """Move the log into the file and empty it. Where another process reads just now, it is tried again later."""
        with suppress(sqlite3.Error):
            busy, _, _ = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            self._scrub = bool(busy)

    def _unavailable(self, error: Exception) -> StoreUnavailable:
        return StoreUnavailable(
            f"the store {str(self.path)!r} could not write ({error}); nothing of the call is stored"
        )


def _identity(path: Path) -> tuple[int, int] | None:
    """What tells a file from another one in its place."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _answer(results: Sequence[tuple[_Job, Any]]) -> None:
    """Wake those who wait: their event loop once, however many calls were in the transaction."""
    with suppress(RuntimeError):  # the loop was closed: nobody waits any more
        results[0][0].future.get_loop().call_soon_threadsafe(_resolve, results)


def _resolve(answers: Sequence[tuple[_Job, Any]]) -> None:
    for job, result in answers:
        settle(job.future, result)
