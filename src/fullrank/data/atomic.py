"""A folder that appears complete or not at all, and takes the place of an older one in one step.

A killed process or a full disk leaves what was there before untouched, and at most a hidden ``.name.PID.building``
folder beside it, which the next write to the same place removes.
"""

from __future__ import annotations

import ctypes
import glob
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fullrank.errors import UserError

_AT_CWD, _EXCHANGE = -100, 2  # Linux: AT_FDCWD and RENAME_EXCHANGE of renameat2(2)


@contextmanager
def replacing(out: Path) -> Iterator[Path]:
    """An empty folder to write into; it becomes `out` when the block ends without an error.

    Files are flushed to disk first. Raises `UserError` where the disk is full or the place cannot be written.
    """
    out = out.resolve()
    building = out.parent / f".{out.name}.{os.getpid()}.building"
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        _sweep(out)
        building.mkdir()
        yield building
        for file in building.iterdir():
            _flush(file)
        _swap(building, out)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(f"{str(out)!r} could not be written ({reason}); what was there before is unchanged") from None
    finally:
        shutil.rmtree(building, ignore_errors=True)


def replaceable(out: Path, what: str, is_one: Callable[[Path], bool], is_own: Callable[[str], bool]) -> None:
    """Raise `UserError` unless `what` may be written at `out`: nothing there, an empty folder, or one of its kind.

    `is_own` says of a file's name whether such a folder may hold it: nothing else is deleted by replacing it.
    """
    if not out.exists():
        return
    if not out.is_dir():
        raise UserError(f"{str(out)!r} is a file; name a folder for the store")
    names = {path.name for path in out.iterdir()}
    if not names:
        return
    if not is_one(out):
        raise UserError(f"{str(out)!r} holds other files and is no {what}; name a new or an empty folder")
    foreign = sorted(name for name in names if not is_own(name))
    if foreign:
        shown = ", ".join(foreign[:5])
        raise UserError(f"the {what} {str(out)!r} also holds files that replacing it would delete ({shown}); move them")


def _swap(new: Path, out: Path) -> None:
    if not out.exists():
        new.rename(out)
    elif not _exchange(new, out):
        # Without an atomic exchange the old folder steps aside for the time of two renames.
        aside = new.with_suffix(".previous")
        out.rename(aside)
        try:
            new.rename(out)
        except OSError:
            aside.rename(out)
            raise
        shutil.rmtree(aside, ignore_errors=True)
    _flush(out.parent)


def _exchange(one: Path, other: Path) -> bool:
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):
        return False
    return rename(_AT_CWD, os.fsencode(one), _AT_CWD, os.fsencode(other), _EXCHANGE) == 0


def _flush(path: Path) -> None:
    if os.name == "nt":  # a folder cannot be opened there
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sweep(out: Path) -> None:
    """Remove what killed writers to the same place left."""
    if os.name == "nt":  # there is no harmless signal to ask whether a process lives
        return
    for left in out.parent.glob(f".{glob.escape(out.name)}.*.building"):
        owner = left.name.removesuffix(".building").rpartition(".")[2]
        if owner.isdigit() and not _alive(int(owner)):
            shutil.rmtree(left, ignore_errors=True)


def _alive(process: int) -> bool:
    if process == os.getpid():
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
