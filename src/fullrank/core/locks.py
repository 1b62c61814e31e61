"""A lock on a folder while it is written: a second writer, of whatever verb, process or thread, is refused at once.

The lock is the kernel's (the package filelock on `.NAME.lock` beside the folder NAME), so it ends with its process,
however that ends: the file that a killed process left is no lock. What stands in the file says who has it, for whoever
is refused. The kernel's lock does not reach across machines on every shared disk.
"""

from __future__ import annotations

import errno
import json
import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from fullrank.core.errors import UserError, brief
from fullrank.core.log import logger
from fullrank.core.readers import read_json_text

if TYPE_CHECKING:
    from filelock import BaseFileLock

log = logger(__name__)

HOST = platform.node()
_NO_LOCKS = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL}
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
    missing = [parent for parent in place.parents if not os.path.exists(parent)]
    try:
        lock = _acquire(place, what, wait)
        token = _HELD.set({**held, place: lock is not None})
        try:
            yield
        finally:
            _HELD.reset(token)
            if lock is not None:
                with suppress(OSError):  # before it is let go: after that the file may be another's
                    os.unlink(lock.lock_file)
                lock.release()
    finally:
        for parent in missing:  # a verb that wrote nothing leaves nothing
            with suppress(OSError):
                parent.rmdir()


def holds_lock(place: Path) -> bool:
    """Whether this chain of calls holds the lock of a place (resolved), and the kernel keeps all others out."""
    return _HELD.get().get(place, False)


def _lock_file(place: Path) -> Path:
    """Beside the folder, which may be exchanged for another. In it where its surroundings cannot be written to, as with
    a disk that is mounted there."""
    inside = place.is_dir() and not os.access(place.parent, os.W_OK)
    return (place if inside else place.parent) / f".{place.name}.lock"


def _acquire(place: Path, what: str, wait: float) -> BaseFileLock | None:
    """The lock on a place, with a note of who has it; None where there are no locks."""
    from filelock import FileLock, Timeout

    path, reason = _lock_file(place), "its file vanishes"
    lock = FileLock(path, timeout=wait, thread_local=False, on_acquired=partial(_write_note, what))
    for _ in range(_TRIES):
        try:
            lock.acquire()
            return lock
        except Timeout:
            if wait or path.exists():  # else its holder has just ended, or no file can be made there
                raise _refusal(path, place) from None
        except FileNotFoundError as error:  # whoever made the folder around it has just removed it
            reason = str(error.strerror)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                reason = error.strerror or str(error)
                break
            _tell_no_locks(place)
            with suppress(OSError):
                path.unlink()
            return None
    raise UserError(f"cannot lock {str(place)!r} ({reason})", code="not-written")


@cache
def _tell_no_locks(place: Path) -> None:
    consequence = "nothing keeps two processes from writing to one folder at the same time"
    log.info(f"the disk of {place} has no locks: {consequence}")


def _write_note(what: str, handle: int) -> None:
    since = datetime.now(UTC).isoformat(timespec="seconds")
    with suppress(OSError):  # a full disk: the lock holds without it
        os.ftruncate(handle, 0)
        os.write(handle, json.dumps({"pid": os.getpid(), "host": HOST, "what": what, "since": since}).encode())


def _refusal(path: Path, place: Path) -> UserError:
    """What to tell of the process that has the lock, as far as its note says."""
    who = "another process"
    with suppress(OSError, UserError, KeyError, TypeError), path.open("rb") as file:
        note = read_json_text(file.read(_NOTE))
        what, pid, host, since = (brief(note[key], 80).strip("'") for key in ("what", "pid", "host", "since"))
        who = f"{what} (process {pid} on {host}, since {since})"
    return UserError(
        f"{str(place)!r} is being written by {who}; wait until that has ended, or name another folder",
        code="folder-locked",
    )
