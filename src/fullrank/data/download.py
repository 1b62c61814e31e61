"""Download the files of a source: resumable, checked, and never half a file under the final name.

A file grows as `<name>.part` beside `<name>.part.json` (url, validator, total), so that an interrupted download goes
on where it stopped, in this process or a later one. Only a complete and checked file gets its final name, by rename.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from fullrank.core.errors import UserError
from fullrank.core.files import write_json
from fullrank.core.progress import Reporter
from fullrank.core.readers import read_json
from fullrank.core.registry import find
from fullrank.data.sources import EventSource, ImpressionSource, RemoteFile
from fullrank.data.transfer import Lost, Transfer, fetch, patiently


def download(
    source: EventSource | ImpressionSource | str, folder: str | Path, *, progress: bool = True, attempts: int = 5
) -> list[Path]:
    """Fetch what `source` needs into `folder` and return the paths of its files; what is complete is kept.

    `source` is a source's spec, or its kind for the defaults. `attempts` is how often in a row a transfer may fail
    without a byte of progress before it is given up; it waits 1, 2, 4, ... up to 30 seconds in between. Raises
    `UserError`: for files that have to be fetched by hand (the others are fetched first), where the server does not
    answer or has no such file, where the disk is full, and where size or checksum are wrong.
    """
    if isinstance(source, str):
        try:
            source = find(source, "data.sources")()  # type: ignore[assignment]  # every spec of that room is a Source
        except ValueError as error:
            raise UserError(str(error)) from None
    assert not isinstance(source, str)
    if attempts < 1:
        raise UserError(f"attempts={attempts} is not allowed: give at least 1")
    target = Path(folder)
    files = source.files()
    for file in files:
        _refuse_path(file.name)
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the folder {target}: {error.strerror}") from None
    by_hand = [file for file in files if file.manual is not None]
    with Reporter(progress, sizes=True) as shown:
        for file in files:
            if file.manual is None and not _is_there(file, target):
                _one(file, target / file.name, shown, attempts)
    _refuse_missing([file for file in by_hand if not _is_there(file, target)], target)
    return list(dict.fromkeys(path for file in files for path in _present(file, target)))


def _one(file: RemoteFile, target: Path, shown: Reporter, attempts: int) -> None:
    """Fetch one file to its final name."""
    part, note = _beside(target, ".part"), _beside(target, ".part.json")
    transfer = _started(file, part, note)

    def once() -> None:
        fetch(transfer, on_bytes=lambda done, total: shown.at(file.name, done, total or file.size or 0), save=save)

    def save() -> None:
        if file.size is not None and transfer.total not in (None, file.size):
            raise UserError(
                f"{file.url} has {transfer.total:,} bytes but the published file has {file.size:,}: the publisher may "
                f"have replaced it; if you trust the new one, fetch it by hand to {target}"
            )
        _room(target, (transfer.total or file.size or 0) - transfer.done)
        state = {"url": file.url, "validator": transfer.validator, "total": transfer.total}
        write_json(note, state, indent=None)

    try:
        patiently(once, lambda: transfer.done, attempts, on_wait=shown.say)
    except Lost as error:
        kept = f"; {transfer.done:,} bytes are kept: run the command again to go on from there" if transfer.done else ""
        raise UserError(f"cannot download {file.url}: {error}{kept}") from None
    except OSError as error:
        raise UserError(f"cannot write {part}: {error.strerror or error}; make room and run it again") from None
    try:
        _check(part, file)
    except UserError:
        part.unlink(missing_ok=True)
        note.unlink(missing_ok=True)
        raise
    os.replace(part, target)
    note.unlink(missing_ok=True)


def _started(file: RemoteFile, part: Path, note: Path) -> Transfer:
    """The transfer where an earlier process left it; from the start where that cannot be trusted."""
    transfer = Transfer(file.url, part)
    try:
        state = read_json(note)
        # A part without a validator could mix two versions; a checksum would find that out at the end.
        trusted = state["url"] == file.url and (state["validator"] or file.md5 or file.sha256)
        if trusted and part.is_file() and isinstance(state["total"], (int, type(None))):
            transfer.validator, transfer.total, transfer.done = state["validator"], state["total"], part.stat().st_size
            return transfer
    except (UserError, OSError, KeyError, TypeError):
        pass
    part.unlink(missing_ok=True)
    return transfer


def _present(file: RemoteFile, folder: Path) -> list[Path]:
    return [folder / name for name in (file.name, *file.alternatives) if (folder / name).is_file()][:1]


def _is_there(file: RemoteFile, folder: Path) -> bool:
    """Whether the file, or the same content under another name, is complete. A wrong one is fetched again."""
    for path in _present(file, folder):
        if path.name != file.name:
            return True
        try:
            _check(path, file)
        except UserError:
            return False
        return True
    return False


def _check(path: Path, file: RemoteFile) -> None:
    """Raise `UserError` where size or checksum differ from what was published."""
    size = path.stat().st_size
    if file.size is not None and size != file.size:
        raise UserError(f"{file.url} gave {size:,} bytes, not {file.size:,}; nothing was kept, download it again")
    for name, expected in (("md5", file.md5), ("sha256", file.sha256)):
        if expected is not None:
            with open(path, "rb") as stream:
                found = hashlib.file_digest(stream, lambda kind=name: hashlib.new(kind, usedforsecurity=False))  # type: ignore[misc]
            if found.hexdigest() != expected.lower():
                raise UserError(
                    f"{file.url} has the {name} {found.hexdigest()}, not {expected}: it was damaged on the way or "
                    "replaced by its publisher; nothing was kept, download it again"
                )


def _room(target: Path, needed: int) -> None:
    free = shutil.disk_usage(target.parent).free
    if needed > free:
        raise UserError(f"{target.name} needs {needed:,} more bytes but {target.parent} has {free:,} free; make room")


def _refuse_missing(files: Sequence[RemoteFile], folder: Path) -> None:
    if files:
        names = ", ".join(file.name for file in files)
        raise UserError(f"{names} cannot be downloaded to {folder} from {files[0].url}: {files[0].manual}")


def _refuse_path(name: str) -> None:
    if name in ("", ".", "..") or PurePosixPath(name.replace("\\", "/")).name != name:
        raise UserError(f"the source names a file {name!r} outside of the download folder; names hold no folders")


def _beside(target: Path, suffix: str) -> Path:
    return target.with_name(target.name + suffix)
