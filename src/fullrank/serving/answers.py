"""Answer log: the lists that users got, as Parquet files for later evaluation (`fullrank evaluate-log`).

A row per answer goes into a buffer, which costs the event loop an append; a thread of its own
writes the buffer as a part, a Parquet file that is whole or absent, every `rows` answers or
`seconds` seconds and when the log is closed. A killed process loses the answers that it had not
written yet: at most those of the last `seconds`. Where the disk is slower than the answers, or
full, the buffer is bounded: answers that do not fit are dropped and counted.

Forgetting a user leaves a marker in the folder (the hash of the user and the time) before parts are
rewritten. Every writer looks for markers before it writes a part and again afterwards, so a row of
the user that another process still had in its buffer does not stay either: that process sees the
marker, or the process that forgets sees its part.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from fullrank.core.checks import check_path
from fullrank.core.errors import UserError
from fullrank.core.files import make_folder, write_json
from fullrank.core.locks import HOST, folder_lock, sweep_folder
from fullrank.core.log import logger
from fullrank.core.parquet import read_parquet
from fullrank.core.readers import read_json
from fullrank.core.tables import write_table
from fullrank.data.manifest import require_no_store

log = logger(__name__)

SCHEMA: dict[str, Any] = {
    "time": pl.Float64,
    "request_id": pl.String,
    "user": pl.String,
    "version": pl.String,
    "source": pl.String,
    "k": pl.Int32,
    "items": pl.List(pl.String),
    "scores": pl.List(pl.Float32),
    "history": pl.Int32,
    "filtered": pl.Boolean,
    "ranked": pl.Boolean,
}
"""Columns of a part."""
MOST_PLACES = 2_000_000
"""Items of answers that a buffer holds, with `ROW` more for each answer: about 150 MB of Python numbers."""
ROW = 16
STEP = 64
"""Answers that are turned into columns at once: what holds the interpreter stays below a millisecond or two."""
MARKER_DAYS = 1.0
"""How long the marker of a forgotten user stays; no buffer keeps answers longer."""
CLEAN_EVERY = 3600.0
"""Seconds between two looks for old parts."""
PATIENCE = 60.0
"""Seconds that forgetting waits for another process that rewrites parts."""
_WHAT = "the part of the answer log"
_PART = re.compile(r"answers-\d{8}T\d{12}-[0-9a-f]{8}-\d+-\d+\.parquet")
_MARKER = re.compile(r"forgotten-([0-9a-f]{64})\.json")
_NUMBERS = itertools.count(1)


class LoggedAnswer(NamedTuple):
    """One answered recommendation: a row of the log. Ids are external."""

    time: float
    """Seconds since 1970 at which it was answered."""
    request_id: str
    user: str | None
    version: str
    source: str
    """`model` or `popular`."""
    k: int
    """The length that was asked for; `items` may be fewer."""
    items: Sequence[Any]
    scores: Sequence[float]
    history: int
    """Events of the history that was read."""
    filtered: bool
    """Whether filters, `exclude` or `allow` were asked for."""
    ranked: bool
    """Whether a ranker put the items in order."""


class AnswerLog:
    """The log of one process; several processes and hosts may share its folder. Safe from many threads."""

    def __init__(
        self,
        folder: str | Path,
        *,
        days: float = 30,
        rows: int = 10_000,
        seconds: float = 30,
        most_places: int = MOST_PLACES,
    ):
        """`days`: parts older than that are removed. Raises `UserError`
        where the folder cannot be made."""
        self.folder = check_path("the answer log", folder)
        require_no_store(self.folder, "answer log")
        self.days, self.rows, self.seconds, self.most_places = days, rows, seconds, most_places
        self.written = self.dropped = 0
        """Answers, since the process began."""
        self._buffer: list[LoggedAnswer] = []
        self._places = 0  # of the buffer and of what is being written
        self._state = threading.Condition()
        self._writing = threading.Lock()  # one part after the other
        self._closing = False
        self._thread: threading.Thread | None = None
        self._drops_logged = 0
        self._cleaned = 0.0
        make_folder(self.folder, "answer log")

    def open(self) -> AnswerLog:
        """Start the thread that writes; what killed processes left half written is removed."""
        if self._thread is None:
            sweep_folder(self.folder)
            self._thread = threading.Thread(target=self._run, name="answer-log", daemon=True)
            self._thread.start()
        return self

    def __enter__(self) -> AnswerLog:
        return self.open()

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pending(self) -> int:
        """Answers that are not on the disk yet."""
        return len(self._buffer)

    def add(self, answers: Iterable[LoggedAnswer]) -> None:
        """Put answers into the buffer, without waiting for the disk; those for which it has no room
        count as dropped."""
        with self._state:
            for answer in answers:
                places = len(answer.items) + ROW
                if self._places + places > self.most_places or self._closing:
                    self.dropped += 1
                    continue
                self._buffer.append(answer)
                self._places += places
            if self._is_full():
                self._state.notify_all()

    def flush(self) -> None:
        """Write what the buffer holds, now and in this thread. Raises `UserError` where the disk refuses."""
        with self._writing:
            with self._state:
                taken, self._buffer = self._buffer, []
            try:
                if answers := self._unforgotten(taken):
                    path = self.folder / _part_name(answers[-1].time)
                    write_table(_frame(answers), path)
                    self.written += len(answers)
                    self._forget_marked([path], since=answers[0].time)
            except UserError:
                with self._state:  # answers that came meanwhile stand behind these
                    self._buffer = taken + self._buffer
                raise
            with self._state:
                self._places -= sum(len(answer.items) + ROW for answer in taken)

    def forget(self, user: str) -> int:
        """Remove the answers given to a user so far, in the buffer and on the disk; how many there were.

        Answers of the user in the buffers of other processes are removed before or right after
        these are written (and are not counted). Takes the time of reading one column of all parts:
        call it in a thread. Raises `UserError` where a part cannot be rewritten or another process
        holds the lock too long; repeating it is safe.
        """
        user, now = str(user), time.time()
        write_json(self.folder / f"forgotten-{_hash(user)}.json", {"time": now})
        with self._writing:  # once we hold this lock, what was being written is a part
            with self._state:
                gone = [answer for answer in self._buffer if answer.user == user]
                self._buffer = [answer for answer in self._buffer if answer.user != user]
                self._places -= sum(len(answer.items) + ROW for answer in gone)
        return len(gone) + self._rewrite({user: now}, self.parts())

    def parts(self) -> list[Path]:
        """Files of the log, the oldest first."""
        return [self.folder / name for name in sorted(os.listdir(self.folder)) if _PART.fullmatch(name)]

    def clean(self) -> int:
        """Remove parts beyond `days` and markers that no buffer can need; how many parts were removed."""
        self._cleaned, removed = time.time(), 0
        oldest = _beginning(self._cleaned - self.days * 86400)
        for path in self.parts():
            if path.name < oldest:  # names begin with the time
                path.unlink(missing_ok=True)
                removed += 1
        for path, _, at in self._markers():
            if at < self._cleaned - MARKER_DAYS * 86400:
                path.unlink(missing_ok=True)
        return removed

    def close(self) -> None:
        """Write what is left, and end the thread. What cannot be written then is lost, counted and logged."""
        with self._state:
            self._closing = True
            self._state.notify_all()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        try:
            self.flush()
        except UserError as error:
            self.dropped += len(self._buffer)
            log.error(f"{len(self._buffer):,} answers are lost with the end of the service: {error}")

    def _run(self) -> None:
        """Write parts and remove old ones until the log closes; the work of its thread."""
        self._attempt(self._take_up)
        while True:
            with self._state:
                self._state.wait_for(lambda: self._closing or self._is_full(), timeout=self.seconds)
                if self._closing:
                    return
            if not self._attempt(self.flush):
                with self._state:  # a full disk: not at once again, though the buffer is full
                    self._state.wait_for(lambda: self._closing, timeout=min(self.seconds, 5.0))
            if time.time() - self._cleaned > CLEAN_EVERY:
                self._attempt(self.clean)
            self._log_drops()

    def _is_full(self) -> bool:
        return len(self._buffer) >= self.rows or (4 * self._places >= self.most_places and bool(self._buffer))

    def _attempt(self, step: Any) -> bool:
        try:
            step()
        except (UserError, OSError) as error:
            log.error(f"the answer log {str(self.folder)!r}: {error}; {self.pending:,} answers wait")
            return False
        return True

    def _take_up(self) -> None:
        """Forget the users that a killed process left half forgotten, and remove old parts."""
        self.clean()
        self._forget_marked(self.parts(), since=0.0)

    def _log_drops(self) -> None:
        if self.dropped > self._drops_logged:
            log.warning(f"the answer log {str(self.folder)!r} has dropped {self.dropped:,} answers: the disk is slower")
            self._drops_logged = self.dropped

    def _unforgotten(self, taken: list[LoggedAnswer]) -> list[LoggedAnswer]:
        """The answers to keep: none of a forgotten user, and none older than markers
        live (these count as dropped)."""
        oldest = time.time() - MARKER_DAYS * 86400
        late = sum(answer.time < oldest for answer in taken)
        if late:
            self.dropped += late
            taken = [answer for answer in taken if answer.time >= oldest]
        marked = self._marked({answer.user for answer in taken if answer.user is not None})
        return [answer for answer in taken if answer.user is None or answer.time > marked.get(answer.user, -1.0)]

    def _markers(self) -> Iterator[tuple[Path, str, float]]:
        """(file, hash of the user, time until which answers are forgotten) of every marker."""
        for name in os.listdir(self.folder):
            if match := _MARKER.fullmatch(name):
                try:
                    at = read_json(self.folder / name).get("time")
                except UserError:  # removed meanwhile
                    continue
                if isinstance(at, int | float):
                    yield self.folder / name, match[1], float(at)

    def _marked(self, users: Iterable[str], since: float = 0.0) -> dict[str, float]:
        """User -> time of the marker, for the users that have one; without any
        marker `users` is not read."""
        until = {name: at for _, name, at in self._markers() if at >= since}
        return {user: until[key] for user in users if (key := _hash(user)) in until} if until else {}

    def _forget_marked(self, parts: list[Path], *, since: float) -> None:
        """Remove the answers of marked users from some parts."""
        self._rewrite(self._marked((user for path in parts for user in _users(path)), since), parts)

    def _rewrite(self, until: dict[str, float], parts: list[Path]) -> int:
        """Rewrite parts without the answers given to these users up to a time each;
        returns how many that were."""
        if not until:
            return 0
        removed = 0
        limit = pl.DataFrame({"user": list(until), "until": list(until.values())}, schema_overrides={"user": pl.String})
        # two processes that rewrite one part would each bring back what the other has removed
        with folder_lock(self.folder / "parts", "forget a user", wait=PATIENCE):
            for path in parts:
                if not until.keys() & _users(path):
                    continue
                try:
                    frame = read_parquet(path, _WHAT)
                except FileNotFoundError:  # by now too old
                    continue
                past = frame.join(limit, on="user", how="left", maintain_order="left")
                rest = past.filter(pl.col("until").is_null() | (pl.col("time") > pl.col("until"))).drop("until")
                removed += len(frame) - len(rest)
                if rest.is_empty():
                    path.unlink(missing_ok=True)
                elif len(rest) < len(frame):
                    write_table(rest, path)
        return removed


def _users(path: Path) -> set[str]:
    """Users of a part; none where it is gone."""
    try:
        return set(read_parquet(path, _WHAT, columns=["user"])["user"].drop_nulls().unique().to_list())
    except FileNotFoundError:
        return set()


def _frame(answers: list[LoggedAnswer]) -> pl.DataFrame:
    """The columns of some answers, made in steps between which other threads get their turn."""
    frames = []
    for first in range(0, len(answers), STEP):
        columns = list(zip(*answers[first : first + STEP], strict=True))
        columns[6] = tuple([str(item) for item in items] for items in columns[6])
        columns[7] = tuple([float(score) for score in scores] for scores in columns[7])
        pairs = zip(SCHEMA.items(), columns, strict=True)
        frames.append(pl.DataFrame([pl.Series(name, values, dtype=dtype) for (name, dtype), values in pairs]))
        time.sleep(0)
    return pl.concat(frames)


def _beginning(at: float) -> str:
    """The beginning of the name of a part of that time."""
    return datetime.fromtimestamp(at, UTC).strftime("answers-%Y%m%dT%H%M%S%f")


def _part_name(at: float) -> str:
    host = hashlib.sha256(HOST.encode()).hexdigest()[:8]
    return f"{_beginning(at)}-{host}-{os.getpid()}-{next(_NUMBERS)}.parquet"


def _hash(user: str) -> str:
    return hashlib.sha256(user.encode("utf-8", "surrogatepass")).hexdigest()
