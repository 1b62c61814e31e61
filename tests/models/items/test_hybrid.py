"""Hybrid items: their vectors by hand, ids left out at random, items that come later, and what is no part of them."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch

import fullrank as fr
from fullrank.models.sequential.items.hybrid import Hybrid
from refusals import refused
from tests.training.test_warm_start import events
from tiny import ITEMS, catalog, shaken

DIM = 6
FEATURES = {"kind": "features", "categorical": ["tags"], "ids": False}


def made(**settings: Any) -> Any:
    return shaken(Hybrid.parse({"kind": "hybrid", **settings}).build(DIM, catalog())).eval()


@pytest.mark.parametrize("fuse", ["sum", "gate"])
def test_vectors_as_they_are_written(fuse: str) -> None:
    """Of text and features; an item without training events has no vector of its own."""
    items = made(parts=["text", FEATURES], fuse=fuse)
    events = torch.as_tensor(catalog().popularity).float()
    assert (events == 0).any()
    parts = items.parts[0].all() + items.parts[1].all()
    there = (events > 0).float()[:, None]
    wanted = items.embedding.weight * there + parts
    if fuse == "gate":
        share = torch.sigmoid(items.gate[0] * events.log1p()[:, None] + items.gate[1]) * there
        wanted = share * items.embedding.weight + (1 - share) * parts
    torch.testing.assert_close(items.all(), wanted)


def test_ids_are_left_out_in_training_alone_and_for_a_whole_step() -> None:
    items = made(id_dropout=0.5)
    whole, parts = items.all(), items.parts[0].all()
    step = items.train().for_one_step()
    asked = torch.arange(ITEMS)
    first, again = step.embed(asked), step.embed(asked)
    assert torch.equal(first, again), "an item has one vector in a step"
    kept = torch.isclose(first, whole, atol=1e-6).all(1)
    assert torch.isclose(first, parts, atol=1e-6).all(1).logical_or(kept).all()
    seen = torch.as_tensor(catalog().popularity) > 0
    assert 0 < int(kept[seen].sum()) < int(seen.sum())
    still = made(id_dropout=0.0).train()
    assert torch.equal(still.all(), still.all())


@pytest.mark.parametrize(("part", "why"), [("tpab", "searched"), ("hybrid", "allowed")])
def test_what_is_no_part(part: str, why: str) -> None:
    with refused("not-a-part-of-items" if part == "tpab" else "unknown-kind", part, why):
        made(parts=[part])


def test_a_new_item_is_made_of_what_is_known_of_it(tmp_path: Path) -> None:
    """Trained, grown, and gone on from: the text of a new item is its vector."""
    table = events(range(40))
    titles = table.select(pl.col("item_id").unique()).with_columns(
        title=pl.concat_str(pl.lit("word "), pl.col("item_id").cast(pl.String))
    )
    store = fr.prepare(table, tmp_path / "store", items=titles)
    parts = [{"kind": "text", "fields": ["title"], "vocabulary": 30}]
    spec = fr.recipe("sasrec").override(f"model.items={ {'kind': 'hybrid', 'parts': parts} }", "model.dim=16",
                                        "training.max_epochs=1")  # fmt: skip
    run = fr.train(spec, store, tmp_path / "run", device="cpu", progress=False)
    same = titles["item_id"][0]
    fresh = "fresh" if titles["item_id"].dtype == pl.String else 10**6
    new = pl.DataFrame({"item_id": [fresh], "title": [titles["title"][0]]})
    grown = fr.grow_catalog(run, new, tmp_path / "grown").model().eval()
    old = run.catalog.lookup([same])[0]
    torch.testing.assert_close(grown.items.all()[-1], grown.items.parts[0].all()[int(old)])
    still = spec.override("training.lr=1e-30")
    again = fr.train(still, store, tmp_path / "again", init_from=run, device="cpu", progress=False)
    assert all(torch.allclose(a, b) for a, b in zip(run.tensors().values(), again.tensors().values(), strict=True))
