"""A store's folder: what Store.open gives back, and that no damaged or hostile folder gets past it."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from fullrank.data.events.prepare import Columns, Prepare, prepare
from fullrank.data.events.store import Store
from fullrank.data.manifest import sealed
from refusals import refused
from seals import reseal

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
    assert store.times is not None and times is not None
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
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("exploited",)


def change(folder: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    edit(manifest)
    path.write_text(json.dumps(manifest))
    reseal(folder)


def put(folder: Path, name: str, array: np.ndarray, pickled: bool = False) -> None:
    """Replace an array and make the manifest agree: only the checks of the content itself are left."""
    np.save(folder / name, array, allow_pickle=pickled)
    change(folder, lambda m: m["files"][name].update(bytes=(folder / name).stat().st_size))


def put_bytes(folder: Path, name: str, content: bytes) -> None:
    (folder / name).write_bytes(content)
    change(folder, lambda m: m["files"][name].update(bytes=len(content)))


def cut(path: Path, size: int) -> None:
    os.truncate(path, size)


def header(shape: str, size: int = 0) -> bytes:
    text = f"{{'descr': '<i4', 'fortran_order': False, 'shape': {shape}, }}".encode()
    text += b" " * (117 - len(text)) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + b"\0" * size


def npz() -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, items=np.zeros(8, np.int32))
    return buffer.getvalue()


DAMAGE: dict[str, tuple[Callable[[Path], Any], tuple[str, ...]]] = {
    "no folder": (shutil.rmtree, ("missing-folder", "store", "fullrank prepare")),
    "no manifest": (lambda f: (f / "manifest.json").unlink(), ("wrong-folder", "manifest.json")),
    "JSON garbage": (lambda f: (f / "manifest.json").write_text("{]"), ("file-damaged", "manifest.json", "not JSON")),
    "bytes garbage": (
        lambda f: (f / "manifest.json").write_bytes(b"\xff\xfe\x00"),
        ("file-damaged", "manifest.json", "not JSON"),
    ),
    "deep JSON": (
        lambda f: (f / "manifest.json").write_text("[" * 10**6),
        ("file-damaged", "manifest.json", "not JSON"),
    ),
    "a list": (lambda f: (f / "manifest.json").write_text("[]"), ("file-damaged", "manifest.json", "object")),
    "another format": (lambda f: change(f, lambda m: m.update(format="x")), ("wrong-folder", "'x'", "fullrank.store")),
    "a newer version": (
        lambda f: change(f, lambda m: m.update(format_version=2)),
        ("wrong-format-version", "2", "1"),
    ),
    "no counts": (lambda f: change(f, lambda m: m.pop("counts")), ("manifest-incomplete", "counts")),
    "negative counts": (lambda f: change(f, lambda m: m["counts"].update(users=-1)), ("manifest-incomplete", "counts")),
    "no fingerprint": (lambda f: change(f, lambda m: m.pop("fingerprint")), ("manifest-incomplete", "'fingerprint'")),
    "no split": (lambda f: change(f, lambda m: m.pop("split")), ("manifest-incomplete", "'split'")),
    "type names": (lambda f: change(f, lambda m: m.update(type_names=3)), ("manifest-incomplete", "'type_names'")),
    "too few type names": (
        lambda f: change(f, lambda m: m.update(type_names=["buy"])),
        ("file-damaged", "types.npy", "0 .. 0"),
    ),
    "no files": (lambda f: change(f, lambda m: m.update(files=[])), ("manifest-incomplete", "'files'")),
    "a path out": (
        lambda f: change(f, lambda m: m["files"].update({"../items.npy": m["files"]["items.npy"]})),
        ("foreign-files", "../items.npy"),
    ),
    "an absolute path": (
        lambda f: change(f, lambda m: m["files"].update({"/etc/passwd": m["files"]["items.npy"]})),
        ("foreign-files", "/etc/passwd"),
    ),
    "an entry that is no entry": (
        lambda f: change(f, lambda m: m["files"].update({"items.npy": 5})),
        ("manifest-incomplete", "size", "items.npy"),
    ),
    "items not listed": (
        lambda f: change(f, lambda m: m["files"].pop("items.npy")),
        ("manifest-incomplete", "items.npy"),
    ),
    "table not listed": (
        lambda f: change(f, lambda m: m["files"].pop("users.parquet")),
        ("manifest-incomplete", "users.parquet"),
    ),
    "a missing array": (lambda f: (f / "offsets.npy").unlink(), ("missing-file", "offsets.npy")),
    "a missing table": (lambda f: (f / "items.parquet").unlink(), ("missing-file", "items.parquet")),
    "an array that is a folder": (
        lambda f: ((f / "items.npy").unlink(), (f / "items.npy").mkdir()),
        ("missing-file", "items.npy"),
    ),
    "a truncated array": (lambda f: cut(f / "items.npy", 140), ("file-damaged", "items.npy", "140 bytes")),
    "truncated, manifest agrees": (
        lambda f: put_bytes(f, "items.npy", (f / "items.npy").read_bytes()[:-4]),
        ("file-damaged", "items.npy"),
    ),
    "longer, manifest agrees": (
        lambda f: put_bytes(f, "items.npy", (f / "items.npy").read_bytes() + b"1234"),
        ("file-damaged", "items.npy", "size"),
    ),
    "an empty array file": (lambda f: put_bytes(f, "items.npy", b""), ("file-damaged", "items.npy")),
    "a header alone": (lambda f: put_bytes(f, "items.npy", header("(8,)")), ("file-damaged", "items.npy")),
    "a huge shape": (lambda f: put_bytes(f, "items.npy", header(f"({2**62},)", 32)), ("file-damaged", "items.npy")),
    "a shape that wraps around": (
        lambda f: put_bytes(f, "items.npy", header(f"({2**40}, {2**40})", 32)),
        ("file-damaged", "items.npy"),
    ),
    "a shape beyond 64 bits": (
        lambda f: put_bytes(f, "items.npy", header(f"({2**70},)", 32)),
        ("file-damaged", "items.npy"),
    ),
    "a shape of truths": (lambda f: put_bytes(f, "items.npy", header("(True,)", 32)), ("file-damaged", "items.npy")),
    "an open bracket in a header": (
        lambda f: put_bytes(f, "items.npy", header("(8,", 32)),
        ("file-damaged", "items.npy"),
    ),
    "a deep header": (
        lambda f: put_bytes(f, "items.npy", header("(" * 20 + "8" + ",)" * 20, 32)),
        ("file-damaged", "items.npy"),
    ),
    "columns first": (
        lambda f: put(f, "bounds.npy", np.asfortranarray(np.array([[2, 3], [5, 6], [8, 8]]))),
        ("file-damaged", "bounds.npy"),
    ),
    "a negative shape": (lambda f: put_bytes(f, "items.npy", header("(-8,)", 32)), ("file-damaged", "items.npy")),
    "code in a header": (
        lambda f: put_bytes(f, "items.npy", header("__import__('os')", 32)),
        ("file-damaged", "items.npy"),
    ),
    "an archive": (lambda f: put_bytes(f, "items.npy", npz()), ("file-damaged", "items.npy")),
    "a pickle": (lambda f: put_bytes(f, "items.npy", pickle.dumps(Exploit())), ("file-damaged", "items.npy")),
    "an object array": (
        lambda f: put(f, "items.npy", np.array([Exploit()] * 8, dtype=object), pickled=True),
        ("file-damaged", "items.npy"),
    ),
    "another dtype": (lambda f: put(f, "items.npy", np.zeros(8, np.int64)), ("file-damaged", "items.npy", "int64")),
    "another byte order": (lambda f: put(f, "items.npy", np.zeros(8, ">i4")), ("file-damaged", "items.npy", ">i4")),
    "another shape": (
        lambda f: put(f, "bounds.npy", np.zeros((2, 3), np.int64)),
        ("file-damaged", "bounds.npy", "(2, 3)"),
    ),
    "an item too large": (
        lambda f: put(f, "items.npy", np.full(8, 4, np.int32)),
        ("file-damaged", "items.npy", "0 .. 3"),
    ),
    "a negative item": (
        lambda f: put(f, "items.npy", np.full(8, -1, np.int32)),
        ("file-damaged", "items.npy", "0 .. 3"),
    ),
    "offsets that fall": (lambda f: put(f, "offsets.npy", np.array([0, 7, 4, 8])), ("file-damaged", "offsets.npy")),
    "offsets that start late": (
        lambda f: put(f, "offsets.npy", np.array([1, 4, 7, 8])),
        ("file-damaged", "offsets.npy"),
    ),
    "offsets that end late": (lambda f: put(f, "offsets.npy", np.array([0, 4, 7, 9])), ("file-damaged", "offsets.npy")),
    "bounds outside": (
        lambda f: put(f, "bounds.npy", np.array([[2, 5], [5, 6], [8, 8]])),
        ("file-damaged", "bounds.npy"),
    ),
    "bounds before": (
        lambda f: put(f, "bounds.npy", np.array([[2, 3], [3, 6], [8, 8]])),
        ("file-damaged", "bounds.npy"),
    ),
    "bounds swapped": (
        lambda f: put(f, "bounds.npy", np.array([[3, 2], [5, 6], [8, 8]])),
        ("file-damaged", "bounds.npy"),
    ),
    "parquet garbage": (
        lambda f: put_bytes(f, "items.parquet", b"PAR1" + b"\xff" * 99 + b"PAR1"),
        ("table-unreadable", "items.parquet"),
    ),
    "other items": (lambda f: _items(f, lambda t: t[:3]), ("file-damaged", "items.parquet", "3 rows")),
    "item ids twice": (
        lambda f: _items(f, lambda t: t.with_columns(item_id=pl.lit("a"))),
        ("wrong-item-table", "'item_id'"),
    ),
    "no train_count": (lambda f: _items(f, lambda t: t.drop("train_count")), ("wrong-item-table", "'train_count'")),
}


def _items(folder: Path, edit: Callable[[pl.DataFrame], pl.DataFrame]) -> None:
    buffer = io.BytesIO()
    edit(pl.read_parquet(folder / "items.parquet")).write_parquet(buffer)
    put_bytes(folder, "items.parquet", buffer.getvalue())


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_and_hostile_folders(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    damage, said = DAMAGE[name]
    damage(folder)
    with refused(*said) as caught:
        Store.open(folder)
    assert "\n" not in str(caught)
    assert not (folder.parent / "exploited").exists()


def test_a_damaged_user_table_is_found_when_it_is_read(folder: Path) -> None:
    put_bytes(folder, "users.parquet", b"PAR1" + b"\xff" * 99 + b"PAR1")
    with refused("table-unreadable", "users.parquet"):
        Store.open(folder).user_ids  # noqa: B018


def test_verify_finds_a_flipped_bit(folder: Path) -> None:
    content = bytearray((folder / "times.npy").read_bytes())
    content[-1] ^= 1
    (folder / "times.npy").write_bytes(content)
    assert Store.open(folder, verify=False).num_events
    with refused("file-damaged", "times.npy"):
        Store.open(folder)
    with refused("file-damaged", "times.npy"):
        Store.open(folder, verify=True)
    (folder / "times.npy").write_bytes(bytes(content[:-1]) + bytes([content[-1] ^ 1]))
    Store.open(folder, verify=True)
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps(manifest | {"fingerprint": "0"}))
    with refused("file-damaged", "seal", "manifest.json"):
        Store.open(folder, verify=False)
    path.write_text(json.dumps(sealed(manifest | {"content": "0"})))
    with refused("file-damaged", "content hash", "manifest.json"):
        Store.open(folder, verify=True)
