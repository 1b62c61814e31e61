"""Several writers at one place: a lock on a folder while it is written, and what killed writers left beside it.

A second writer, of whatever verb, process or thread, is refused at once. The lock is the kernel's
(the package filelock on `.NAME.lock` beside the folder NAME), so it ends with its process, however
that ends: the file that a killed process left is no lock. What stands in the file says who has it,
for whoever is refused. The kernel's lock does not reach across machines on every shared disk.

What is being written lies in a hidden folder ``.NAME.PID-N-HOST.part`` beside the place NAME
(`core/files.py`). A killed process leaves it; the next one that writes there removes it.
"""

from __future__ import annotations

import errno
import hashlib
import itertools
import json
import os
import platform
import re
import time
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
"""How often a lock file may vanish before it is locked: each time another writer has ended."""
_HELD: ContextVar[Mapping[Path, bool]] = ContextVar("_HELD", default={})  # noqa: B039  # never changed, only replaced
"""Places that this chain of calls writes, and whether the kernel keeps others out of them."""


@contextmanager
def folder_lock(folder: str | Path, what: str, *, wait: float = 0.0) -> Iterator[None]:
    """Hold a folder while it is written; `what` (`train`) is for the sentence of the one who is refused.

    The folder need not exist. Whoever holds it already, further up in the same chain of calls, may
    enter again. Where the disk has no locks, one note is logged and nobody is kept out. `wait`:
    seconds to wait for another holder, such as one that is being ended.

    Raises `UserError`: `folder-locked` where another process or thread has it, `not-written` where
    no lock file can be made.
    """
    target = Path(os.path.realpath(folder))
    held = _HELD.get()
    if target in held:
        yield
        return
    missing = [parent for parent in target.parents if not os.path.exists(parent)]
    try:
        lock = _acquire(target, what, wait)
        token = _HELD.set({**held, target: lock is not None})
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


def holds_lock(target: Path) -> bool:
    """Whether this chain of calls holds the lock of a resolved path, and keeps all others out."""
    return _HELD.get().get(target, False)


def _lock_file(target: Path) -> Path:
    """The lock file: beside the folder, which may be exchanged, or in it where nothing can be
    written beside it, as with a mounted disk."""
    inside = target.is_dir() and not os.access(target.parent, os.W_OK)
    return (target if inside else target.parent) / f".{target.name}.lock"


def _acquire(target: Path, what: str, wait: float) -> BaseFileLock | None:
    """The lock on a folder, with a note of its holder; None where the disk has no locks."""
    from filelock import FileLock, Timeout

    path, reason = _lock_file(target), "its file vanishes"
    lock = FileLock(path, timeout=wait, thread_local=False, on_acquired=partial(_write_note, what))
    for _ in range(_TRIES):
        try:
            lock.acquire()
            return lock
        except Timeout:
            if wait or path.exists():  # else its holder has just ended, or no file can be made there
                raise _refusal(path, target) from None
        except FileNotFoundError as error:  # whoever made the folder around it has just removed it
            reason = str(error.strerror)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                reason = error.strerror or str(error)
                break
            _note_no_locks(target)
            with suppress(OSError):
                path.unlink()
            return None
    raise UserError(f"cannot lock {str(target)!r} ({reason})", code="not-written")


@cache
def _note_no_locks(target: Path) -> None:
    log.info(
        f"the disk of {target} has no locks: nothing keeps two processes from writing to one folder at the same time"
    )


def _write_note(what: str, handle: int) -> None:
    since = datetime.now(UTC).isoformat(timespec="seconds")
    with suppress(OSError):  # a full disk: the lock holds without it
        os.ftruncate(handle, 0)
        os.write(handle, json.dumps({"pid": os.getpid(), "host": HOST, "what": what, "since": since}).encode())


def _refusal(path: Path, target: Path) -> UserError:
    """The error that names the process that holds the lock, as far as its note says."""
    who = "another process"
    with suppress(OSError, UserError, KeyError, TypeError), path.open("rb") as file:
        note = read_json_text(file.read(_NOTE))
        what, pid, host, since = (brief(note[key], 80).strip("'") for key in ("what", "pid", "host", "since"))
        who = f"{what} (process {pid} on {host}, since {since})"
    return UserError(
        f"{str(target)!r} is being written by {who}; wait until that has ended, or name another folder",
        code="folder-locked",
    )


