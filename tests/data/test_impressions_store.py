"""A store of impressions is complete or not there, and no damaged or hostile folder gets past it."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import fullrank as fr
from fullrank.data.impressions import write as impression_write
from fullrank.data.impressions.store import ImpressionStore
from fullrank.data.manifest import describe_files
from refusals import refused
from seals import reseal

FRAME = pl.DataFrame(
    {
        "label": [0, 1] * 20,
        "user": [f"u{row % 7}" for row in range(40)],
        "price": [float(row) for row in range(40)],
        "age": list(range(40)),
        "tags": [["a", "b"][: row % 3] for row in range(40)],
        "time": list(range(40)),
    }
)
SCHEMA: dict[str, Any] = {
    "fields": [
        "user", {"kind": "numeric", "name": "price"}, {"kind": "bag", "name": "tags"},
        {"kind": "numeric", "name": "age", "transform": "bucket", "buckets": 3},
    ],
    "group": "user", "time": "time", "split": "temporal",
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return fr.prepare_impressions(FRAME, tmp_path / "store", schema=SCHEMA).path


def test_arrays_are_mapped_and_read_only(folder: Path) -> None:
    store = ImpressionStore.open(folder, verify=True)
    for array in store.arrays.values():
        assert isinstance(array, np.memmap) and not array.flags.writeable
    assert {p.suffix for p in folder.iterdir()} == {".npy", ".parquet", ".json"}
    assert set(store.manifest["files"]) == {p.name for p in folder.iterdir()} - {"manifest.json"}
    assert store.split("train") == range(32) and store.split("test") == range(36, 40)
    assert store.labels("validation").tolist() == [0, 1, 0, 1]
    assert store.vocabulary("user").to_list() == ["u0", "u1", "u2", "u3", "u4", "u5", "u6"]
    assert "40 rows" in repr(store) and store.num_groups == 7


def test_rows_that_are_not_there(folder: Path) -> None:
    store = ImpressionStore.open(folder)
    for rows in (np.array([40]), np.array([-1])):
        with refused("row-out-of-range", "0 .. 39"):
            store.batch(rows)
    assert len(store.batch(np.array([], np.int64))) == 0
    assert len(store.batch(slice(3, 9))) == 6
    with refused("unknown-split", "'train'"):
        store.split("trian")


def edit(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = folder / "manifest.json"
    tree = json.loads(path.read_text())
    change(tree)
    path.write_text(json.dumps(tree))
    reseal(folder)


def _set(*keys: str, to: Any) -> Callable[[dict[str, Any]], None]:
    def change(tree: dict[str, Any]) -> None:
        for key in keys[:-1]:
            tree = tree[key]
        tree[keys[-1]] = to

    return change


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_set("format", to="fullrank.store"), ("wrong-folder", "events", "fullrank prepare-impressions")),
        (_set("format", to="zip"), ("wrong-folder", "'zip'", "fullrank.impressions")),
        (_set("format_version", to=99), ("wrong-format-version", "99")),
        (_set("fingerprint", to=None), ("manifest-incomplete", "'fingerprint'")),
        (_set("counts", "rows", to=41), ("manifest-incomplete", "counts")),
        (_set("counts", "rows", to=10**15), ("manifest-incomplete", "counts")),
        (_set("counts", "parts", "train", "rows", to=-1), ("manifest-incomplete", "counts")),
        (_set("counts", "bag_values", to=[10**15]), ("file-damaged", "bag0_ids.npy")),
        (_set("files", "../../etc/passwd", to={"bytes": 1, "sha256": ""}), ("foreign-files", "../../etc/passwd")),
        (_set("files", "extra.npy", to={"bytes": 1, "sha256": ""}), ("foreign-files", "extra.npy")),
        (_set("schema", "fields", to=[]), ("invalid-setting", "fields")),
        (_set("schema", "surprise", to=1), ("unknown-setting", "surprise")),
        (_set("fields", to=[]), ("file-damaged", "manifest.json", "fields", "[]")),
        (_set("fitted", "price", to={"mean": "0", "scale": 1}), ("file-damaged", "'price'", "'mean': '0'")),
        (_set("fitted", "age", to={"edges": [3.0, 1.0]}), ("file-damaged", "'age'", "[3.0, 1.0]")),
        (_set("fitted", to={}), ("file-damaged", "'price' is None")),
    ],
)
def test_a_hostile_manifest_is_refused(
    folder: Path, change: Callable[[dict[str, Any]], None], says: tuple[str, ...]
) -> None:
    edit(folder, change)
    with refused(*says):
        ImpressionStore.open(folder)


@pytest.mark.parametrize("name", ["labels", "inputs", "categorical", "numeric", "groups", "times", "bag0_ids"])
def test_a_damaged_array_is_refused(folder: Path, name: str) -> None:
    path = folder / f"{name}.npy"
    whole = path.read_bytes()
    for content in (whole[:-1], whole + b"x", b"", whole[:40], b"\x80\x04" + whole[2:]):
        path.write_bytes(content)
        with refused("file-damaged", path.name):
            ImpressionStore.open(folder)
        edit(folder, _set("files", path.name, "bytes", to=len(content)))
        with refused("file-damaged", path.name):
            ImpressionStore.open(folder)
    path.unlink()
    with refused("missing-file", path.name):
        ImpressionStore.open(folder)


def test_ids_and_offsets_out_of_range_are_refused_when_read(folder: Path) -> None:
    for name, values, says in (
        ("categorical", 10**6, ("file-damaged", "categorical.npy", 10**6)),
        ("categorical", -1, ("file-damaged", "categorical.npy", "-1 .. -1")),
        ("bag0_ids", 99, ("file-damaged", "bag0_ids.npy", 99)),
        ("bag0_offsets", -5, ("file-damaged", "bag0_offsets.npy", "-5 .. -5")),
    ):
        copy = folder.with_name(f"{name}{values}")
        shutil.copytree(folder, copy)
        array = np.load(copy / f"{name}.npy")
        np.save(copy / f"{name}.npy", np.full_like(array, values))
        store = ImpressionStore.open(copy, verify=False)
        with refused(*says):
            store.batch(range(40))
        with refused("file-damaged", "hash"):
            ImpressionStore.open(copy)


def test_an_array_of_objects_is_not_unpickled(folder: Path) -> None:
    array = np.empty(40, object)
    with open(folder / "labels.npy", "wb") as file:
        np.lib.format.write_array(file, array, allow_pickle=True)
    edit(folder, lambda tree: tree["files"].update(describe_one(folder / "labels.npy")))
    with refused("file-damaged", "labels.npy"):
        ImpressionStore.open(folder)


def describe_one(path: Path) -> dict[str, Any]:
    return {path.name: {"bytes": path.stat().st_size, "sha256": ""}}


def test_vocabularies_are_checked(folder: Path) -> None:
    path = folder / "vocabulary.parquet"
    table = pl.read_parquet(path)
    for broken, named in (
        (pl.concat([table, table]), repr(table["value"][0])),
        (table.rename({"value": "values"}), "'values': String"),
        (table.head(1), "'size': 3"),
    ):
        broken.write_parquet(path)
        edit(folder, _set("files", path.name, "bytes", to=path.stat().st_size))
        with refused("file-damaged", named):
            ImpressionStore.open(folder)


def test_no_store(tmp_path: Path) -> None:
    with refused("missing-folder"):
        ImpressionStore.open(tmp_path / "nowhere")
    with refused("wrong-folder", "manifest.json"):
        ImpressionStore.open(tmp_path)


def test_other_files_are_not_replaced(folder: Path, tmp_path: Path) -> None:
    (folder / "mine.txt").write_text("mine")
    with refused("foreign-files", "mine.txt"):
        fr.prepare_impressions(FRAME, folder, schema=SCHEMA)
    (tmp_path / "file").write_text("x")
    with refused("not-a-folder"):
        fr.prepare_impressions(FRAME, tmp_path / "file", schema=SCHEMA)
    events = tmp_path / "events"
    events.mkdir()
    (events / "notes.txt").write_text("x")
    with refused("folder-not-empty"):
        fr.prepare_impressions(FRAME, events, schema=SCHEMA)


@pytest.mark.parametrize("where", ["append", "close"])
def test_a_full_disk_leaves_the_old_store(folder: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    before = describe_files(folder)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(impression_write._Array, where, full)
    with refused("not-written", os.strerror(errno.ENOSPC), folder):
        fr.prepare_impressions(FRAME.head(30), folder, schema=SCHEMA, overwrite=True)
    assert describe_files(folder) == before and [p.name for p in folder.parent.iterdir()] == ["store"]


def test_an_error_in_the_second_pass_leaves_the_old_store(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = describe_files(folder)
    with refused("wrong-labels", "label"):
        fr.prepare_impressions(FRAME.with_columns(label=pl.lit(7)), folder, schema=SCHEMA, overwrite=True)
    assert describe_files(folder) == before and [p.name for p in folder.parent.iterdir()] == ["store"]


KILLED = """
import sys, time
sys.path.insert(0, sys.argv[1])
import polars as pl
from fullrank.data.impressions import prepare, write
def hang(*_):
    print("hangs", flush=True)
    time.sleep(60)
write._tables = hang
frame = pl.DataFrame({"label": [0, 1] * 50, "user": list(range(100))})
split = {"kind": "random", "shares": [0.4, 0.3, 0.3]}
prepare.prepare_impressions(frame, sys.argv[2], schema={"fields": ["user"], "split": split}, overwrite=True)
"""


@pytest.mark.process
@pytest.mark.skipif(os.name == "nt", reason="signals")
def test_a_killed_process_loses_nothing(folder: Path) -> None:
    before = describe_files(folder)
    source = str(Path(fr.__file__).parents[1])
    child = subprocess.Popen([sys.executable, "-c", KILLED, source, str(folder)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None and child.stdout.readline().strip() == "hangs"
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert describe_files(folder) == before
    assert len(list(folder.parent.glob(".store.*.part"))) == 1
    fr.prepare_impressions(FRAME, folder, schema=SCHEMA, overwrite=True)
    assert [p.name for p in folder.parent.iterdir()] == ["store"], "the next writer removes what was left"
