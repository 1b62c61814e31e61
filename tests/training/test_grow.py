"""Items added to a trained model, and items that no training event has, in a model with a vector per item."""

import shutil
from pathlib import Path

import polars as pl
import pytest
import torch

import fullrank as fr
from fullrank.data.events.store import Store
from fullrank.run import Run
from refusals import refused
from seals import reseal
from tests.training.conftest import Runs, tiny, weights
from tests.training.test_warm_start import events


def new_items(market: Store, count: int = 3) -> pl.DataFrame:
    ids = market.catalog.ids
    fresh = [f"new-{i}" for i in range(count)] if ids.dtype == pl.String else [10**6 + i for i in range(count)]
    return pl.DataFrame(
        {"item_id": pl.Series(fresh, dtype=ids.dtype), "category": [market.catalog.frame["category"][5]] * count}
    )


def test_neighbours_give_the_mean_of_their_kind(run: Run, market: Store, tmp_path: Path) -> None:
    grown = fr.grow_catalog(run, new_items(market), tmp_path / "grown", start="neighbours", like="category")
    old, new = (weights(r)["items.embedding.weight"] for r in (run, grown))
    same = torch.from_numpy((market.catalog.frame["category"] == market.catalog.frame["category"][5]).to_numpy())
    assert torch.equal(new[: len(old)], old)
    torch.testing.assert_close(new[len(old) :], old[same].mean(0).expand(3, -1), rtol=1e-5, atol=1e-7)
    assert grown.catalog.version == run.catalog.version + 1


def test_old_items_keep_their_scores_and_new_ones_can_be_asked(run: Run, market: Store, tmp_path: Path) -> None:
    grown = fr.grow_catalog(run, new_items(market), tmp_path / "grown", start="mean")
    ids = market.catalog.ids.to_list()
    before = fr.recommend(run, {"u": ids[:4]}, k=80)
    after = fr.recommend(grown, {"u": ids[:4]}, k=83).filter(pl.col("item").is_in(ids))
    assert after["item"].to_list() == before["item"].to_list()
    torch.testing.assert_close(after["score"].to_torch(), before["score"].to_torch())
    added = new_items(market)["item_id"].to_list()
    assert set(added) <= set(fr.recommend(grown, {"u": ids[:4]}, k=83)["item"])
    assert fr.recommend(grown, {"u": added}, k=5, unknown="error").height == 5


def test_feature_models_know_a_new_item_at_once(market: Store, tmp_path: Path) -> None:
    spec = tiny("training.max_epochs=1", "model.items={kind: features, categorical: [category], ids: false}")
    run = fr.train(spec, market, tmp_path / "run", progress=False)
    grown = fr.grow_catalog(run, new_items(market), tmp_path / "grown")
    vectors = grown.model().items.all()
    torch.testing.assert_close(vectors[-1], vectors[5])


@pytest.mark.parametrize(
    "recipe", ["popularity", "item_to_item", "transition_graph", "ease", "ials", "bpr", "session_knn"]
)
def test_baselines_grow_too(recipe: str, market: Store, tmp_path: Path) -> None:
    run = fr.train(recipe, market, tmp_path / "run", progress=False)
    grown = fr.grow_catalog(run, new_items(market), tmp_path / "grown", start="mean")
    ids = market.catalog.ids.to_list()
    assert fr.recommend(grown, [ids[:3]], k=5)["item"].to_list() == fr.recommend(run, [ids[:3]], k=5)["item"].to_list()


def test_mistakes_are_named(run: Run, market: Store, tmp_path: Path) -> None:
    with refused("no-item-features"):
        fr.grow_catalog(run, new_items(market), tmp_path / "a")
    with refused("like-not-given"):
        fr.grow_catalog(run, new_items(market), tmp_path / "b", start="neighbours")
    with refused("known-ids", "'item_id'", 1001):
        fr.grow_catalog(run, pl.DataFrame({"item_id": market.catalog.ids.head(1)}), tmp_path / "c", start="mean")
    with refused("folder-not-empty"):
        fr.grow_catalog(run, new_items(market), run.path, start="mean")


