"""A lock on a folder while it is written: a second writer, of whatever verb, process or thread, is refused at once.

The lock is the kernel's (flock on `.NAME.lock` beside the folder NAME), so it ends with its process, however that ends:
the file that a killed process left is no lock. What stands in the file says who has it, for whoever is refused.

The package filelock takes the same lock, but opens the file truncating it before it has the lock: who is refused would
have emptied the holder's note. The kernel's lock does not reach across machines on every shared disk, and a process
that was forked from the holder holds it too.
"""

from __future__ import annotations

import errno
import json
import os
import platform
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from fullrank.core.errors import UserError, brief
from fullrank.core.log import logger
from fullrank.core.readers import read_json_text

if sys.platform != "win32":
    import fcntl

log = logger(__name__)

HOST = platform.node()
_NO_LOCKS = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL}
_TAKEN = {errno.EAGAIN, errno.EWOULDBLOCK, errno.EACCES}
_NOTE = 4096
"""Bytes of a lock file that are read."""
_TRIES = 100
"""How often a lock file may vanish between being opened and being locked: each time another writer has ended."""
_HELD: ContextVar[Mapping[Path, bool]] = ContextVar("_HELD", default={})  # noqa: B039  # never changed, only replaced
"""Places that this chain of calls writes, and whether the kernel keeps others out of them."""


@contextmanager
def folder_lock(folder: str | Path, what: str, *, wait: float = 0.0) -> Iterator[None]:
    """Hold a folder while it is written; `what` (`train`) is for the sentence of the one who is refused.

    The folder need not exist. Who holds it already, further up in the same chain of calls, may enter again. Where the
    disk has no locks, one note is logged and nobody is kept out. `wait`: seconds to wait for another holder, such as
    one that is being ended. Raises `UserError`: `folder-locked` where another process or thread has it, `not-written`
    where no lock file can be made.
    """
    place = Path(os.path.realpath(folder))
    held = _HELD.get()
    if place in held:
        yield
        return
    made = [parent for parent in place.parents if not os.path.exists(parent)]  # the innermost first
    try:
        path = _lock_file(place)
        handle = _acquire_within(wait, path, place)
        try:
            if handle is not None:
                _write_note(handle, what)
            token = _HELD.set({**held, place: handle is not None})
            try:
                yield
            finally:
                _HELD.reset(token)
        finally:
            if handle is not None:
                with suppress(OSError):  # before it is let go: after that the file may be another's
                    path.unlink()
                os.close(handle)
    except _NotLocked as error:
        raise UserError(f"cannot lock {str(place)!r} ({error})", code="not-written") from error
    finally:
        for parent in made:  # a verb that wrote nothing leaves nothing
            with suppress(OSError):
                parent.rmdir()


def holds_lock(place: Path) -> bool:
    """Whether this chain of calls holds the lock of a place (resolved), and the kernel keeps all others out."""
    return _HELD.get().get(place, False)


class _NotLocked(Exception):
    """No lock file could be made."""


def _lock_file(place: Path) -> Path:
    """Beside the folder, which may be exchanged for another. In it where its surroundings cannot be written to, as with
    a disk that is mounted there."""
    inside = place.is_dir() and not os.access(place.parent, os.W_OK)
    return (place if inside else place.parent) / f".{place.name}.lock"


def _acquire_within(seconds: float, path: Path, place: Path) -> int | None:
    """`_acquire`, tried again for so long while another has the lock."""
    until = time.monotonic() + seconds
    while True:
        try:
            return _acquire(path, place)
        except UserError:
            if time.monotonic() >= until:
                raise
            time.sleep(min(0.5, seconds))


def _acquire(path: Path, place: Path) -> int | None:
    """A handle that has the lock; None where there are no locks."""
    if sys.platform == "win32":
        _tell_no_locks("this system")
        return None
    vanished: OSError | None = None
    for _ in range(_TRIES):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # never through a link: what it points to would be written over
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        except FileNotFoundError as error:  # whoever made the folder around it has just removed it
            vanished = error
            continue
        except OSError as error:
            raise _NotLocked(error.strerror or error) from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            refusal = _refusal(handle, place)
            os.close(handle)
            if error.errno in _TAKEN:
                raise refusal from None
            if error.errno not in _NO_LOCKS:
                raise _NotLocked(error.strerror or error) from error
            _tell_no_locks(f"the disk of {place}")
            with suppress(OSError):
                path.unlink()
            return None
        if _is_at(handle, path):
            return handle
        os.close(handle)  # its holder removed the file when it ended: the lock is one on nothing
    if vanished is not None:  # /proc says so of whatever is made there
        raise _NotLocked(vanished.strerror) from vanished
    raise UserError(f"{str(place)!r} is written by one process after another; try again", code="folder-locked")


@cache
def _tell_no_locks(where: str) -> None:
    log.info(f"{where} has no locks: nothing keeps two processes from writing to one folder at the same time")


def _is_at(handle: int, path: Path) -> bool:
    """Whether an open file is the one that has the name `path` now."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False


def _write_note(handle: int, what: str) -> None:
    since = datetime.now(UTC).isoformat(timespec="seconds")
    with suppress(OSError):  # a full disk: the lock holds without it
        os.ftruncate(handle, 0)
        os.write(handle, json.dumps({"pid": os.getpid(), "host": HOST, "what": what, "since": since}).encode())


def _refusal(handle: int, place: Path) -> UserError:
    """What to tell of the process that has the lock, as far as its note says."""
    note: Any = None
    with suppress(OSError, UserError):
        note = read_json_text(os.read(handle, _NOTE))
    keys = ("what", "pid", "host", "since")
    if isinstance(note, dict) and all(key in note for key in keys):
        what, pid, host, since = (brief(note[key], 80).strip("'") for key in keys)
        who = f"{what} (process {pid} on {host}, since {since})"
    else:
        who = "another process"
    return UserError(
        f"{str(place)!r} is being written by {who}; wait until that has ended, or name another folder",
        code="folder-locked",
    )
