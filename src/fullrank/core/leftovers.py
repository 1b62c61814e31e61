"""What writers leave beside a place while they write, and when they are killed: its names, and its removal.

What is being written lies in a hidden folder ``.NAME.PID-N-HOST.part`` beside the place NAME (`core.files`). A killed
process leaves it; the next one that writes there removes it.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import time
from contextlib import suppress
from pathlib import Path

from fullrank.core.locks import HOST, holds_lock

_HOST = hashlib.sha256(HOST.encode()).hexdigest()[:8]
"""This machine in the names of parts: on a disk that several share, a process id says nothing without it."""
_LEFTOVER = re.compile(r"\..+\.((\d+)(?:-\d+)?(?:-([0-9a-f]{8}))?)\.(?:part|previous)")
"""[1] the writer, [2] its process, [3] its machine, which names of versions up to 0.1 lack."""
_LOCK = re.compile(r"\..+\.lock")
_LONGEST = 24 * 3600.0
"""Seconds after which a part of a file that another machine was writing is taken for left over."""
_LIVE: set[str] = set()
"""Parts that this process is writing: its threads share one process id."""
_NUMBERS = itertools.count(1)


def part_name(path: Path) -> Path:
    """A name of its own for each writer, also of one process; `forget_part` it in the end."""
    part = path.with_name(f".{path.name}.{os.getpid()}-{next(_NUMBERS)}-{_HOST}.part")
    _LIVE.add(str(part))
    return part


def forget_part(part: Path) -> None:
    """Remove what is left of a part; nobody writes to it any more."""
    remove_tree(part)
    _LIVE.discard(str(part))


def remove_tree(folder: Path) -> None:
    """Remove a folder and all that is in it, as far as that can be.

    One file is open at a time (`shutil.rmtree` has one a level): what ran out of them still clears up behind itself.
    """
    for path, folders, files in reversed([*os.walk(folder)]):
        with suppress(OSError):  # gone by now, or of another user
            for name in [*files, *(name for name in folders if os.path.islink(os.path.join(path, name)))]:
                os.unlink(os.path.join(path, name))
            os.rmdir(path)


def is_leftover(name: str) -> bool:
    """Whether a name is that of something half written, of this process or a killed one, or of a lock."""
    return _LEFTOVER.fullmatch(name) is not None or _LOCK.fullmatch(name) is not None


def remove_leftovers(path: Path) -> None:
    """Remove what killed writers to this place left beside it: all that is half written where this one holds its lock,
    or that of the folder around it, and otherwise what belongs to processes that are gone.
    """
    alone = holds_lock(path) or holds_lock(Path(os.path.realpath(path.parent)))
    for left in _leftovers(path.parent):
        found = _LEFTOVER.fullmatch(left.name)
        if found is None or not left.name.startswith(f".{path.name}.{found[1]}."):
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
    """Also where another process does the same."""
    if left.is_dir() and not left.is_symlink():
        remove_tree(left)
    else:
        with suppress(OSError):  # gone by now, or of another user
            left.unlink()


def _written(part: Path, alone: bool) -> bool:
    """Whether a part may still be written: by a process that lives, or by a thread of this one."""
    found = _LEFTOVER.fullmatch(part.name)
    assert found is not None
    process, host = int(found[2]), found[3]
    if process == os.getpid() and host in (None, _HOST):
        return str(part) in _LIVE
    if alone and host is not None:
        return False  # who writes to that place holds its lock, and we do
    if host not in (None, _HOST):
        with suppress(OSError):
            return time.time() - part.stat().st_mtime < _LONGEST
        return False
    if os.name == "nt":  # there is no harmless signal to ask whether a process lives
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True
