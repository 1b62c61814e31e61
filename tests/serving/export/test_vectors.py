"""Item vectors as an index of faiss: ids, recall, and what has no vectors."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

import fullrank as fr
from fullrank.cli import main
from fullrank.serving.export.make import index_ids
from fullrank.serving.export.session import ExportedModel
from refusals import refused
from tests.serving.export.exporting import ITEMS, made_run

faiss = pytest.importorskip("faiss")


def test_the_index_finds_what_the_run_recommends(tmp_path: Path) -> None:
    run = made_run("sasrec", tmp_path / "run")
    made = fr.export(run, tmp_path / "out", to="faiss")
    assert made.parity["recall@10"] == 1.0 and made.manifest["ids"] == "item"
    index = faiss.read_index(str(made.path / "index.faiss"))
    assert index.ntotal == ITEMS
    predictor = fr.load(run, device="cpu")
    _, vectors = predictor.user_vectors([["i3", "i5"]])
    scores, ids = index.search(np.ascontiguousarray(vectors), 5)
    own = predictor.recommend([["i3", "i5"]], k=5, seen="keep")
    assert made.item_ids.gather(ids[0]).to_list() == own["item"].to_list()
    assert np.allclose(scores[0], own["score"].to_numpy(), atol=1e-4)
    with refused("not-an-onnx-export"):
        ExportedModel.open(made.path)


@pytest.mark.slow
def test_eight_bits_are_measured_on_the_users_of_the_store(tmp_path: Path) -> None:
    small = ("--set", "source.users=80", "--set", "source.items=60")
    assert main(["prepare", "planted", *small, "--out", str(tmp_path / "data")]) == 0
    store = fr.Store.open(tmp_path / "data")
    run = made_run("sasrec", tmp_path / "run", store=store)
    whole = fr.export(run, tmp_path / "whole", to="faiss")
    made = fr.export(run, tmp_path / "out", to="faiss", int8=True)
    assert made.manifest["int8"] and made.manifest["bytes"] < whole.manifest["bytes"]
    assert made.parity["users"] == len(store.eval_set("test")) and made.parity["histories"].startswith("test")
    assert 0.5 < made.parity["recall@10"] <= 1.0
    again = fr.export(run, tmp_path / "out", to="faiss", int8=True, data=store)
    assert again.parity == made.parity


def test_eight_bits_without_the_store(tmp_path: Path) -> None:
    with refused("missing-store", "data="):
        fr.export(made_run("sasrec", tmp_path / "run"), tmp_path / "out", to="faiss", int8=True)


@pytest.mark.parametrize(("ids", "external"), [([5, 0, 7], True), ([-5, 0, 7], False), (["a", "b", "c"], False)])
def test_which_ids_an_index_has(ids: list, external: bool) -> None:
    found, own = index_ids(pl.Series(ids))
    assert own == external and found.tolist() == (ids if external else [0, 1, 2])
