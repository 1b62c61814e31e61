"""Where folders of data may be written: not into each other, by one process at a time, whatever the path looks like."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import polars as pl
import pytest

from folders import left
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
