"""Where folders of data may be written: not into each other, by one process at a time; and how one replaces another."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import polars as pl
import pytest

from folders import left
from fullrank.core import files
from fullrank.core.files import scratch_folder
from fullrank.core.locks import folder_lock
from fullrank.data.events.prepare import prepare
from fullrank.data.events.store import Store
from fullrank.data.events.subset import subset
from fullrank.data.impressions.prepare import prepare_impressions
from fullrank.data.sources.planted import Planted
from fullrank.semantic_ids.encode import encode
from refusals import refused


@pytest.fixture(scope="module")
def events() -> pl.DataFrame:
    return Planted(users=60, items=40, events_per_user=8).read().events


@pytest.fixture
def store(events: pl.DataFrame, tmp_path: Path) -> Store:
    return prepare(events, tmp_path / "shop")


def test_nothing_is_written_into_a_store(events: pl.DataFrame, store: Store) -> None:
    before = left(store.path)
    inside = store.path / "half"
    clicks = pl.DataFrame({"label": [0, 1], "a": ["x", "y"]})
    for write in (
        lambda: subset(store, inside, share=0.5),
        lambda: prepare(events, inside / "deeper"),
        lambda: prepare_impressions(clicks, inside),
        lambda: encode(store, inside),
    ):
        with refused("inside-a-store", inside, store.path):
            write()
    assert left(store.path) == before
    prepare(events, store.path, overwrite=True)


@pytest.mark.parametrize("verb", ["prepare", "prepare-impressions", "subset", "encode"])
def test_a_folder_that_is_being_written_is_refused_before_the_work(
    verb: str, events: pl.DataFrame, store: Store, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    calls = {
        "prepare": lambda: prepare(events, out),
        "prepare-impressions": lambda: prepare_impressions(tmp_path / "not there.csv", out),
        "subset": lambda: subset(store, out, share=0.5),
        "encode": lambda: encode(store, out),
    }
    with folder_lock(out, "prepare"), ThreadPoolExecutor(1) as other, refused("folder-locked", out):
        other.submit(calls[verb]).result()


def test_a_scratch_folder_is_private_and_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with scratch_folder() as folder:
        assert left(tmp_path) == [folder.name] and folder.stat().st_mode & 0o777 == 0o700
    assert left(tmp_path) == []


SMALL = pl.DataFrame({"user_id": [1, 1, 1], "item_id": [1, 2, 3], "timestamp": [1, 2, 3]})
OTHER = pl.DataFrame({"user_id": [1, 1, 1, 2], "item_id": [1, 2, 3, 4], "timestamp": [1, 2, 3, 4]})


@pytest.mark.parametrize("exchange", [True, False], ids=["exchange", "two renames"])
def test_a_store_is_replaced_whole(tmp_path: Path, exchange: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not exchange:
        monkeypatch.setattr(files, "exchange", lambda new, out: False)
    old = prepare(SMALL, tmp_path / "store")
    events = old.items
    assert prepare(OTHER, tmp_path / "store", overwrite=True).num_users == 2
    assert events.tolist() == [0, 1, 2], "an open store keeps its data"
    assert left(tmp_path) == ["store"]


def test_two_renames_roll_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(SMALL, tmp_path / "store")
    monkeypatch.setattr(files, "exchange", lambda new, out: False)
    rename = Path.rename

    def once(self: Path, target: Path) -> Path:
        if self.suffix == ".part":
            raise OSError(5, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", once)
    with refused("not-written", "Input/output error", tmp_path / "store"):
        prepare(OTHER, tmp_path / "store", overwrite=True)
    assert Store.open(tmp_path / "store", verify=True).num_users == 1 and left(tmp_path) == ["store"]


def test_another_writer_at_work_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / f".store.{os.getppid()}.part").mkdir()
    prepare(SMALL, tmp_path / "store")
    assert left(tmp_path) == [f".store.{os.getppid()}.part", "store"]


def test_an_empty_folder_is_used(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    assert prepare(SMALL, tmp_path / "store").num_users == 1
    assert prepare(SMALL, tmp_path / "deep" / "er" / "store").num_users == 1


def test_other_files_are_never_deleted(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "thesis.tex").write_text("x")
    with refused("folder-not-empty", tmp_path / "work"):
        prepare(SMALL, tmp_path / "work")
    with refused("not-a-folder", "thesis.tex"):
        prepare(SMALL, tmp_path / "work" / "thesis.tex")
    prepare(SMALL, tmp_path / "store")
    (tmp_path / "store" / "codes.parquet").write_text("x")
    with refused("foreign-files", "codes.parquet"):
        prepare(OTHER, tmp_path / "store", overwrite=True)
    assert (tmp_path / "work" / "thesis.tex").read_text() == "x" and Store.open(tmp_path / "store").num_users == 1


def test_a_damaged_or_newer_store_may_be_replaced(tmp_path: Path) -> None:
    prepare(SMALL, tmp_path / "store")
    (tmp_path / "store" / "items.npy").unlink()
    assert prepare(OTHER, tmp_path / "store", overwrite=True).num_users == 2
