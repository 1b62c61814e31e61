"""Files and folders are whole or absent: kills, full disks, modes, and what killed writers left."""

import datetime
import errno
import json
import os
import resource
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from folders import full, left, limited
from fullrank.core import files
from fullrank.core.errors import UserError
from fullrank.core.files import (
    append_line,
    copy_file,
    foreign_files,
    jsonable,
    open_whole,
    require_replaceable,
    whole_file,
    whole_folder,
    write_array,
    write_json,
    write_jsonl,
    write_text,
)  # fmt: skip
from fullrank.core.locks import is_leftover, remove_tree
from fullrank.core.tables import TableWriter, write_table
from fullrank.core.tensor_files import write_tensors
from refusals import refused

DEAD = 2**22 + 1
"""Above the largest process id of Linux."""
FRAME = pl.DataFrame({"a": [1, 2]})


def grow(path: Path) -> None:
    with TableWriter(path) as table:
        table.add(FRAME)


WRITERS = {
    "x.txt": lambda path: write_text(path, "new"),
    "x.json": lambda path: write_json(path, {"new": 1}),
    "rows.jsonl": lambda path: write_jsonl(path, [{"new": 1}]),
    "x.npy": lambda path: write_array(path, np.ones(3)),
    "x.parquet": lambda path: write_table(FRAME, path),
    "x.csv": lambda path: write_table(FRAME, path),
    "x.jsonl": lambda path: write_table(FRAME, path),
    "g.parquet": grow,
    "g.csv": grow,
    "g.jsonl": grow,
    "x.safetensors": lambda path: write_tensors(path, {"a": torch.ones(3)}),
}
each = pytest.mark.parametrize("name", WRITERS)


@each
@pytest.mark.parametrize("mask", [0o022, 0o027])
def test_the_umask_decides_the_mode(tmp_path: Path, name: str, mask: int) -> None:
    """Newcomer's B2: safetensors writes 0600 whatever the umask; another user could not read the weights."""
    path = tmp_path / "new" / name
    old = os.umask(mask)
    try:
        WRITERS[name](path)
        os.chmod(path, 0o600)
        WRITERS[name](path)
    finally:
        os.umask(old)
    assert path.stat().st_mode & 0o777 == 0o666 & ~mask and left(path.parent) == [name]


@each
@pytest.mark.parametrize("where", ["replace", "fsync"])
def test_a_full_disk_leaves_the_old_file(
    tmp_path: Path, name: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / name).write_text("old")
    monkeypatch.setattr(files.os, where, full)
    with refused("not-written", tmp_path / name, os.strerror(errno.ENOSPC)):
        WRITERS[name](tmp_path / name)
    assert (tmp_path / name).read_text() == "old" and left(tmp_path) == [name]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux's device that is always full")
@pytest.mark.parametrize("name", [name for name in WRITERS if name not in ("g.parquet", "x.safetensors")])
def test_a_full_device(tmp_path: Path, name: str) -> None:
    """A device is written to, not replaced."""
    (tmp_path / name).symlink_to("/dev/full")
    with refused("not-written", os.strerror(errno.ENOSPC)):
        WRITERS[name](tmp_path / name)
    assert (tmp_path / name).is_symlink() and Path("/dev/full").is_char_device()
    with refused("not-written", "/dev/full", os.strerror(errno.ENOSPC)):
        append_line(Path("/dev/full"), "x" * 100)


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write_text(tmp_path / "pipe", "hello")
    assert os.read(reader, 100) == b"hello"
    os.close(reader)


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link.txt").symlink_to(tmp_path / "real" / "x.txt")
    for text in ("one", "two"):
        write_text(tmp_path / "link.txt", text)
        assert (tmp_path / "link.txt").is_symlink() and (tmp_path / "real" / "x.txt").read_text() == text