_HOST = hashlib.sha256(HOST.encode()).hexdigest()[:8]
"""This machine in the names of parts: on a shared disk a process id alone says nothing."""
_LEFTOVER = re.compile(r"\..+\.((\d+)(?:-\d+)?(?:-([0-9a-f]{8}))?)\.(?:part|previous)")
"""Groups of the match: 1 the writer, 2 its process, 3 its machine, which the names of versions up to 0.1 lack."""
_LOCK = re.compile(r"\..+\.lock")
_LONGEST = 24 * 3600.0
"""Seconds after which a part of a file that another machine was writing is taken for left over."""
_LIVE: set[str] = set()
"""Parts that this process is writing: its threads share one process id."""
_NUMBERS = itertools.count(1)


def part_name(path: Path) -> Path:
    """A hidden name beside `path` that no other writer has, in this process or another;
    `forget_part` ends its use."""
    part = path.with_name(f".{path.name}.{os.getpid()}-{next(_NUMBERS)}-{_HOST}.part")
    _LIVE.add(str(part))
    return part


def forget_part(part: Path) -> None:
    """Remove what is left of a part; nobody writes to it any more."""
    remove_tree(part)
    _LIVE.discard(str(part))


def remove_tree(folder: Path) -> None:
    """Remove a folder and all that is in it, as far as that can be.

    One file is open at a time (`shutil.rmtree` has one a level): what ran out of them still
    clears up behind itself.
    """
    for path, folders, files in reversed([*os.walk(folder)]):
        with suppress(OSError):  # gone by now, or of another user
            for name in [*files, *(name for name in folders if os.path.islink(os.path.join(path, name)))]:
                os.unlink(os.path.join(path, name))
            os.rmdir(path)


def is_leftover(name: str) -> bool:
    """Whether a name is that of a half-written file or folder, or of a lock."""
    return _LEFTOVER.fullmatch(name) is not None or _LOCK.fullmatch(name) is not None


def remove_leftovers(path: Path) -> None:
    """Remove what killed writers left beside `path`.

    Whoever holds the lock of the place, or of the folder around it, is its only writer: all that is
    half written there goes. Without the lock, only what belongs to processes that are gone does.
    """
    alone = holds_lock(path) or holds_lock(Path(os.path.realpath(path.parent)))
    for left in _leftovers(path.parent):
        match = _LEFTOVER.fullmatch(left.name)
        if match is None or not left.name.startswith(f".{path.name}.{match[1]}."):
            continue
        if left.suffix == ".previous" and not path.exists():
            continue  # killed between two renames: this is the only copy
        if not _written(left, alone):
            _remove(left)


def sweep_folder(folder: Path) -> None:
    """Remove what killed writers left of any file in a folder."""
    for left in _leftovers(folder):
        if left.suffix == ".part" and not _written(left, False):
            _remove(left)


def _leftovers(folder: Path) -> list[Path]:
    with suppress(FileNotFoundError):
        return [path for path in folder.iterdir() if _LEFTOVER.fullmatch(path.name)]
    return []


def _remove(left: Path) -> None:
    """Remove a leftover, which another process may be removing too."""
    if left.is_dir() and not left.is_symlink():
        remove_tree(left)
    else:
        with suppress(OSError):  # gone by now, or of another user
            left.unlink()


def _written(part: Path, alone: bool) -> bool:
    """Whether a part may still be written: by a process that lives, or by a thread of this one."""
    match = _LEFTOVER.fullmatch(part.name)
    assert match is not None
    process, host = int(match[2]), match[3]
    if process == os.getpid() and host in (None, _HOST):
        return str(part) in _LIVE
    if alone and host is not None:
        return False  # who writes to that place holds its lock, and we do
    if host not in (None, _HOST):
        with suppress(OSError):
            return time.time() - part.stat().st_mtime < _LONGEST
        return False
    return lives(process)


def lives(process: int) -> bool:
    """Whether a process of this machine runs, also another user's; on Windows always true."""
    if os.name == "nt":  # no signal is harmless there: 0 is Ctrl-C
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True
