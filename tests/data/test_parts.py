"""Stores in parts: the same users, events and split as in one, whatever their number and the form of the table."""

import json
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import fullrank as fr
from folders import python
from fullrank import parallel
from fullrank.core.errors import UserError
from fullrank.core.jagged import Jagged
from fullrank.core.parted import PartedArray, occurrences, stretches
from fullrank.data.events import parts
from fullrank.data.events.loader import Loader
from fullrank.data.histories import user_keys
from fullrank.data.manifest import sealed
from fullrank.models.sequential.objectives.tasks.next_item import NextItem


@pytest.fixture(scope="module")
def table() -> pl.DataFrame:
    draw = np.random.default_rng(0)
    size = 4000
    return pl.DataFrame({
        "user_id": [f"user {n}ä" for n in draw.zipf(1.3, size) % 211],
        "item_id": draw.zipf(1.4, size) % 97,
        "timestamp": 1.7e9 + np.round(draw.random(size) * 1e5, 1),
        "rating": draw.integers(1, 6, size).astype(float),
        "weight": draw.random(size).astype(np.float32),
        "what": draw.choice(["view", "buy", "cart"], size),
    })  # fmt: skip


def same_events(whole: fr.Store, other: fr.Store) -> None:
    """Each user has the same events, in the same order and parts of the split."""
    assert whole.sizes == other.sizes and whole.type_names == other.type_names
    assert whole.catalog.ids.equals(other.catalog.ids) and (whole.catalog.popularity == other.catalog.popularity).all()
    rows = other.rows_of(whole.user_ids)
    assert sorted(rows.tolist()) == list(range(whole.num_users))
    one, two = whole.events.items, other.events.items.take(rows)
    assert (one.lengths == two.lengths).all() and (one.flat() == two.flat()).all()
    for name in ("times", "weights", "types"):
        a, b = getattr(whole, name), getattr(other, name)
        assert (a is None) == (b is None)
        if a is not None:
            assert np.array_equal(one.over(a).flat(), two.over(b).flat())
    ends = whole.bounds - whole.offsets[:-1, None], (other.bounds - other.offsets[:-1, None])[rows]
    assert np.array_equal(*ends)
    assert {**whole.manifest["split"], "leak": 0} == {**other.manifest["split"], "leak": 0}
    assert whole.manifest["filters"] == other.manifest["filters"] and whole.manifest["notes"] == other.manifest["notes"]


SPECS = {
    "as it is": [],
    "k-core": ["k_core=[5,8]"],
    "types, ratings, one of each": [
        "columns.type=what", "event_types=[view,buy]", "columns.rating=rating", "min_rating=2", "duplicates=last",
    ],
    "weights, first of each": ["columns.weight=weight", "duplicates=first", "k_core=3"],
    "global time": ["split=global_time", "k_core=2"],
    "global time by date": ["split={kind: global_time, validation_from: '2023-11-15', test_from: 1700080000}"],
    "rolling time": ["split={kind: rolling_time, days: 0.2, fold: 1}"],
    "order alone": ["columns.time=null"],
}  # fmt: skip


@pytest.mark.parametrize("settings", SPECS.values(), ids=SPECS.keys())
def test_parts_hold_what_one_store_holds(settings: list, table: pl.DataFrame, tmp_path: Path) -> None:
    whole = fr.prepare(table, tmp_path / "whole", set=settings)
    found = [fr.prepare(table, tmp_path / f"in {count}", parts=count, set=settings) for count in (1, 3, 12)]
    for store in found:
        same_events(whole, store)
        assert store.fingerprint == found[0].fingerprint
        assert fr.Store.open(store.path, verify=True).user_ids.equals(found[0].user_ids), "users in one order"
    assert not list(tmp_path.glob("*.preparing"))


