"""The card of a model: facts of the run, what may be asked, figures that say what they should of planted models."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

import fullrank as fr
from fullrank.core.jagged import Jagged
from fullrank.data.events.catalog import Catalog
from fullrank.data.histories import Histories
from fullrank.run import Run
from fullrank.serving.card import BANDS, collapse, columns, model_card, sample_histories
from serving.conftest import SMALL, Shop


@pytest.fixture(scope="module")
def run(shop: Shop) -> Run:
    return shop.run


def test_a_card_is_json_and_names_what_a_page_shows(run: Run) -> None:
    predictor = fr.load(run)
    card = json.loads(json.dumps(model_card(run, predictor, histories=sample_histories(run, 30)), allow_nan=False))
    assert card["version"] == "first" and card["recipe"] == "sasrec" and card["dim"] == 16 and card["layers"] >= 1
    assert card["items"] == predictor.catalog.size and card["parameters"] == run.manifest["parameters"]
    assert card["data"]["name"] == "store" and card["validation"]["metric"] == "ndcg@10"
    assert card["reasoning"] is None and card["has_ranker"] is False
    assert card["explains"] == {"attention": True, "because": True}
    kinds = {one["name"]: one["kind"] for one in card["columns"]}
    assert kinds == {"title": "text", "category": "category", "price": "number", "in_stock": "bool"}
    assert card["collapse"]["directions"] == 16 and 1 <= card["collapse"]["stable_rank"] <= 16
    bands = card["fairness"]["bands"]
    assert [one["band"] for one in bands] == list(BANDS) and card["fairness"]["histories"] == 30
    for share in ("items", "events", "shown"):
        assert sum(one[share] for one in bands) == pytest.approx(1, abs=1e-3)


def test_without_histories_the_saved_evaluation_is_read(run: Run) -> None:
    predictor = fr.load(run)
    assert "bands" not in model_card(run, predictor)["fairness"]
    fr.evaluate(run).save(run.path)
    try:
        assert model_card(run, predictor)["fairness"]["source"] == "evaluation"
    finally:
        for name in ("evaluation.json", "per_user.parquet"):
            (run.path / name).unlink()


def test_popularity_has_a_card_without_vectors(run: Run, tmp_path: Path) -> None:
    other = fr.train("popularity", run.manifest["data"]["path"], tmp_path / "popular")
    card = model_card(other, fr.load(other), histories=sample_histories(run, 30))
    assert "spectrum" not in card["collapse"] and card["explains"] == {"attention": False, "because": False}
    head = card["fairness"]["bands"][0]
    assert head["shown"] > head["events"] and "more often" in card["fairness"]["reading"]


def test_a_reasoner_says_what_it_may_be_asked(run: Run, tmp_path: Path) -> None:
    more = ["model.reasoner.steps=2", "model.reasoner.streams=3"]
    other = fr.train("plr", run.manifest["data"]["path"], tmp_path / "plr", set=[*SMALL, *more])
    card = model_card(other, fr.load(other))
    assert card["reasoning"] == {"steps": 2, "most_steps": 4, "streams": 3} and card["version"] == "plr"


def test_a_store_that_is_gone_gives_no_histories(run: Run, tmp_path: Path) -> None:
    moved = Run(run.path, run.spec, {**run.manifest, "data": {**run.manifest["data"], "path": str(tmp_path / "no")}})
    assert sample_histories(moved) is None
    empty = Histories(Jagged.from_lists([[], []]))
    assert "bands" not in model_card(moved, fr.load(run), histories=empty)["fairness"]


def test_collapse_is_told_from_a_spread() -> None:
    draw, popularity = torch.Generator().manual_seed(0), np.arange(500)
    spread = torch.randn(500, 32, generator=draw)
    one = torch.linspace(0, 1, 500)[:, None] * torch.ones(1, 32) + 1e-4 * spread
    wide, thin = collapse(spread, popularity), collapse(one, popularity)
    assert wide["effective_rank"] > 30 and "nothing collapsed" in wide["reading"]
    assert thin["stable_rank"] == pytest.approx(1, abs=0.01) and thin["effective_rank"] < 4
    assert "follows popularity" in thin["reading"] and thin["popularity_correlation"] > 0.99
    assert wide["spectrum"][0] == [1, 1.0] and wide["spectrum"][-1][0] == 32
    assert [value for _, value in wide["spectrum"]] == sorted((v for _, v in wide["spectrum"]), reverse=True)
    exact = torch.linalg.svdvals(spread.double())
    np.testing.assert_allclose([v for _, v in wide["spectrum"]], (exact / exact[0]).numpy(), atol=1e-5)


@pytest.mark.parametrize("table", [None, torch.zeros(1, 4), torch.zeros(9, 4)])
def test_nothing_to_look_at_is_no_error(table: torch.Tensor | None) -> None:
    assert json.dumps(collapse(table, np.arange(9 if table is None else len(table))), allow_nan=False)


def test_columns_of_every_kind() -> None:
    frame = pl.DataFrame({
        "item": range(60), "item_id": range(60), "train_count": range(60), "title": ["x"] * 60,
        "in_stock": [True, None] * 30, "price": [1.5, float("nan"), None, float("inf")] * 15, "empty": [None] * 60,
        "kind": ["b", "a", None] * 20, "brand": [f"b{n}" for n in range(60)], "tags": [["p", "q"], []] * 30,
        "number": pl.Series([1, 2, 3] * 20, dtype=pl.Int16), "size": pl.Series(["s", "m"] * 30).cast(pl.Categorical),
        "item_vectors": pl.Series([[1.0, 2.0]] * 60, dtype=pl.Array(pl.Float32, 2)),
    })  # fmt: skip
    found = {one["name"]: one for one in columns(Catalog(frame))}
    json.dumps(found, allow_nan=False)
    kinds = {name: one["kind"] for name, one in found.items()}
    assert kinds == {"title": "text", "in_stock": "bool", "price": "number", "kind": "category", "brand": "text",
                     "tags": "category", "number": "number", "size": "category"}  # fmt: skip
    assert found["kind"]["values"] == ["a", "b"] and found["tags"]["values"] == ["p", "q"]
    assert (found["price"]["min"], found["price"]["max"]) == (1.5, 1.5) and found["number"]["max"] == 3
