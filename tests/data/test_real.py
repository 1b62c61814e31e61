"""Real data: the published counts come out, and the packed histories are those of the raw table."""

from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from fullrank.data.events.prepare import Columns, Prepare, prepare

Folder = Callable[[str], Path]


@pytest.fixture(scope="module")
def beauty(real_data: Folder, tmp_path_factory: pytest.TempPathFactory) -> tuple:
    folder = real_data("amazon-beauty")
    out = tmp_path_factory.mktemp("beauty") / "store"
    return folder, prepare(folder / "events.parquet", out, items=folder / "items.parquet")


def test_beauty_has_the_published_counts(beauty: tuple) -> None:
    folder, store = beauty
    assert (store.num_users, store.num_items, store.num_events) == (22_332, 12_086, 198_215)
    assert store.manifest["split"]["test"]["users"] == 22_332 and store.manifest["split"]["users_train_only"] == 0
    assert store.catalog.popularity.sum() == 198_215 - 2 * 22_332
    assert store.catalog.titles.null_count() == 0
    core = prepare(folder / "events.parquet", store.path.with_name("core"), spec=Prepare(k_core=5))
    assert core.fingerprint == store.fingerprint, "it is a 5-core already"


def test_movielens_ratings_with_threshold_and_global_time(real_data: Folder, tmp_path: Path) -> None:
    folder = real_data("ml-1m")
    spec = Prepare(columns=Columns(rating="rating"), min_rating=4, k_core=5, split="global_time")
    items, users = folder / "movies.parquet", folder / "users.parquet"
    store = prepare(folder / "ratings.parquet", tmp_path / "s", items=items, users=users, spec=spec)
    raw = pl.read_parquet(folder / "ratings.parquet").filter(pl.col("rating") >= 4)
    assert store.manifest["filters"][1]["events"] == len(raw)
    assert store.catalog.categorical("genres").cardinality > 100 and "age" in store.users.columns
    test_from, ends = store.manifest["split"]["test_from_seconds"], store.eval_set("test").targets.starts
    assert (store.times[ends] >= test_from).all() and (store.times[ends - 1] < test_from).all()
