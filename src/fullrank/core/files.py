"""Write files and folders that are whole or absent: the one way in which anything is written.

What is being written lies in a hidden folder ``.NAME.PID-N-HOST.part`` beside its place. It is
flushed to disk and then takes the place in one step, so a killed process or a full disk leaves what
was there before. What a killed process left beside a place is removed by the next one that writes
there, and never counts as one of `foreign_files`.

A folder has one writer at a time (`core.locks`). Of a file the last writer wins, whole.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from pydantic_core import to_jsonable_python

from fullrank.core.errors import UserError, reason_line
from fullrank.core.locks import folder_lock, forget_part, is_leftover, part_name, remove_leftovers
from fullrank.core.readers import JsonObject as JsonObject

if TYPE_CHECKING:
    import numpy as np

_AT_CWD, _EXCHANGE = -100, 2  # Linux: AT_FDCWD and RENAME_EXCHANGE of renameat2(2)


class NotWritten(UserError):
    """A file or folder could not be written (code `not-written`)."""

    def __init__(self, path: Path, reason: str, *, folder: bool = False):
        sentence = f"{str(path)!r} could not be written ({reason})" if folder else f"cannot write {path}: {reason}"
        super().__init__(f"{sentence}; what was there before is unchanged", code="not-written")
        self.reason = reason


@contextmanager
def not_written(path: Path, *, folder: bool = False) -> Iterator[None]:
    """Raise `NotWritten` where the system refuses to write in the block; the
    `BrokenPipeError` of a file passes."""
    try:
        yield
    except OSError as error:
        if isinstance(error, BrokenPipeError) and not folder:  # the reader of a pipe has gone (`| head`)
            raise
        raise NotWritten(path, reason_line(error), folder=folder) from error


@contextmanager
def whole_file(path: str | Path, *, private: bool = False) -> Iterator[Path]:
    """A path to write to, which becomes the file `path` when the block ends without an error.

    Its folder is made where it is missing. A link is followed; a device or pipe is written to
    directly. The file has the mode that the umask asks for, whatever wrote it; `private`: the owner
    alone may read it, at any time. Raises `UserError` where the disk refuses.
    """
    pending = Pending(Path(path), private)
    try:
        with not_written(pending.path):
            yield pending.begin()
            pending.commit()
    finally:
        pending.abandon()


@contextmanager
def open_whole(path: str | Path, *, private: bool = False) -> Iterator[IO[bytes]]:
    """Open a file for bytes, which becomes `path` when the block ends without an error."""
    with whole_file(path, private=private) as part, open(part, "wb") as file:
        yield file


def write_text(path: str | Path, text: str, *, private: bool = False) -> None:
    """Write a file of UTF-8 text; `private`: the owner alone may read it."""
    with open_whole(path, private=private) as file:
        file.write(text.encode())


def jsonable(result: Any) -> Any:
    """A result for JSON: NaN and infinity are null, numpy scalars numbers, paths text."""
    return to_jsonable_python(
        result, inf_nan_mode="null", fallback=lambda other: other.item() if hasattr(other, "item") else str(other)
    )


def write_json(
    path: str | Path,
    tree: Any,
    *,
    indent: int | None = 2,
    ensure_ascii: bool = True,
    sort_keys: bool = False,
    private: bool = False,
) -> None:
    """Write plain data as JSON and a newline. NaN is written as Python reads it; see `jsonable`."""
    text = json.dumps(tree, indent=indent, ensure_ascii=ensure_ascii, sort_keys=sort_keys) + "\n"
    write_text(path, text, private=private)


def write_jsonl(path: str | Path, rows: Iterable[Any]) -> None:
    """Write one JSON value a line."""
    write_text(path, "".join(json.dumps(row) + "\n" for row in rows))


def write_array(path: str | Path, array: np.ndarray) -> None:
    """Write a .npy file."""
    with open_whole(path) as file:
        put_array(file, array)


def put_array(file: IO[bytes], array: np.ndarray) -> None:
    """Write an array to a file as .npy files have it.

    `np.save` writes through a stream of C and does not look whether its end reached the disk: on a
    full one the file would be cut short without an error.
    """
    import numpy as np

    array = np.asarray(array, order="C")
    np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(array))
    file.write(array.reshape(-1).view(np.uint8).data)


def copy_file(source: Path, path: Path) -> None:
    """Write a copy of a file."""
    with whole_file(path) as part:
        shutil.copyfile(source, part)


def append_line(path: Path, line: str) -> None:
    """Add a line to a log. A killed process may leave half a line: readers stop there."""
    with not_written(path), open(path, "a", encoding="utf-8") as file:
        file.write(line + "\n")


def require_space(folder: Path, needed: int, what: str) -> None:
    """Raise `UserError` where the disk of a folder has not so many bytes left."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise UserError(f"{what} needs {needed:,} bytes but {folder} has {free:,} free; make room", code="disk-full")