def test_an_error_of_the_block_is_not_ours(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("old")
    with pytest.raises(ZeroDivisionError), open_whole(tmp_path / "x") as file:
        file.write(b"half")
        1 / 0  # noqa: B018
    with refused("as-it-is"), whole_file(tmp_path / "x") as part:
        part.write_text("half")
        raise UserError("as it is", code="as-it-is")
    assert (tmp_path / "x").read_text() == "old" and left(tmp_path) == ["x"]


def test_sweeping(tmp_path: Path) -> None:
    """What dead processes left for this place goes; what lives, or is for another place, stays."""
    (tmp_path / f".x.json.{DEAD}.part").write_text("a file, as version 0.1 left it")
    (tmp_path / f".x.json.{DEAD + 1}.part").mkdir()
    (tmp_path / f".x.json.{DEAD + 1}.part" / "whole").write_text("half")
    kept = {f".x.json.{os.getppid()}.part", f".y.json.{DEAD}.part", f".x.json.old.{DEAD}.part", ".x.json.part"}
    for name in kept:
        (tmp_path / name).write_text("")
    write_text(tmp_path / "x.json", "{}")
    assert set(left(tmp_path)) == {"x.json", *kept}


def test_a_folder_is_removed_with_one_file_open_at_a_time(tmp_path: Path) -> None:
    """And not what its links lead to."""
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").touch()
    deep = tmp_path / "part" / "a" / "b" / "c"
    deep.mkdir(parents=True)
    (deep / "file").touch()
    (deep / "link").symlink_to(tmp_path / "kept")
    free = os.open(os.devnull, os.O_RDONLY)
    os.close(free)
    with limited(resource.RLIMIT_NOFILE, free + 1):
        remove_tree(tmp_path / "part")
    assert [path.name for path in sorted(tmp_path.rglob("*"))] == ["kept", "file"]


def test_the_only_copy_is_not_swept(tmp_path: Path) -> None:
    """A process killed between two renames leaves the old folder aside, and no folder in its place."""
    aside = tmp_path / f".store.{DEAD}.previous"
    aside.mkdir()
    with whole_folder(tmp_path / "store") as folder:
        assert aside.is_dir()
        (folder / "x").write_text("")
    assert aside.is_dir()
    with whole_folder(tmp_path / "store") as folder:
        (folder / "x").write_text("")
    assert left(tmp_path) == ["store"]


def test_litter_is_nobodys_file(tmp_path: Path) -> None:
    litter = [".spec.json.123.part", ".out.parquet.9.part", ".store.7.previous", f".manifest.json.{DEAD}.part"]
    mine = ["spec.json", ".spec.json.part", "x.1.part", ".git", "data.bin.part"]
    assert all(map(is_leftover, litter)) and not any(map(is_leftover, mine))
    for name in litter:
        (tmp_path / name).write_text("{")
    require_replaceable(tmp_path, "store", lambda folder: False, lambda name: False)
    (tmp_path / "thesis.tex").write_text("x")
    assert foreign_files(tmp_path, lambda name: False) == ["thesis.tex"]
    for is_store, code in ((False, "folder-not-empty"), (True, "foreign-files")):
        with refused(code, *["thesis.tex"] * is_store):
            require_replaceable(tmp_path, "store", lambda folder, known=is_store: known, lambda name: False)


@pytest.mark.parametrize(("module", "step"), [(files.os, "replace"), (files, "_swap")])
def test_a_folder_that_cannot_be_finished_leaves_the_old_one(
    tmp_path: Path, module: Any, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names itself, also where a file in it fails; the old one is what a kill would leave, too."""
    with whole_folder(tmp_path / "out") as folder:
        (folder / "x").write_text("old")
    monkeypatch.setattr(module, step, full)
    error = os.strerror(errno.ENOSPC)
    with refused("not-written", f"'{tmp_path / 'out'}'", error), whole_folder(tmp_path / "out") as folder:
        write_text(folder / "x", "new")
    assert (tmp_path / "out" / "x").read_text() == "old" and left(tmp_path) == ["out"]


def test_what_is_written(tmp_path: Path) -> None:
    write_json(tmp_path / "x.json", {"b": "ü", "a": [1]}, indent=1, ensure_ascii=False, sort_keys=True)
    assert (tmp_path / "x.json").read_text() == '{\n "a": [\n  1\n ],\n "b": "ü"\n}\n'
    write_json(tmp_path / "x.json", {"b": 1}, indent=None)
    assert (tmp_path / "x.json").read_text() == '{"b": 1}\n'
    write_jsonl(tmp_path / "x.jsonl", ({"n": n} for n in range(2)))
    append_line(tmp_path / "x.jsonl", json.dumps({"n": 2}))
    assert (tmp_path / "x.jsonl").read_text() == '{"n": 0}\n{"n": 1}\n{"n": 2}\n'
    copy_file(tmp_path / "x.jsonl", tmp_path / "y.jsonl")
    assert (tmp_path / "y.jsonl").read_bytes() == (tmp_path / "x.jsonl").read_bytes()
    assert files.without_dots("runs/x") == Path("runs/x"), "a plain path is told as it was given"


@pytest.mark.parametrize("name", ["a[1]*?.parquet", "table.csv", "table.jsonl"])
def test_a_table_of_frames(tmp_path: Path, name: str) -> None:
    read = {
        ".parquet": lambda path: pl.read_parquet(path, glob=False),
        ".csv": lambda path: pl.read_csv(path, glob=False),
    }
    with TableWriter(tmp_path / name) as table:
        for start in range(0, 30, 10):
            table.add(pl.DataFrame({"a": range(start, start + 10)}))
    found = read.get(Path(name).suffix, pl.read_ndjson)(tmp_path / name)
    assert found["a"].to_list() == list(range(30)) and table.rows == 30 and left(tmp_path) == [name]


def test_a_table_that_cannot_begin_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Path.mkdir

    def mkdir(self: Path, *given: object, **named: object) -> None:
        full() if self.name == "pieces" else real(self, *given, **named)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    with refused("not-written", tmp_path / "x.parquet", os.strerror(errno.ENOSPC)), TableWriter(tmp_path / "x.parquet"):
        pass
    assert left(tmp_path) == []


def test_tables_that_cannot_be(tmp_path: Path) -> None:
    with refused("unknown-suffix", ".xls", "x.xls"):
        write_table(FRAME, tmp_path / "x.xls")
    with refused("lists-in-csv", "b", "x.parquet"):
        write_table(pl.DataFrame({"b": [[1]]}), tmp_path / "x.csv")
    with refused("not-written", tmp_path / "x.parquet"):
        write_table(pl.DataFrame({"b": pl.Series([object()])}), tmp_path / "x.parquet")
    (tmp_path / "folder.csv").mkdir()
    with refused("not-written", tmp_path / "folder.csv", os.strerror(errno.EISDIR)):
        write_table(FRAME, tmp_path / "folder.csv")
    (tmp_path / "file").write_text("")
    with refused("not-written", tmp_path / "file" / "x"):
        write_text(tmp_path / "file" / "x", "")
    assert left(tmp_path) == ["file", "folder.csv"]


def test_threads_that_write_one_path_leave_it_whole(tmp_path: Path) -> None:
    """Each has a part of its own, which the others do not sweep."""
    place = tmp_path / "x.txt"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: write_text(place, f"{n}" * 1000), range(10, 90)))
    assert len({place.read_text()[i : i + 2] for i in range(0, 2000, 2)}) == 1
    assert [file.name for file in tmp_path.iterdir()] == ["x.txt"]


def test_any_result_is_what_json_can_hold() -> None:
    given = {
        "nan": float("nan"), "far": [np.float64("inf"), np.float32("-inf")], "half": np.float32(0.5),
        "count": np.int64(3), "yes": np.bool_(True), "one": torch.tensor(2.5), "none": None, "text": "a",
        "place": Path("a/b"), "day": datetime.date(2026, 1, 2), 7: (1, 2), np.int64(8): {4}, "kind": range(2),
    }  # fmt: skip
    wanted = {
        "nan": None, "far": [None, None], "half": 0.5, "count": 3, "yes": True, "one": 2.5, "none": None, "text": "a",
        "place": "a/b", "day": "2026-01-02", "7": [1, 2], "8": [4], "kind": "range(0, 2)",
    }  # fmt: skip
    found = jsonable(given)
    assert json.dumps(found, allow_nan=False) == json.dumps(wanted)


@pytest.mark.parametrize("values", [0, 1, 300, 590, 5_000])
def test_an_array_is_whole_or_refused_where_its_end_finds_no_room(tmp_path: Path, values: int) -> None:
    """`np.save` leaves out the last values without an error."""
    array = np.arange(values, dtype=np.int32)
    fits = values * 4 + 128 <= 2_400
    with limited(resource.RLIMIT_FSIZE, 2_400), nullcontext() if fits else refused("not-written", "a.npy"):
        files.write_array(tmp_path / "a.npy", array)
    if (tmp_path / "a.npy").exists():
        assert np.array_equal(np.load(tmp_path / "a.npy"), array)


@pytest.mark.parametrize("array", [np.zeros((0, 2)), np.arange(6.0).reshape(2, 3).T, np.array(7), np.ones(3, bool)])
def test_arrays_come_back_as_they_were(tmp_path: Path, array: np.ndarray) -> None:
    files.write_array(tmp_path / "a.npy", array)
    found = np.load(tmp_path / "a.npy")
    assert found.dtype == array.dtype and found.shape == array.shape and np.array_equal(found, array)
