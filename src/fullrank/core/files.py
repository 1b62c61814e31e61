"""Write files and folders that are whole or absent: the one way in which anything is written.

What is being written lies in a hidden folder ``.NAME.PID-N.part`` beside its place. It is flushed to disk and then
takes the place in one step, so a killed process or a full disk leaves what was there before. What a killed process left
beside a place is removed by the next one that writes there, and never counts as one of `foreign_files`.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import numpy as np
from pydantic_core import to_jsonable_python

from fullrank.core.errors import UserError

_AT_CWD, _EXCHANGE = -100, 2  # Linux: AT_FDCWD and RENAME_EXCHANGE of renameat2(2)
_LEFTOVER = re.compile(r"\..+\.((\d+)(?:-\d+)?)\.(?:part|previous)")
_LIVE: set[str] = set()
"""Parts that this process is writing: its threads share one process id."""
_NUMBERS = itertools.count(1)


class NotWritten(UserError):
    """A file or folder could not be written (code `not-written`)."""

    def __init__(self, path: Path, reason: str, *, folder: bool = False):
        sentence = f"{str(path)!r} could not be written ({reason})" if folder else f"cannot write {path}: {reason}"
        super().__init__(f"{sentence}; what was there before is unchanged", code="not-written")
        self.reason = reason


@contextmanager
def whole_file(path: str | Path) -> Iterator[Path]:
    """A path to write to, which becomes the file `path` when the block ends without an error.

    Its folder is made where it is missing. A link is followed; a device or pipe is written to directly. The file has
    the mode that the umask asks for, whatever wrote it. Raises `UserError` where the disk refuses.
    """
    pending = Pending(Path(path))
    try:
        yield pending.begin()
        pending.commit()
    except BrokenPipeError:  # the reader of a pipe has gone (`| head`): no fault of the disk
        raise
    except OSError as error:
        raise NotWritten(pending.path, reason_of(error)) from error
    finally:
        pending.abandon()


@contextmanager
def open_whole(path: str | Path) -> Iterator[IO[bytes]]:
    """A file open for writing bytes, which becomes the file `path` when the block ends without an error."""
    with whole_file(path) as part, open(part, "wb") as file:
        yield file


def write_text(path: str | Path, text: str) -> None:
    """Write a file of UTF-8 text."""
    with open_whole(path) as file:
        file.write(text.encode())


def jsonable(result: Any) -> Any:
    """A result as what JSON can hold: NaN and infinity are null, scalars of numpy and torch numbers, paths text."""
    return to_jsonable_python(
        result, inf_nan_mode="null", fallback=lambda other: other.item() if hasattr(other, "item") else str(other)
    )


def write_json(
    path: str | Path, tree: Any, *, indent: int | None = 2, ensure_ascii: bool = True, sort_keys: bool = False
) -> None:
    """Write plain data as JSON, with a newline behind it. NaN is written as Python reads it back; see `jsonable`."""
    write_text(path, json.dumps(tree, indent=indent, ensure_ascii=ensure_ascii, sort_keys=sort_keys) + "\n")


def write_jsonl(path: str | Path, rows: Iterable[Any]) -> None:
    """Write one JSON value a line."""
    write_text(path, "".join(json.dumps(row) + "\n" for row in rows))


def write_array(path: str | Path, array: np.ndarray) -> None:
    """Write a .npy file."""
    with open_whole(path) as file:
        np.save(file, array, allow_pickle=False)


def copy_file(source: Path, path: Path) -> None:
    """Write a copy of a file."""
    with whole_file(path) as part:
        shutil.copyfile(source, part)


def append_line(path: Path, line: str) -> None:
    """Add a line to a log. A killed process may leave half of it, so readers stop at a torn line."""
    try:
        with open(path, "a", encoding="utf-8") as file:
            file.write(line + "\n")
    except OSError as error:
        raise UserError(f"cannot write {path}: {reason_of(error)}", code="not-written") from error


class Pending:
    """A file on its way: `begin`, then `commit`, and `abandon` in any case. All three raise `OSError`."""

    def __init__(self, path: Path):
        direct = path.exists() and not path.is_file() and not path.is_dir()  # /dev/stdout is no file to replace
        self.path = path if direct else Path(os.path.realpath(path))
        self.folder: Path | None = None if direct else _part(self.path)

    def begin(self) -> Path:
        """The path to write to."""
        if self.folder is None:
            return self.path
        self.path.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(self.path)
        self.folder.mkdir()  # a folder, since some writers make temporary files of their own beside what they write
        return self.folder / "whole"  # a name that no reader of the folder around it takes for data

    def commit(self) -> None:
        if self.folder is None:
            return
        written = self.folder / "whole"
        mode = self.folder.stat().st_mode & 0o666  # the folder was made under the umask
        if stat.S_IMODE(written.stat().st_mode) != mode:
            written.chmod(mode)
        _flush(written)
        os.replace(written, self.path)
        with suppress(OSError):  # the file is in its place; some file systems cannot flush a folder
            _flush(self.path.parent)

    def abandon(self) -> None:
        if self.folder is not None:
            _forget(self.folder)


@contextmanager
def whole_folder(out: str | Path) -> Iterator[Path]:
    """An empty folder to write into; it becomes `out` when the block ends without an error.

    An older folder is exchanged for it in one step. Raises `UserError` where the disk is full or the place cannot be
    written.
    """
    out = Path(out).resolve()
    building = _part(out)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(out)
        building.mkdir()
        yield building
        for file in building.iterdir():
            _flush(file)
        _swap(building, out)
    except NotWritten as error:  # a file in the folder: what is named is the folder that was asked for
        raise NotWritten(out, error.reason, folder=True) from error
    except OSError as error:
        raise NotWritten(out, reason_of(error), folder=True) from error
    finally:
        _forget(building)


def require_replaceable(out: Path, what: str, is_one: Callable[[Path], bool], is_own: Callable[[str], bool]) -> None:
    """Raise `UserError` unless `what` may be written at `out`: nothing there, an empty folder, or one of its kind.

    `is_own` says of a file's name whether such a folder may hold it: nothing else is deleted by replacing it.
    """
    if not out.exists():
        return
    if not out.is_dir():
        raise UserError(f"{str(out)!r} is a file; name a folder for the store", code="not-a-folder")
    if not foreign_files(out):
        return
    if not is_one(out):
        raise UserError(
            f"{str(out)!r} holds other files and is no {what}; name a new or an empty folder", code="folder-not-empty"
        )
    others = foreign_files(out, is_own)
    if others:
        shown = ", ".join(others[:5])
        raise UserError(
            f"the {what} {str(out)!r} also holds files that replacing it would delete ({shown}); move them",
            code="foreign-files",
        )


def foreign_files(folder: Path, is_own: Callable[[str], bool] = lambda name: False) -> list[str]:
    """Names in a folder that are not its own, in order; none where it does not exist. What killed writers left counts
    as nobody's.
    """
    if not folder.exists():
        return []
    return sorted(path.name for path in folder.iterdir() if not is_own(path.name) and not is_leftover(path.name))


def is_leftover(name: str) -> bool:
    """Whether a name is that of something half written, of this process or a killed one."""
    return _LEFTOVER.fullmatch(name) is not None


def remove_leftovers(path: Path) -> None:
    """Remove what killed writers to this place left beside it."""
    if os.name == "nt":  # there is no harmless signal to ask whether a process lives
        return
    for left in list(path.parent.iterdir()):
        found = _LEFTOVER.fullmatch(left.name)
        if found is None or not left.name.startswith(f".{path.name}.{found[1]}.") or _alive(int(found[2]), left):
            continue
        if left.suffix == ".previous" and not path.exists():
            continue  # killed between two renames: this is the only copy
        if left.is_dir() and not left.is_symlink():
            shutil.rmtree(left, ignore_errors=True)
        else:
            left.unlink(missing_ok=True)


def reason_of(error: Exception) -> str:
    """What an error of the system says, without its number and file."""
    return getattr(error, "strerror", None) or (str(error).splitlines() or [""])[0] or type(error).__name__


def _part(path: Path) -> Path:
    """A name of its own for each writer, also of one process; `_forget` it in the end."""
    part = path.with_name(f".{path.name}.{os.getpid()}-{next(_NUMBERS)}.part")
    _LIVE.add(str(part))
    return part


def _forget(part: Path) -> None:
    shutil.rmtree(part, ignore_errors=True)
    _LIVE.discard(str(part))


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
    with suppress(OSError):
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


def _alive(process: int, part: Path) -> bool:
    """Whether the writer of a part still runs: a process, or a thread of this one."""
    if process == os.getpid():
        return str(part) in _LIVE
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True
