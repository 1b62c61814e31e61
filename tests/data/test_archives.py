"""Archives and downloads that are damaged or hostile: the members that were asked for, or one sentence."""

import gzip
import io
import json
import random
import tarfile
import zipfile
from pathlib import Path

import polars as pl
import pytest

from fullrank.core.errors import UserError
from fullrank.data.sources import _archive
from fullrank.data.sources._archive import extract
from fullrank.data.sources._parse import delimited, records
from refusals import refused

BODY = random.Random(0).randbytes(3000) + b"abc" * 3000


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


def packed(form: str, members: dict) -> bytes:
    """A zip (`zip`, or `zip` and a compression of zipfile) or a tar (`tar`, `tar.gz`, ...) of these members."""
    whole = io.BytesIO()
    if form.startswith("zip"):
        method = getattr(zipfile, f"ZIP_{form[4:].upper() or 'DEFLATED'}")
        with zipfile.ZipFile(whole, "w", method) as archive:
            for name, content in members.items():
                archive.writestr(name, content)
    else:
        with tarfile.open(fileobj=whole, mode=f"w:{form[4:]}") as tar:
            for name, content in members.items():
                entry = tarfile.TarInfo(name)
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))
    return whole.getvalue()


CONTENT = {"a.csv": BODY, "b.csv": b"other"}


def whole(form: str) -> bytes:
    return packed(form, {f"x/{name}": content for name, content in CONTENT.items()})


@pytest.mark.parametrize(
    "form", ["zip stored", "zip deflated", "zip bzip2", "zip lzma", "tar", "tar.gz", "tar.bz2", "tar.xz"]
)
def test_a_damaged_archive_is_refused_or_read_right(form: str, tmp_path: Path) -> None:
    draw, refusals = random.Random(form), 0
    for number in range(60):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "archive").write_bytes(damaged(whole(form), draw))
        try:
            extract(folder / "archive", tuple(CONTENT), folder)
        except UserError as error:
            refusals += 1
            assert error.code in ("wrong-download", "missing-file") and str(folder / "archive") in str(error)
        else:
            assert all((folder / name).exists() for name in CONTENT)
        for path in folder.iterdir():
            assert path.name == "archive" or path.name in CONTENT
            if form != "tar" and path.name != "archive":  # a tar has no checksum of what it holds
                assert path.read_bytes() == CONTENT[path.name], "no part of a member is left"
    assert refusals > 10


def flagged(place: int, value: int, local: int) -> bytes:
    """A zip whose directory and first member have another value at a place of their headers."""
    data = bytearray(whole("zip stored"))
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


HOSTILE = {
    "with a password": ("wrong-download", lambda: flagged(8, 1, 6)),
    "of an unknown compression": ("wrong-download", lambda: flagged(10, 99, 8)),
    "with NUL in a name": ("missing-file", lambda: whole("zip stored").replace(b"a.csv", b"a\0csv")),
    "empty": ("wrong-download", lambda: b""),
    "a symbolic link": ("missing-file", lambda: special(tarfile.SYMTYPE)),
    "a hard link": ("missing-file", lambda: special(tarfile.LNKTYPE)),
    "a pipe": ("missing-file", lambda: special(tarfile.FIFOTYPE)),
    "a device": ("missing-file", lambda: special(tarfile.CHRTYPE)),
    "a member that unpacks to more than it says": (
        "wrong-download",
        lambda: packed("zip", {"a.csv": bytes(10**6)}).replace((10**6).to_bytes(4, "little"), b"\xe8\3\0\0"),
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_an_archive_of_something_else_is_refused(case: str, tmp_path: Path) -> None:
    code, make = HOSTILE[case]
    (tmp_path / "archive").write_bytes(make())
    with refused(code, tmp_path / "archive"):
        extract(tmp_path / "archive", tuple(CONTENT), tmp_path)
    assert not (tmp_path / "a.csv").exists()


@pytest.mark.parametrize("path", ["../evil/a.csv", "/etc/a.csv", "..\\a.csv", "C:\\x\\a.csv"])
@pytest.mark.parametrize("form", ["zip", "tar"])
def test_hostile_paths_in_an_archive_are_refused(form: str, path: str, tmp_path: Path) -> None:
    (tmp_path / "archive").write_bytes(packed(form, {path: b"abc"}))
    into = tmp_path / "into"
    into.mkdir()
    with refused("path-outside-folder", repr(path)):
        extract(tmp_path / "archive", ("a.csv",), into)
    assert list(into.iterdir()) == [] and not (tmp_path / "evil").exists()


@pytest.mark.parametrize("form", ["zip", "tar"])
@pytest.mark.parametrize(("bound", "enough"), [("MOST_MEMBERS", 2), ("MOST_BYTES", 100)])
def test_an_archive_has_bounds(
    form: str, bound: str, enough: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What stands before the wanted member counts too: a tar is read through to find it."""
    archive = tmp_path / "archive"
    archive.write_bytes(packed(form, {"other": b"x" * 90, "a.csv": b"y" * 10}))
    monkeypatch.setattr(_archive, bound, enough - 1)
    with refused("archive-too-large", archive):
        extract(archive, ("a.csv",), tmp_path)
    assert list(tmp_path.iterdir()) == [archive]
    monkeypatch.setattr(_archive, bound, enough)
    assert extract(archive, ("a.csv",), tmp_path)["a.csv"].read_bytes() == b"y" * 10


def test_an_unpacked_member_is_kept_and_a_changed_one_replaced(tmp_path: Path) -> None:
    (tmp_path / "archive").write_bytes(packed("zip", {"x/a.csv": b"12345"}))
    path = tmp_path / "a.csv"
    for before, after in ((b"54321", b"54321"), (b"no", b"12345")):
        path.write_bytes(before)
        assert extract(tmp_path / "archive", ("a.csv",), tmp_path) == {"a.csv": path} and path.read_bytes() == after


@pytest.mark.parametrize("cut", [0.0, 0.01, 0.3, 0.9, 0.999])
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