@pytest.mark.parametrize("suffix", ["csv", "parquet", "jsonl"])
@pytest.mark.parametrize("ids", ["text", "numbers"])
def test_files_are_read_in_pieces(
    suffix: str, ids: str, table: pl.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if ids == "numbers":
        table = table.with_columns(user_id=table["user_id"].str.extract(r"(\d+)").cast(pl.Int64) * 10**10)
    path = tmp_path / f"events.{suffix}"
    {"csv": table.write_csv, "parquet": table.write_parquet, "jsonl": table.write_ndjson}[suffix](path)
    whole = fr.prepare(path, tmp_path / "whole", set=["k_core=3"])
    monkeypatch.setattr("fullrank.data.frames.CHUNK", 333)
    monkeypatch.setattr("fullrank.data.events.pieces.HELD", 5000)
    same_events(whole, fr.prepare(path, tmp_path / "parts", parts=7, set=["k_core=3"]))


def test_missing_rows_are_dropped_and_counted(table: pl.DataFrame, tmp_path: Path) -> None:
    broken = table.with_columns(
        item_id=pl.when(pl.int_range(pl.len()) % 50 == 7).then(None).otherwise("item_id"),
        timestamp=pl.when(pl.int_range(pl.len()) % 70 == 3).then(float("nan")).otherwise("timestamp"),
    )
    whole = fr.prepare(broken, tmp_path / "whole", missing="drop")
    same_events(whole, fr.prepare(broken, tmp_path / "parts", parts=4, missing="drop"))


def test_mistakes_name_the_rows(table: pl.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fullrank.data.frames.CHUNK", 1000)
    broken = table.with_columns(
        item_id=pl.when(pl.int_range(pl.len()) == 2345).then(None).otherwise("item_id"),
    )
    with pytest.raises(UserError, match=r"rows 2,000 to 2,999, has 1 missing ids .* first in row 345"):
        fr.prepare(broken, tmp_path / "parts", parts=4)
    with pytest.raises(UserError, match=r"k_core .* leaves none of 4,000 events"):
        fr.prepare(table, tmp_path / "parts", parts=4, set=["k_core=10000"])
    for count in (0, 4097):
        with pytest.raises(UserError, match="parts="):
            fr.prepare(table, tmp_path / "parts", parts=count)
    assert not (tmp_path / "parts").exists()


def test_batches_do_not_depend_on_the_number_of_parts(table: pl.DataFrame, tmp_path: Path) -> None:
    stores = [fr.prepare(table, tmp_path / f"{count}", parts=count) for count in (1, 2, 9)]
    segments = NextItem().build(16, 20).segments
    loaders = [Loader(store, segments, by="tokens", size=300, seed=3, times=True, users=True) for store in stores]
    for step in (0, 1, loaders[0].steps_per_epoch + 2):
        one, *others = (loader.batch(step) for loader in loaders)
        for other in others:
            for name in ("items", "lengths", "rows", "users", "user_keys", "times"):
                assert (getattr(one, name) == getattr(other, name)).all()


def test_a_part_is_a_store(table: pl.DataFrame, tmp_path: Path) -> None:
    whole = fr.prepare(table, tmp_path / "whole", parts=3)
    own = [fr.Store.open(folder) for folder in whole.folders]
    assert sum(store.num_events for store in own) == whole.num_events
    assert [store.catalog.ids.equals(whole.catalog.ids) for store in own] == [True] * 3
    assert (sum(store.catalog.popularity for store in own) == whole.catalog.popularity).all()
    keys = user_keys(whole.user_ids)
    assert (np.diff(keys) >= 0).all() and keys.max() < 2**62
    assert (parts.user_buckets(keys) < parts.BUCKETS).all()
    assert fr.verify(whole.path).ok and fr.verify(own[0].path).ok


@pytest.mark.parametrize("free, most", [(None, 4), (10_000, 4), (650, 3), (50, 1)])
def test_no_more_parts_are_in_work_than_memory_holds(
    free: int | None, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel, "thread_count", lambda: 4)
    monkeypatch.setattr(parallel, "available_bytes", lambda: free)
    lock, at_work, seen = threading.Lock(), [0], []

    def work(number: int) -> int:
        with lock:
            at_work[0] += 1
            seen.append(at_work[0])
        time.sleep(0.01)
        with lock:
            at_work[0] -= 1
        return number

    assert parallel.Threads(100).total(work, range(12)) == sum(range(12))
    assert max(seen) == most


def test_fingerprints_are_those_of_the_first_version(table: pl.DataFrame, tmp_path: Path) -> None:
    """A run records that of its store, and is refused on another."""
    whole = table["user_id"].str.extract(r"(\d+)").cast(pl.Int64) * 10**10 - 5
    found = [
        fr.prepare(one, tmp_path / "store", parts=3, set=["k_core=3"], overwrite=True).fingerprint[:16]
        for one in (table, table.with_columns(user_id=whole))
    ]
    assert found == ["556a201364aebcab", "8139c91bf20c3c3f"]


def test_a_store_whose_parts_are_not_its_own_is_refused(table: pl.DataFrame, tmp_path: Path) -> None:
    one = fr.prepare(table, tmp_path / "one", parts=2).path
    other = fr.prepare(table.head(3000), tmp_path / "other", parts=2).path
    (one / "part-00001").rename(tmp_path / "aside")
    with pytest.raises(UserError, match="part-00001"):
        fr.Store.open(one)
    (other / "part-00001").rename(one / "part-00001")
    with pytest.raises(UserError, match="is not the part that"):
        fr.Store.open(one)
    assert not fr.verify(one).ok


def test_hostile_manifests_of_parts_are_refused(table: pl.DataFrame, tmp_path: Path) -> None:
    store = fr.prepare(table, tmp_path / "store", parts=2)
    tree = json.loads((store.path / "manifest.json").read_text())

    def refused(match: str, **changes: Any) -> None:
        (store.path / "manifest.json").write_text(json.dumps(sealed(tree | changes)))
        with pytest.raises(UserError, match=match):
            fr.Store.open(store.path)

    one, other = tree["parts"]
    refused("'parts'", parts=[])
    refused("'parts'", parts=[{**one, "folder": 3}])
    refused("not those of parts", parts=[{**one, "folder": "../whole"}, other])
    refused("not those of parts", parts=[one, {**other, "folder": "part-00000"}])
    refused("is not the part", parts=[one, {**other, "counts": one["counts"]}])
    refused("no store at", parts=[one, other, {**other, "folder": "part-00002"}])
    refused("foreign|no file", files=tree["files"] | {"../items.parquet": tree["files"]["items.parquet"]})
    (store.path / "part-00002").symlink_to(store.path)
    refused("in parts itself", parts=[one, other, {**other, "folder": "part-00002"}])


KILLED = """
import json, os, sys
import fullrank as fr
from fullrank.data.events import write

left, done = int(sys.argv[3]), write.write_store
def dying(*given, **named):
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), 9)
    done(*given, **named)
write.write_store = dying
fr.prepare(sys.argv[1], sys.argv[2], **json.loads(sys.argv[4]))
"""


def killed(path: Path, out: Path, left: int, **keywords: Any) -> None:
    """A preparation that is killed when it has written so many parts."""
    python(KILLED, path, out, left, json.dumps(keywords or {"parts": 6, "set": ["k_core=3"]}), ends=-signal.SIGKILL)
    assert not out.exists() and out.with_name(f"{out.name}.preparing").exists()


@pytest.mark.process
def test_a_killed_preparation_goes_on(table: pl.DataFrame, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, out = tmp_path / "events.parquet", tmp_path / "store"
    table.write_parquet(path)
    for left in (0, 2, 3):
        killed(path, out, left)
    with caplog.at_level("INFO"):
        store = fr.prepare(path, out, parts=6, set=["k_core=3"], progress=True)
    assert "go on with what was read before" in caplog.text
    same_events(fr.prepare(path, tmp_path / "whole", set=["k_core=3"]), store)
    assert not out.with_name("store.preparing").exists()


@pytest.mark.process
def test_a_preparation_of_another_table_begins_anew(table: pl.DataFrame, tmp_path: Path) -> None:
    path, out = tmp_path / "events.parquet", tmp_path / "store"
    table.write_parquet(path)
    killed(path, out, 2)
    table.head(3500).write_parquet(path)
    whole = fr.prepare(path, tmp_path / "whole", set=["k_core=3"])
    same_events(whole, fr.prepare(path, out, parts=6, set=["k_core=3"]))


def test_replaced_only_where_that_is_asked(table: pl.DataFrame, tmp_path: Path) -> None:
    out = tmp_path / "store"
    fr.prepare(table, out, parts=2)
    with pytest.raises(UserError, match="overwrite"):
        fr.prepare(table, out, parts=3)
    assert len(fr.prepare(table, out, parts=3, overwrite=True).folders) == 3
    assert fr.prepare(table, out, overwrite=True).folders == [out]
    assert len(fr.prepare(table, out, parts=3, overwrite=True).folders) == 3


@pytest.mark.parametrize("places", [3, -1, slice(2, 7), slice(None), slice(8, None, 2), [0, 9, -2], [[1, 2], [8, 8]]])
def test_an_array_in_parts_is_read_as_one(places: Any) -> None:
    whole = np.arange(10, dtype=np.int32) * 3
    parted = PartedArray([whole[:0], whole[:4], whole[4:5], whole[5:5], whole[5:]])
    at = np.array(places) if isinstance(places, list) else places
    assert np.array_equal(parted[at], whole[at]) and parted.shape == whole.shape
    assert np.array_equal(np.asarray(parted), whole) and np.array_equal(np.concatenate(list(stretches(parted))), whole)
    mask = whole % 2 == 0
    assert np.array_equal(parted[mask], whole[mask]) and parted.max() == 27 and parted.min() == 0
    assert np.array_equal(occurrences(parted, 30), np.bincount(whole, minlength=30))
    rows = Jagged.from_lengths(parted, np.array([3, 0, 5, 2]))
    flat = Jagged.from_lengths(whole, np.array([3, 0, 5, 2]))
    assert np.array_equal(rows.padded(), flat.padded()) and np.array_equal(rows.flat(), flat.flat())
    with pytest.raises(IndexError):
        parted[np.array([10])]
