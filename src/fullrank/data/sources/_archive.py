"""Members of a zip or tar archive as files, without trusting the paths inside it.

A member is chosen by its base name and written under that base name: no path from the archive
reaches the file system, which is stricter than the filters of tarfile and the same for both
formats. An archive whose wanted member claims an absolute path or `..` is refused, links are passed
over, and what is read and written has bounds.
"""

from __future__ import annotations

import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from io import BufferedIOBase
from pathlib import Path, PurePosixPath
from typing import TypeVar, cast

from fullrank.core.errors import UserError
from fullrank.core.files import not_written, open_whole, require_space
from fullrank.data.sources._parse import damaged_download, require

T = TypeVar("T")
MOST_MEMBERS = 100_000
MOST_BYTES = 1 << 38
"""Unpacked bytes of an archive up to its last wanted member: 256 GiB, far above what any source here publishes."""


def unpacked(folder: Path, names: tuple[str, ...], *archives: str, hint: str) -> dict[str, Path]:
    """The files `names` of a folder, taken out of the first of these archives where one is missing.

    `hint` says how to get the archive.
    """
    if all((folder / name).is_file() for name in names):
        return {name: folder / name for name in names}
    return extract(require(folder, *archives, hint=f"nor {', '.join(names)}; {hint}"), names, folder)


def extract(archive: Path, wanted: tuple[str, ...], into: Path) -> dict[str, Path]:
    """Write the members called `wanted` (base names) to `into`, and return where they are.

    A member that lies there already with the archive's size is kept. Files appear when all of them
    are written and the archive was read to its end, where gzip, bzip2 and xz have their checksums.
    Raises `UserError` for a missing member, a hostile path, a damaged archive, or a folder that
    cannot be written.
    """
    written: dict[str, Path] = {}
    unpacked = 0
    try:
        # files get their final names when the block ends, so none of a damaged archive does
        with _members(archive) as (members, rest), ExitStack() as parts:
            for number, (path, size, stream) in enumerate(_reading(archive, members), 1):
                unpacked += size  # of each member that comes before: a tar is read through, wanted or not
                if number > MOST_MEMBERS or unpacked > MOST_BYTES:
                    raise UserError(
                        f"{archive} is refused: it unpacks to more than {MOST_MEMBERS:,} files or {MOST_BYTES:,} "
                        "bytes; check that it is the publisher's archive",
                        code="archive-too-large",
                    )
                name = PurePosixPath(path.replace("\\", "/")).name
                if name in wanted and name not in written:
                    _refuse_hostile(path, archive)
                    written[name] = _write(stream, into / name, size, archive, parts)
                    if len(written) == len(wanted):
                        break
            for _ in () if rest is None else _blocks(rest, archive):  # on to the end, where the checksums are
                pass
    # RuntimeError: a zip with a password; NotImplementedError, which is one: an unknown
    # compression; OSError: of bz2, or a position before the beginning of the file. Errors of
    # writing are UserErrors by then.
    except (zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, RuntimeError, OSError) as error:
        raise damaged_download(archive, error) from None
    if missing := [name for name in wanted if name not in written]:
        raise UserError(
            f"{archive} holds no {', '.join(missing)}; check that it is the publisher's archive for this variant",
            code="missing-file",
        )
    return written


@contextmanager
def _members(archive: Path) -> Iterator[tuple[Iterator[tuple[str, int, BufferedIOBase]], BufferedIOBase | None]]:
    """Path, size in bytes and content of each regular file of an archive; and the stream of a tar, to be read on.

    A zip has a checksum of each member and needs no reading on.
    """
    with ExitStack() as stack:
        if zipfile.is_zipfile(archive):
            yield _zip_members(stack.enter_context(zipfile.ZipFile(archive))), None
        else:
            opened = stack.enter_context(tarfile.open(archive, "r:*"))
            yield _tar_members(opened), cast(BufferedIOBase, opened.fileobj)


def _zip_members(archive: zipfile.ZipFile) -> Iterator[tuple[str, int, BufferedIOBase]]:
    for info in archive.infolist():
        # The upper half of external_attr is the Unix mode; 0o120000 marks a symbolic link.
        if not info.is_dir() and (info.external_attr >> 16) & 0o170000 != 0o120000:
            with archive.open(info) as stream:
                yield info.filename, info.file_size, cast(BufferedIOBase, stream)


def _tar_members(archive: tarfile.TarFile) -> Iterator[tuple[str, int, BufferedIOBase]]:
    for member in archive:
        if member.isreg():
            stream = archive.extractfile(member)
            assert stream is not None  # isreg() says that there is content
            yield member.name, member.size, cast(BufferedIOBase, stream)


def _refuse_hostile(path: str, archive: Path) -> None:
    parts = PurePosixPath(path.replace("\\", "/"))
    if parts.is_absolute() or ".." in parts.parts or parts.parts[0].endswith(":"):
        raise UserError(
            f"{archive} is refused: its member {path!r} points outside of the archive; download it again",
            code="path-outside-folder",
        )


def _write(stream: BufferedIOBase, target: Path, size: int, archive: Path, parts: ExitStack) -> Path:
    """Write a member to a temporary file, which becomes `target` when `parts` is closed."""
    if target.is_file() and target.stat().st_size == size:
        return target
    with not_written(target):
        require_space(target.parent, size, f"unpacking {target.name}")
        out = parts.enter_context(open_whole(target))
        for block in _blocks(stream, archive):
            out.write(block)
    return target


def _blocks(stream: BufferedIOBase, archive: Path) -> Iterator[bytes]:
    """The rest of a stream, in blocks."""
    return _reading(archive, iter(lambda: stream.read(1 << 20), b""))


def _reading(archive: Path, values: Iterator[T]) -> Iterator[T]:
    """Pass values on; an error of reading them is blamed on the archive, not on
    the disk that is written to."""
    try:
        yield from values
    except OSError as error:
        raise damaged_download(archive, error) from None
