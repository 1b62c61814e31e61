"""Items that no training event has, in a model with a vector per item."""

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

WEIGHT = "items.embedding.weight"


@pytest.fixture(scope="module")
def cold(market: Store, tmp_path_factory: pytest.TempPathFactory) -> Store:
    return fr.subset(market, tmp_path_factory.mktemp("cold") / "store", hide_items=0.2, keep_items=True)


@pytest.fixture(scope="module")
def run(cold: Store, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Runs(cold, tmp_path_factory.mktemp("runs"))("run", "training.max_epochs=2")


@pytest.mark.parametrize("start", ["neighbours", "mean"])
def test_unseen_items_take_the_mean_of_trained_ones(run: Run, tmp_path: Path, start: str) -> None:
    like = "category" if start == "neighbours" else None
    filled = fr.fill_unseen(run, tmp_path / "filled", start=start, like=like)
    before, after, unseen = weights(run)[WEIGHT], weights(filled)[WEIGHT], torch.from_numpy(run.catalog.popularity == 0)
    assert unseen.any() and torch.equal(after[~unseen], before[~unseen])
    kinds = run.catalog.frame["category"].to_list()
    for item in unseen.nonzero().flatten().tolist():
        same = torch.tensor([kind == kinds[item] for kind in kinds]) & ~unseen
        wanted = before[same if start == "neighbours" else ~unseen].mean(0)
        torch.testing.assert_close(after[item], wanted, rtol=1e-5, atol=1e-7)
    assert filled.manifest["filled"]["items"] == unseen.sum() and "grown_from" not in filled.manifest


def test_the_filled_run_can_be_evaluated_and_asked(run: Run, cold: Store, tmp_path: Path) -> None:
    filled = fr.fill_unseen(run, tmp_path / "filled", like="category")
    assert fr.evaluate(filled, data=cold).metrics["recall@10"] >= 0
    assert len(fr.recommend(filled, {"u": cold.catalog.ids.to_list()[:3]}, k=5)) == 5


def test_what_cannot_be_filled_is_said(run: Run, cold: Store, tmp_path: Path, runs: Runs) -> None:
    with refused("like-not-given"):
        fr.fill_unseen(run, tmp_path / "a")
    with refused("unknown-column", "'categry'", "'category'"):
        fr.fill_unseen(run, tmp_path / "a", like="categry")
    whole = runs("whole", "training.max_epochs=1")
    with refused("nothing-to-fill"):
        fr.fill_unseen(whole, tmp_path / "a", start="mean")
    made = tiny("training.max_epochs=1", "model.items={kind: features, categorical: [category], ids: false}")
    features = fr.train(made, cold, tmp_path / "features", progress=False)
    with refused("no-item-vectors"):
        fr.fill_unseen(features, tmp_path / "a", start="mean")
    with refused("no-like-items", "title"):
        fr.fill_unseen(alone(run, tmp_path / "alone"), tmp_path / "a", like="title")
    assert not (tmp_path / "a").exists()
    (tmp_path / "file").write_text("")
    with refused("folder-not-empty"):
        fr.fill_unseen(run.path, tmp_path / "file", start="mean")


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
