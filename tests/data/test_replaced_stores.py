"""A store replaces another only when it is complete: kills, full disks and other people's files."""

import os
from pathlib import Path

import polars as pl
import pytest

from folders import left
from fullrank.core import files
from fullrank.data.events.prepare import prepare
from fullrank.data.events.store import Store
from refusals import refused

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
