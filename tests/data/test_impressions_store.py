"""A store of impressions is complete or not there, and no damaged or hostile folder gets past it."""

import shutil
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from fullrank.data.impressions.store import ImpressionStore
from fullrank.data.manifest import describe_files
from refusals import refused
from seals import reseal, rewrite
from tests.data.test_impressions_twin import prepared

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
SCHEMA = {
    "fields": [
        "user", {"kind": "numeric", "name": "price"}, {"kind": "bag", "name": "tags"},
        {"kind": "numeric", "name": "age", "transform": "bucket", "buckets": 3},
    ],
    "group": "user", "time": "time", "split": "temporal",
}  # fmt: skip


ENTRY = {"bytes": 1, "sha256": ""}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return prepared(FRAME, tmp_path / "store", SCHEMA).path


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


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"format": "fullrank.store"}, ("wrong-folder", "events", "fullrank prepare-impressions")),
        ({"format_version": 99}, ("wrong-format-version", "99")),
        ({"fingerprint": None}, ("manifest-incomplete", "'fingerprint'")),
        ({"counts": {"rows": 41}}, ("manifest-incomplete", "counts")),
        ({"counts": {"rows": 10**15}}, ("manifest-incomplete", "counts")),
        ({"counts": {"parts": {"train": {"rows": -1}}}}, ("manifest-incomplete", "counts")),
        ({"counts": {"bag_values": [10**15]}}, ("file-damaged", "bag0_ids.npy")),
        ({"files": {"../../etc/passwd": ENTRY}}, ("foreign-files", "../../etc/passwd")),
        ({"schema": {"fields": []}}, ("invalid-setting", "fields")),
        ({"schema": {"surprise": 1}}, ("unknown-setting", "surprise")),
        ({"fields": []}, ("file-damaged", "manifest.json", "fields", "[]")),
        ({"fitted": {"price": {"mean": "0", "scale": 1}}}, ("file-damaged", "'price'", "'mean': '0'")),
        ({"fitted": {"age": {"edges": [3.0, 1.0]}}}, ("file-damaged", "'age'", "[3.0, 1.0]")),
        ({"fitted": {"price": None}}, ("file-damaged", "'price' is None")),
    ],
)
def test_a_hostile_manifest_is_refused(folder: Path, changes: dict, says: tuple) -> None:
    with refused(*says):
        ImpressionStore.open(rewrite(folder, changes))


@pytest.mark.parametrize("name", ["labels", "inputs", "categorical", "numeric", "groups", "times", "bag0_ids"])
def test_a_damaged_array_is_refused(folder: Path, name: str) -> None:
    path = folder / f"{name}.npy"
    whole = path.read_bytes()
    for content in (whole[:-1], whole + b"x", b"", whole[:40], b"\x80\x04" + whole[2:]):
        path.write_bytes(content)
        with refused("file-damaged", path.name):
            ImpressionStore.open(folder)
        reseal(folder, sizes=True)
        with refused("file-damaged", path.name):
            ImpressionStore.open(folder)
    path.unlink()
    with refused("missing-file", path.name):
        ImpressionStore.open(folder)


def test_ids_and_offsets_out_of_range_are_refused_when_read(folder: Path) -> None:
    for name, values, says in (
        ("categorical", 10**6, ("file-damaged", "categorical.npy", 10**6)),
        ("categorical", -1, ("file-damaged", "categorical.npy", "the id -1")),
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
    np.save(folder / "labels.npy", np.empty(40, object), allow_pickle=True)
    with refused("file-damaged", "labels.npy"):
        ImpressionStore.open(reseal(folder, sizes=True))


def test_vocabularies_are_checked(folder: Path) -> None:
    path = folder / "vocabulary.parquet"
    table = pl.read_parquet(path)
    for broken, named in (
        (pl.concat([table, table]), repr(table["value"][0])),
        (table.rename({"value": "values"}), "'values': String"),
        (table.head(1), "'size': 3"),
    ):
        broken.write_parquet(path)
        reseal(folder, sizes=True)
        with refused("file-damaged", named):
            ImpressionStore.open(folder)


def test_no_store(tmp_path: Path) -> None:
    with refused("missing-folder"):
        ImpressionStore.open(tmp_path / "nowhere")
    with refused("wrong-folder", "manifest.json"):
        ImpressionStore.open(tmp_path)


def test_other_files_are_not_replaced(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "events").mkdir()
    for place, code in ((folder, "foreign-files"), (tmp_path / "events", "folder-not-empty")):
        (place / "mine.txt").write_text("mine")
        with refused(code):
            prepared(FRAME, place, SCHEMA)
    with refused("not-a-folder"):
        prepared(FRAME, tmp_path / "events" / "mine.txt", SCHEMA)


def test_an_error_in_the_second_pass_leaves_the_old_store(folder: Path) -> None:
    before = describe_files(folder)
    with refused("wrong-labels", "label"):
        prepared(FRAME.with_columns(label=pl.lit(7)), folder, SCHEMA, overwrite=True)
    assert describe_files(folder) == before and [p.name for p in folder.parent.iterdir()] == ["store"]