def make_folder(folder: Path, what: str = "folder") -> None:
    """Make a folder and those around it. Raises `UserError` where the disk refuses."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"cannot make the {what} {str(folder)!r}: {reason_line(error)}; name one that can be written",
            code="not-written",
        ) from None


class Pending:
    """A file being written: `begin`, `commit`, and `abandon` in any case. All raise `OSError`."""

    def __init__(self, path: Path, private: bool = False):
        self.private = private
        direct = path.exists() and not path.is_file() and not path.is_dir()  # /dev/stdout is no file to replace
        self.path = path if direct else Path(os.path.realpath(path))
        self.folder: Path | None = None if direct else part_name(self.path)

    def begin(self) -> Path:
        """The path to write to."""
        if self.folder is None:
            return self.path
        remove_leftovers(self.path)
        # a folder, since some writers make temporary files of their own beside what they write
        self.folder.mkdir(0o700 if self.private else 0o777, parents=True)
        return self.folder / "whole"  # a name that no reader of the folder around it takes for data

    def commit(self) -> None:
        if self.folder is None:
            return
        written = self.folder / "whole"
        mode = self.folder.stat().st_mode & 0o666  # the folder was made under the umask
        if stat.S_IMODE(written.stat().st_mode) != mode:
            written.chmod(mode)
        flush(written)
        os.replace(written, self.path)
        with suppress(OSError):  # the file is in its place; some file systems cannot flush a folder
            flush(self.path.parent)

    def abandon(self) -> None:
        if self.folder is not None:
            forget_part(self.folder)


class PendingFolder:
    """A folder being written: `begin`, `commit`, and `abandon` in any case. All raise `OSError`.

    The caller holds its lock. `keeps` says of a name in the older folder whether it
    goes over into the new one.
    """

    def __init__(self, path: str | Path, keeps: Callable[[str], bool] = lambda name: False):
        self.path, self.keeps = Path(os.path.realpath(path)), keeps  # `resolve` raises for a loop of links
        self.folder = part_name(self.path)

    def begin(self) -> Path:
        """An empty folder to write to."""
        remove_leftovers(self.path)
        self.folder.mkdir(parents=True)
        return self.folder

    def commit(self) -> None:
        """Take the place, in exchange for an older folder."""
        _carry(self.path, self.folder, self.keeps)
        old = _swap(self.folder, self.path)
        if old is not None:
            _carry(old, self.path, self.keeps)  # what has come in the meantime
            forget_part(old)

    def abandon(self) -> None:
        forget_part(self.folder)


@contextmanager
def whole_folder(out: str | Path, what: str = "another command") -> Iterator[Path]:
    """An empty folder to write into; it becomes `out` when the block ends without an error.

    An older folder is exchanged for it in one step. Holds the lock of `out`; `what` names the
    holder. Raises `UserError` where another process writes there, the disk is full, or the place
    cannot be written.
    """
    target = Path(os.path.realpath(out))
    with folder_lock(target, what):
        pending = PendingFolder(target)
        try:
            with not_written(target, folder=True):
                yield pending.begin()
                pending.commit()
        except NotWritten as error:  # perhaps of a file in the folder: what is named is the folder that was asked for
            raise NotWritten(target, error.reason, folder=True) from error
        finally:
            pending.abandon()


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """An empty folder for temporary files, gone when the block ends; that of a killed process goes with the next one.

    Raises `UserError` where the disk refuses.
    """
    base = Path(tempfile.gettempdir()) / "fullrank"
    scratch = part_name(base)
    try:
        with not_written(scratch, folder=True):
            remove_leftovers(base)
            scratch.mkdir(mode=0o700)
        yield scratch
    finally:
        forget_part(scratch)


def without_dots(out: str | Path) -> Path:
    """A path to write to; `..` is resolved, so that `a/missing/../z` is `a/z`."""
    path = Path(out)
    return Path(os.path.realpath(path)) if ".." in path.parts else path


def require_replaceable(
    out: Path, what: str, is_one: Callable[[Path], bool], is_own: Callable[[str], bool], *, overwrite: bool = True
) -> None:
    """Raise `UserError` unless `what` may be written at `out`: nothing there, an empty folder, or
    one of its kind, which is replaced where `overwrite` is true.

    `is_own` says of a file's name whether such a folder may hold it: nothing else is
    deleted by replacing it.
    """
    if not out.exists():
        return
    if not out.is_dir():
        raise UserError(f"{str(out)!r} is a file; name a folder for the {what}", code="not-a-folder")
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
    if not overwrite:
        raise UserError(
            f"{str(out)!r} holds a {what} already: replace it with overwrite=True, or name another folder",
            code="already-there",
        )


def foreign_files(folder: Path, is_own: Callable[[str], bool] = lambda name: False) -> list[str]:
    """The names in a folder that are not its own, sorted; none where the folder does not exist.

    What killed writers left, and the files of locks, are nobody's and do not count.
    """
    if not folder.exists():
        return []
    return sorted(path.name for path in folder.iterdir() if not is_own(path.name) and not is_leftover(path.name))


def take_place(folder: Path, out: Path) -> None:
    """Move a finished folder to `out`, and remove an older one there. Raises `OSError`."""
    old = _swap(folder, out)
    if old is not None:
        shutil.rmtree(old)


def _swap(new: Path, out: Path) -> Path | None:
    """Flush `new` and move it to `out`. Returns where the older folder is now, or None."""
    for file in (*new.iterdir(), new):
        flush(file)
    aside: Path | None = None
    if not out.exists():
        new.rename(out)
    elif exchange(new, out):
        aside = new
    else:
        # Without an atomic exchange the old folder steps aside for the time of two renames.
        aside = new.with_suffix(".previous")
        out.rename(aside)
        try:
            new.rename(out)
        except OSError:
            aside.rename(out)
            raise
    with suppress(OSError):
        flush(out.parent)
    return aside


def _carry(old: Path, new: Path, keeps: Callable[[str], bool]) -> None:
    """Copy what is kept of an older folder, as hard links where the disk has them."""
    for entry in sorted(old.iterdir()) if old.is_dir() else ():
        copy = new / entry.name
        if not keeps(entry.name) or is_leftover(entry.name) or copy.exists():
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.copytree(entry, copy, symlinks=True, copy_function=_link)
        else:
            _link(entry, copy)


def _link(source: str | Path, copy: str | Path) -> None:
    try:
        os.link(source, copy, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, copy, follow_symlinks=False)


def exchange(first: Path, second: Path) -> bool:
    """Let two files or folders change places in one step; returns whether the system can."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):  # Windows does not take None for the program itself
        return False
    return rename(_AT_CWD, os.fsencode(first), _AT_CWD, os.fsencode(second), _EXCHANGE) == 0


def flush(path: Path) -> None:
    """Have a file, or a folder's list of names, written to the disk. Raises `OSError`."""
    if os.name == "nt":  # a folder cannot be opened there
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