def test_what_only_looks_like_one_row_per_item_stays(tmp_path: Path) -> None:
    """45 + 3 items, and an attention whose queries, keys and values are 3 x 16 = 48 rows."""
    store = fr.prepare(events([*range(45)]), tmp_path / "store")
    run = fr.train(tiny("training.max_epochs=1"), store, tmp_path / "run", progress=False)
    grown = fr.grow_catalog(run, pl.DataFrame({"item_id": [100, 101, 102]}), tmp_path / "grown", start="mean")
    old, new = (weights(r) for r in (run, grown))
    name = "encoder.blocks.0.attention.qkv.weight"
    assert len(new[name]) == grown.catalog.size == 48 and torch.equal(new[name], old[name])
    assert len(grown.model().items.all()) == 48


WEIGHT = "items.embedding.weight"


@pytest.fixture(scope="module")
def cold(market: Store, tmp_path_factory: pytest.TempPathFactory) -> Store:
    return fr.subset(market, tmp_path_factory.mktemp("cold") / "store", hide_items=0.2, keep_items=True)


@pytest.fixture(scope="module")
def cold_run(cold: Store, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Runs(cold, tmp_path_factory.mktemp("runs"))("run", "training.max_epochs=2")


@pytest.mark.parametrize("start", ["neighbours", "mean"])
def test_unseen_items_take_the_mean_of_trained_ones(cold_run: Run, tmp_path: Path, start: str) -> None:
    like = "category" if start == "neighbours" else None
    filled = fr.fill_unseen(cold_run, tmp_path / "filled", start=start, like=like)
    before, after, unseen = (
        weights(cold_run)[WEIGHT],
        weights(filled)[WEIGHT],
        torch.from_numpy(cold_run.catalog.popularity == 0),
    )
    assert unseen.any() and torch.equal(after[~unseen], before[~unseen])
    kinds = cold_run.catalog.frame["category"].to_list()
    for item in unseen.nonzero().flatten().tolist():
        same = torch.tensor([kind == kinds[item] for kind in kinds]) & ~unseen
        wanted = before[same if start == "neighbours" else ~unseen].mean(0)
        torch.testing.assert_close(after[item], wanted, rtol=1e-5, atol=1e-7)
    assert filled.manifest["filled"]["items"] == unseen.sum() and "grown_from" not in filled.manifest


def test_the_filled_run_can_be_evaluated_and_asked(cold_run: Run, cold: Store, tmp_path: Path) -> None:
    filled = fr.fill_unseen(cold_run, tmp_path / "filled", like="category")
    assert fr.evaluate(filled, data=cold).metrics["recall@10"] >= 0
    assert len(fr.recommend(filled, {"u": cold.catalog.ids.to_list()[:3]}, k=5)) == 5


def test_what_cannot_be_filled_is_said(cold_run: Run, cold: Store, tmp_path: Path, runs: Runs) -> None:
    with refused("like-not-given"):
        fr.fill_unseen(cold_run, tmp_path / "a")
    with refused("unknown-column", "'categry'", "'category'"):
        fr.fill_unseen(cold_run, tmp_path / "a", like="categry")
    whole = runs("whole", "training.max_epochs=1")
    with refused("nothing-to-fill"):
        fr.fill_unseen(whole, tmp_path / "a", start="mean")
    made = tiny("training.max_epochs=1", "model.items={kind: features, categorical: [category], ids: false}")
    features = fr.train(made, cold, tmp_path / "features", progress=False)
    with refused("no-item-vectors"):
        fr.fill_unseen(features, tmp_path / "a", start="mean")
    with refused("no-like-items", "title"):
        fr.fill_unseen(alone(cold_run, tmp_path / "alone"), tmp_path / "a", like="title")
    assert not (tmp_path / "a").exists()
    (tmp_path / "file").write_text("")
    with refused("folder-not-empty"):
        fr.fill_unseen(cold_run.path, tmp_path / "file", start="mean")


def alone(run: Run, out: Path) -> Run:
    """The run with a column of titles, of which no two are alike."""
    shutil.copytree(run.path, out)
    frame = pl.read_parquet(out / "items.parquet")
    frame.with_columns(title=pl.Series([f"title {n}" for n in range(len(frame))])).write_parquet(out / "items.parquet")
    reseal(out, sizes=True)
    return Run.open(out)


def test_a_table_of_attributes_is_not_taken_for_one_of_items(cold: Store, tmp_path: Path) -> None:
    made = tiny("training.max_epochs=1", "model.items={kind: features, categorical: [category]}")
    run = fr.train(made, cold, tmp_path / "run", progress=False)
    before, after = weights(run), weights(fr.fill_unseen(run, tmp_path / "filled", start="mean"))
    changed = [name for name in before if not torch.equal(before[name], after[name])]
    assert changed == [WEIGHT]
