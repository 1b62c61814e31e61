"""Archives and downloads that are damaged or hostile: the members that were asked for, or one sentence."""

from __future__ import annotations

import gzip
import io
import json
import random
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from fullrank.core.errors import UserError
from fullrank.data.sources._archive import extract
from fullrank.data.sources._parse import delimited, records
from refusals import refused

WANTED = ("a.csv", "b.csv")
BODY = random.Random(0).randbytes(3000) + b"abc" * 3000


def zipped(method: int) -> bytes:
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", method) as archive:
        archive.writestr("x/a.csv", BODY)
        archive.writestr("x/b.csv", b"other")
    return whole.getvalue()


def tarred(mode: str) -> bytes:
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode=mode) as archive:  # type: ignore[call-overload]
        for name, content in (("x/a.csv", BODY), ("x/b.csv", b"other")):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return whole.getvalue()


FORMATS: dict[str, Callable[[], bytes]] = {
    "zip stored": lambda: zipped(zipfile.ZIP_STORED),
    "zip deflate": lambda: zipped(zipfile.ZIP_DEFLATED),
    "zip bzip2": lambda: zipped(zipfile.ZIP_BZIP2),
    "zip lzma": lambda: zipped(zipfile.ZIP_LZMA),
    "tar": lambda: tarred("w"),
    "tar.gz": lambda: tarred("w:gz"),
    "tar.bz2": lambda: tarred("w:bz2"),
    "tar.xz": lambda: tarred("w:xz"),
}


def damaged(whole: bytes, draw: random.Random) -> bytes:
    """A cut, some flipped bits, a run of noise, or one changed byte among the last, where a zip has its directory."""
    data, kind = bytearray(whole), draw.randrange(4)
    if kind == 0:
        return bytes(data[: draw.randrange(len(data))])
    if kind == 1:
        for _ in range(3):
            data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    elif kind == 2:
        place = draw.randrange(len(data) - 20)
        data[place : place + 20] = draw.randbytes(20)
    else:
        data[len(data) - draw.randrange(1, min(300, len(data)))] ^= draw.randrange(1, 256)
    return bytes(data)


@pytest.mark.parametrize("form", FORMATS)
def test_a_damaged_archive_is_refused_or_read_right(form: str, tmp_path: Path) -> None:
    whole, draw, refusals = FORMATS[form](), random.Random(form), 0
    for number in range(60):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "archive").write_bytes(damaged(whole, draw))
        try:
            found = extract(folder / "archive", WANTED, folder)
        except UserError as error:
            refusals += 1
            assert error.code in ("wrong-download", "missing-file") and str(folder / "archive") in str(error)
        else:
            if form != "tar":  # which has no checksum of what it holds
                assert found["a.csv"].read_bytes() == BODY and found["b.csv"].read_bytes() == b"other"
        assert {path.name for path in folder.iterdir()} <= {"archive", *WANTED}
    assert refusals > 10


def flagged(place: int, value: int, local: int) -> bytes:
    """A zip whose directory and first member have another value at a place of their headers."""
    data = bytearray(zipped(zipfile.ZIP_STORED))
    data[data.find(b"PK\1\2") + place] = value
    data[local] = value
    return bytes(data)


def special(kind: bytes) -> bytes:
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as archive:
        entry = tarfile.TarInfo("a.csv")
        entry.type, entry.linkname = kind, "/etc/passwd"
        archive.addfile(entry)
    return whole.getvalue()


HOSTILE: dict[str, tuple[str, Callable[[], bytes]]] = {
    "with a password": ("wrong-download", lambda: flagged(8, 1, 6)),
    "of an unknown compression": ("wrong-download", lambda: flagged(10, 99, 8)),
    "with NUL in a name": ("missing-file", lambda: zipped(zipfile.ZIP_STORED).replace(b"a.csv", b"a\0csv")),
    "empty": ("wrong-download", lambda: b""),
    "a symbolic link": ("missing-file", lambda: special(tarfile.SYMTYPE)),
    "a hard link": ("missing-file", lambda: special(tarfile.LNKTYPE)),
    "a pipe": ("missing-file", lambda: special(tarfile.FIFOTYPE)),
    "a device": ("missing-file", lambda: special(tarfile.CHRTYPE)),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_an_archive_of_something_else_is_refused(case: str, tmp_path: Path) -> None:
    code, make = HOSTILE[case]
    (tmp_path / "archive").write_bytes(make())
    with refused(code, tmp_path / "archive"):
        extract(tmp_path / "archive", WANTED, tmp_path)
    assert not (tmp_path / "a.csv").exists()


@pytest.mark.parametrize("cut", [0.0, 0.3, 0.9, 0.999])
@pytest.mark.parametrize("flip", [False, True])
def test_a_damaged_gzip_is_refused(cut: float, flip: bool, tmp_path: Path) -> None:
    draw = random.Random(1)
    rows = [f'{{"a": {draw.random()}}}' for _ in range(5000)]
    data = bytearray(gzip.compress("\n".join(rows).encode()))
    if flip:
        data[int(len(data) * cut)] ^= 0xFF
    else:
        data = data[: max(3, int(len(data) * cut))]
    path = tmp_path / "a.json.gz"
    path.write_bytes(bytes(data))
    with refused("wrong-download", path):
        records(path, {"a": pl.Float64}, lambda record: (record["a"],))


@pytest.mark.parametrize("cut", [0.01, 0.3, 0.9, 0.999])
def test_a_cut_table_is_refused(cut: float, tmp_path: Path) -> None:
    rows = "a,b\n" + "".join(f"{number},{json.dumps('x' * (number % 7))}\n" for number in range(20_000))
    whole = gzip.compress(rows.encode())
    path = tmp_path / "a.csv.gz"
    path.write_bytes(whole[: max(3, int(len(whole) * cut))])
    with refused("wrong-download", path):
        delimited(path, {"a": pl.Int64, "b": pl.String})
