"""Items added to a trained model, and training that goes on from a run with new events."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
import torch

import fullrank as fr
from fullrank.data.pack import Store
from fullrank.errors import UserError
from fullrank.ops.safe_files import read_tensors
from fullrank.run import Run
from tests.training.conftest import tiny


@pytest.fixture(scope="module")
def run(market: Store, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return fr.train(tiny("training.max_epochs=2"), market, tmp_path_factory.mktemp("runs") / "run", progress=False)


def new_items(market: Store, count: int = 3) -> pl.DataFrame:
    ids = market.catalog.ids
    fresh = [f"new-{i}" for i in range(count)] if ids.dtype == pl.String else [10**6 + i for i in range(count)]
    return pl.DataFrame(
        {"item_id": pl.Series(fresh, dtype=ids.dtype), "category": [market.catalog.frame["category"][5]] * count}
    )


def test_neighbours_give_the_mean_of_their_kind(run: Run, market: Store, tmp_path: Path) -> None:
    grown = fr.grow_catalog(run, new_items(market), tmp_path / "grown", start="neighbours", like="category")
    old, new = (read_tensors(r.path / "weights.safetensors")["items.embedding.weight"] for r in (run, grown))
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


@pytest.mark.parametrize("recipe", ["popularity", "item_to_item"])
def test_baselines_grow_too(recipe: str, market: Store, tmp_path: Path) -> None:
    run = fr.train(recipe, market, tmp_path / "run", progress=False)
    grown = fr.grow_catalog(run, new_items(market), tmp_path / "grown", start="mean")
    ids = market.catalog.ids.to_list()
    assert fr.recommend(grown, [ids[:3]], k=5)["item"].to_list() == fr.recommend(run, [ids[:3]], k=5)["item"].to_list()


def test_mistakes_are_named(run: Run, market: Store, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no features"):
        fr.grow_catalog(run, new_items(market), tmp_path / "a")
    with pytest.raises(UserError, match="like="):
        fr.grow_catalog(run, new_items(market), tmp_path / "b", start="neighbours")
    with pytest.raises(UserError, match="known"):
        fr.grow_catalog(run, pl.DataFrame({"item_id": market.catalog.ids.head(1)}), tmp_path / "c", start="mean")
    with pytest.raises(UserError, match="not empty"):
        fr.grow_catalog(run, new_items(market), run.path, start="mean")


def test_going_on_from_a_run_matches_items_by_external_id(run: Run, market: Store, tmp_path: Path) -> None:
    """New data: other users, some items gone, some new, so that internal ids move."""
    ids = market.catalog.ids.to_list()
    kept = ids[10:]
    added = new_items(market)["item_id"].to_list()
    events = pl.DataFrame([
        {"user_id": u, "item_id": (kept + added)[(u * 7 + t * 3) % (len(kept) + 3)], "timestamp": t}
        for u in range(60) for t in range(6)
    ])  # fmt: skip
    data = fr.prepare(events, tmp_path / "store")
    frozen = ("training.lr=1e-30", "training.max_epochs=1")
    went_on = fr.train("same", data, tmp_path / "on", init_from=run, set=frozen, progress=False)
    old, new = (read_tensors(r.path / "weights.safetensors") for r in (run, went_on))
    place = run.catalog.lookup(data.catalog.ids)
    known = torch.from_numpy(place >= 0)
    torch.testing.assert_close(new["items.embedding.weight"][known], old["items.embedding.weight"][place[place >= 0]])
    torch.testing.assert_close(
        new["encoder.blocks.0.attention.qkv.weight"], old["encoder.blocks.0.attention.qkv.weight"]
    )
    assert int((~known).sum()) == 3


def test_going_on_with_strangers_is_refused(run: Run, tmp_path: Path) -> None:
    events = pl.DataFrame({"user_id": [1] * 4, "item_id": ["p", "q", "r", "s"], "timestamp": [1, 2, 3, 4]})
    data = fr.prepare(events, tmp_path / "store")
    with pytest.raises(UserError):
        fr.train("same", data, tmp_path / "on", init_from=run, progress=False)
