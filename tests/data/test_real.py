"""Real data: the published counts come out, and the packed histories are those of the raw table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from fullrank.data.events.prepare import Columns, Prepare, prepare
from fullrank.data.events.store import Store

Folder = Callable[[str], Path]


@pytest.fixture(scope="module")
def beauty(real_data: Folder, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Store]:
    folder = real_data("amazon-beauty")
    out = tmp_path_factory.mktemp("beauty") / "store"
    return folder, prepare(folder / "events.parquet", out, items=folder / "items.parquet")


def test_beauty_has_the_published_counts(beauty: tuple[Path, Store]) -> None:
    folder, store = beauty
    assert (store.num_users, store.num_items, store.num_events) == (22_332, 12_086, 198_215)
    assert store.manifest["split"]["test"]["users"] == 22_332 and store.manifest["split"]["users_train_only"] == 0
    assert store.catalog.popularity.sum() == 198_215 - 2 * 22_332
    assert store.catalog.titles is not None and store.catalog.titles.null_count() == 0
    core = prepare(folder / "events.parquet", folder_out(store), spec=Prepare(k_core=5))
    assert core.fingerprint == store.fingerprint, "it is a 5-core already"


def folder_out(store: Store) -> Path:
    return store.path.with_name("core")


def test_beauty_ties_keep_input_order(beauty: tuple[Path, Store]) -> None:
    folder, store = beauty
    raw = pl.read_parquet(folder / "events.parquet")
    expected = raw.sort("user_id", "timestamp", maintain_order=True)
    assert (raw.group_by("user_id", "timestamp").len()["len"] > 1).any(), "this data has ties"
    assert store.catalog.ids.gather(store.items).equals(expected["item_id"])
    assert store.times is not None and store.times.tolist() == expected["timestamp"].to_list()
    last = expected.group_by("user_id", maintain_order=True).last()["item_id"]
    assert store.catalog.ids.gather(store.eval_set("test").next_items).equals(last)


def test_movielens_ratings_with_threshold_and_global_time(real_data: Folder, tmp_path: Path) -> None:
    folder = real_data("ml-1m")
    spec = Prepare(columns=Columns(rating="rating"), min_rating=4, k_core=5, split="global_time")
    store = prepare(
        folder / "ratings.parquet",
        tmp_path / "s",
        items=folder / "movies.parquet",
        users=folder / "users.parquet",
        spec=spec,
    )
    raw = pl.read_parquet(folder / "ratings.parquet").filter(pl.col("rating") >= 4)
    assert store.manifest["filters"][1]["events"] == len(raw)
    assert store.catalog.categorical("genres").cardinality > 100 and "age" in store.users.columns
    assert store.times is not None
    split = store.manifest["split"]
    asked = store.eval_set("test")
    starts, ends, targets = asked.histories.items.starts, asked.targets.starts, asked.targets.ends
    assert (asked.histories.items.ends == ends).all()
    assert len(asked.users) == split["test"]["users"] - split["test"]["users_without_history"]
    assert (store.times[ends] >= split["test_from_seconds"]).all()
    assert (
        (store.times[ends - 1] < split["test_from_seconds"]).all() and (starts < ends).all() and (ends < targets).all()
    )
