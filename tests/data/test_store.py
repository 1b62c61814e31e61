"""A store's folder: what Store.open gives back, and that no damaged or hostile folder gets past it."""

import io
import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from fullrank.data.events.prepare import Columns, Prepare, prepare
from fullrank.data.events.store import Store
from fullrank.data.manifest import sealed
from refusals import refused
from seals import reseal, rewrite

EVENTS = pl.DataFrame(
    {
        "user_id": [1, 1, 1, 1, 2, 2, 2, 3],
        "item_id": ["a", "b", "c", "a", "b", "c", "d", "a"],
        "timestamp": [1, 2, 3, 4, 1, 2, 3, 1],
        "weight": [1.0] * 8,
        "type": ["view", "buy"] * 4,
    }
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    spec = Prepare(columns=Columns(weight="weight", type="type"))
    return prepare(EVENTS, tmp_path / "store", spec=spec).path


def test_arrays_are_mapped_and_read_only(folder: Path) -> None:
    store = Store.open(folder, verify=True)
    arrays = [store.items, store.offsets, store.bounds, store.times, store.weights, store.types]
    for array, dtype in zip(arrays, ["i4", "i8", "i8", "i8", "f4", "i4"], strict=True):
        assert isinstance(array, np.memmap) and array.dtype == dtype and not array.flags.writeable
    assert (store.num_users, store.num_items, store.num_events) == (3, 4, 8)
    assert store.type_names == ("buy", "view")
    assert "3 users, 4 items, 8 events" in repr(store)


def test_the_histories_of_old_are_those_of_eval_set(folder: Path) -> None:
    store = Store.open(folder)
    asked = store.eval_set("test")
    with pytest.warns(DeprecationWarning, match=r"Store\.eval_set\(split\)"):
        users, starts, ends, target_ends = store.histories("test")
    known = asked.histories.items
    assert users.tolist() == asked.users.tolist() == [0, 1]
    assert starts.tolist() == known.starts.tolist() and ends.tolist() == known.ends.tolist()
    assert target_ends.tolist() == asked.targets.ends.tolist()


def test_what_is_trained_on(folder: Path) -> None:
    """All but the last two events of a user; of the users with fewer than three, whatever the bounds say."""
    store = Store.open(folder)
    users, items, times = store.trained()
    rows = [(u, i) for u in range(store.num_users) for i in range(store.offsets[u], store.bounds[u, 0])]
    assert users.tolist() == [u for u, _ in rows] and len(rows) < store.num_events
    places = [i for _, i in rows]
    assert items.tolist() == store.items[places].tolist() and times.tolist() == store.times[places].tolist()
    assert np.bincount(items, minlength=store.num_items).tolist() == store.catalog.popularity.tolist()
    timeless = prepare(EVENTS.drop("timestamp"), folder.parent / "timeless", spec=Prepare(columns=Columns(time=None)))
    assert timeless.trained()[2] is None


def test_nothing_in_a_store_is_a_pickle(folder: Path) -> None:
    assert {p.suffix for p in folder.iterdir()} == {".npy", ".parquet", ".json"}
    for path in folder.glob("*.npy"):
        np.load(path, allow_pickle=False)


def test_the_manifest_describes_every_file(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["format"] == "fullrank.store" and manifest["format_version"] == 1
    assert set(manifest["files"]) == {p.name for p in folder.iterdir()} - {"manifest.json"}
    for name, entry in manifest["files"].items():
        assert entry["bytes"] == (folder / name).stat().st_size
    assert {"library_version", "spec", "counts", "filters", "split", "fingerprint", "content", "inputs"} <= set(
        manifest
    )


class Exploit:
    def __reduce__(self) -> tuple:
        return os.mkdir, ("exploited",)


def put(folder: Path, name: str, content: Any) -> None:
    """Other content of a file (bytes, an array, a table), and its size in the manifest: its own checks are left."""
    buffer = io.BytesIO()
    if isinstance(content, np.ndarray):
        np.save(buffer, content, allow_pickle=True)
    elif isinstance(content, pl.DataFrame):
        content.write_parquet(buffer)
    (folder / name).write_bytes(content if isinstance(content, bytes) else buffer.getvalue())
    reseal(folder, sizes=True)


def header(shape: str, size: int = 32) -> bytes:
    text = f"{{'descr': '<i4', 'fortran_order': False, 'shape': {shape}, }}".encode()
    text += b" " * (117 - len(text)) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + b"\0" * size


def npz() -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, items=np.zeros(8, np.int32))
    return buffer.getvalue()


GARBAGE = b"PAR1" + b"\xff" * 99 + b"PAR1"


ENTRY = {"bytes": 1, "sha256": ""}


def bad_manifest(content: bytes) -> tuple:
    return lambda folder: (folder / "manifest.json").write_bytes(content), "file-damaged", "manifest.json"


BROKEN = {
    "no folder": (shutil.rmtree, "missing-folder", "fullrank prepare"),
    "no manifest": (lambda f: (f / "manifest.json").unlink(), "wrong-folder", "manifest.json"),
    "JSON garbage": bad_manifest(b"{]"),
    "bytes garbage": bad_manifest(b"\xff\xfe\x00"),
    "deep JSON": bad_manifest(b"[" * 10**6),
    "a list": bad_manifest(b"[]"),
    "a missing array": (lambda f: (f / "offsets.npy").unlink(), "missing-file", "offsets.npy"),
    "a missing table": (lambda f: (f / "items.parquet").unlink(), "missing-file", "items.parquet"),
    "a folder": (lambda f: ((f / "items.npy").unlink(), (f / "items.npy").mkdir()), "missing-file", "items.npy"),
    "a truncated array": (lambda f: os.truncate(f / "items.npy", 140), "file-damaged", "items.npy", "140 bytes"),
}


MANIFESTS = {
    "another format": ({"format": "x"}, "wrong-folder", "'x'", "fullrank.store"),
    "a newer version": ({"format_version": 2}, "wrong-format-version", "2", "1"),
    "no counts": ({"counts": None}, "manifest-incomplete", "counts"),
    "negative counts": ({"counts": {"users": -1}}, "manifest-incomplete", "counts"),
    "no fingerprint": ({"fingerprint": None}, "manifest-incomplete", "'fingerprint'"),
    "no split": ({"split": None}, "manifest-incomplete", "'split'"),
    "type names": ({"type_names": 3}, "manifest-incomplete", "'type_names'"),
    "too few type names": ({"type_names": ["buy"]}, "file-damaged", "types.npy", "0 .. 0"),
    "no files": ({"files": []}, "manifest-incomplete", "'files'"),
    "a path out": ({"files": {"../items.npy": ENTRY}}, "foreign-files", "../items.npy"),
    "an absolute path": ({"files": {"/etc/passwd": ENTRY}}, "foreign-files", "/etc/passwd"),
    "an entry that is no entry": ({"files": {"items.npy": 5}}, "manifest-incomplete", "items.npy"),
    "items not listed": ({"files": {"items.npy": None}}, "manifest-incomplete", "items.npy"),
    "table not listed": ({"files": {"users.parquet": None}}, "manifest-incomplete", "users.parquet"),
}
"""What is changed in the manifest (None takes a key out), and the refusal."""


ITEMS = {
    "truncated, manifest agrees": lambda whole: whole[:-4],
    "longer, manifest agrees": lambda whole: whole + b"1234",
    "an empty array file": b"",
    "a header alone": header("(8,)", 0),
    "a huge shape": header(f"({2**62},)"),
    "a shape that wraps around": header(f"({2**40}, {2**40})"),
    "a shape beyond 64 bits": header(f"({2**70},)"),
    "a shape of truths": header("(True,)"),
    "an open bracket in a header": header("(8,"),
    "a deep header": header("(" * 20 + "8" + ",)" * 20),
    "a negative shape": header("(-8,)"),
    "code in a header": header("__import__('os')"),
    "an archive": npz(),
    "a pickle": pickle.dumps(Exploit()),
    "an object array": np.array([Exploit()] * 8, dtype=object),
    "another dtype": np.zeros(8, np.int64),
    "another byte order": np.zeros(8, ">i4"),
    "an item too large": np.full(8, 4, np.int32),
    "a negative item": np.full(8, -1, np.int32),
}


OTHERS = {
    "columns first": ("bounds.npy", np.asfortranarray(np.array([[2, 3], [5, 6], [8, 8]]))),
    "another shape": ("bounds.npy", np.zeros((2, 3), np.int64)),
    "offsets that fall": ("offsets.npy", np.array([0, 7, 4, 8])),
    "offsets that start late": ("offsets.npy", np.array([1, 4, 7, 8])),
    "offsets that end late": ("offsets.npy", np.array([0, 4, 7, 9])),
    "bounds outside": ("bounds.npy", np.array([[2, 5], [5, 6], [8, 8]])),
    "bounds before": ("bounds.npy", np.array([[2, 3], [3, 6], [8, 8]])),
    "bounds swapped": ("bounds.npy", np.array([[3, 2], [5, 6], [8, 8]])),
    "parquet garbage": ("items.parquet", GARBAGE, "table-unreadable"),
    "other items": ("items.parquet", lambda t: t[:3]),
    "item ids twice": ("items.parquet", lambda t: t.with_columns(item_id=pl.lit("a")), "wrong-item-table"),
    "no train_count": ("items.parquet", lambda t: t.drop("train_count"), "wrong-item-table"),
}


CONTENTS = {name: ("items.npy", content) for name, content in ITEMS.items()} | OTHERS


def opened(folder: Path, code: str, *names: str) -> None:
    with refused(code, *names) as refusal:
        Store.open(folder)
    assert "\n" not in str(refusal) and not (folder.parent / "exploited").exists()


@pytest.mark.parametrize("name", BROKEN)
def test_broken_folders(folder: Path, name: str) -> None:
    damage, *says = BROKEN[name]
    damage(folder)
    opened(folder, *says)


@pytest.mark.parametrize("name", MANIFESTS)
def test_hostile_manifests(folder: Path, name: str) -> None:
    changes, *says = MANIFESTS[name]
    rewrite(folder, changes)
    opened(folder, *says)


@pytest.mark.parametrize("name", CONTENTS)
def test_hostile_files(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    file, content, *code = CONTENTS[name]
    if callable(content):
        path = folder / file
        content = content(pl.read_parquet(path) if path.suffix == ".parquet" else path.read_bytes())
    put(folder, file, content)
    opened(folder, *(code or ["file-damaged"]), file if not code or "unreadable" in code[0] else "items")


def test_a_damaged_user_table_is_found_when_it_is_read(folder: Path) -> None:
    put(folder, "users.parquet", GARBAGE)
    with refused("table-unreadable", "users.parquet"):
        Store.open(folder).user_ids  # noqa: B018


def test_verify_finds_a_flipped_bit(folder: Path) -> None:
    whole = (folder / "times.npy").read_bytes()
    (folder / "times.npy").write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert Store.open(folder, verify=False).num_events
    for verify in (None, True):
        with refused("file-damaged", "times.npy"):
            Store.open(folder, **{} if verify is None else {"verify": verify})
    (folder / "times.npy").write_bytes(whole)
    Store.open(folder, verify=True)
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps(manifest | {"fingerprint": "0"}))
    with refused("file-damaged", "seal", "manifest.json"):
        Store.open(folder, verify=False)
    path.write_text(json.dumps(sealed(manifest | {"content": "0"})))
    with refused("file-damaged", "content hash", "manifest.json"):
        Store.open(folder, verify=True)
