"""How a version finds its items: quickly, by an index, by an exported graph: the same lists, with every filter."""

from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

import fullrank as fr
from fullrank.serving.messages import RecommendRequest
from fullrank.serving.model import ServedModel, given_history
from fullrank.serving.searching import Finder
from fullrank.serving.settings import ServeSettings
from refusals import refused
from serving.conftest import REQUESTS, Shop

DOCUMENTS = {
    "new": {"id": "new", "title": "Rose soap number 990", "features": {"in_stock": True, "category": "soap"}},
    "i25": {"id": "i25", "retired": True},
}


def opened(shop: Shop, documents: dict | None = None, **settings) -> ServedModel:
    made = ServeSettings.parse({"run": str(shop.run.path), **settings})
    return ServedModel.open(shop.run.path, "first", made, documents or {})


def answers(model: ServedModel, requests: list = REQUESTS) -> list:
    asked = map(RecommendRequest.model_validate, requests)
    return model.answer([model.read(request, given_history(request) or []) for request in asked])


def lists(model: ServedModel) -> list:
    return [[model.items.ids[item] for item in answer.ids] for answer in answers(model)]


@pytest.mark.parametrize("documents", [{}, DOCUMENTS], ids=["plain", "changed"])
def test_an_index_and_a_graph_find_what_is_exact(shop: Shop, tmp_path: Path, documents: dict) -> None:
    exact = opened(shop, documents)
    assert exact.state.finder.fast is not None and exact.state.finder.index is None
    expected = lists(exact)
    slow = opened(shop, documents)
    slow.state = replace(slow.state, finder=Finder(slow.state.finder.predictor))
    assert lists(slow) == expected, "the quick way gives the lists of the model's own"
    for _ in ("made", "read from the folder"):
        indexed = opened(shop, documents, search="index", recall=0.9, index_folder=str(tmp_path / "indexes"))
        assert indexed.recall is not None and indexed.recall >= 0.9
        assert lists(indexed) == expected, "120 items lie in cells that are all read"
    assert not documents or not any("i25" in found for found in expected)


@pytest.mark.slow
def test_a_graph_answers_what_it_can(shop: Shop, tmp_path: Path) -> None:
    fr.export(shop.run, tmp_path / "graph", to="onnx", k=10)
    exact, exported = opened(shop), opened(shop, exported=str(tmp_path / "graph"))
    graph = exported.state.finder.graph
    graph.answer = Mock(wraps=graph.answer)
    for request in REQUESTS[:2]:
        (expected,), (found,) = (answers(model, [request]) for model in (exact, exported))
        assert found.ids == expected.ids and found.scores == pytest.approx(expected.scores, abs=1e-4)
    assert graph.answer.call_count == 2
    assert lists(exported) == lists(exact), "lists that are too long for it, filters: by torch"
    assert graph.answer.call_count == 2


def test_an_index_below_its_floor_is_refused(shop: Shop) -> None:
    with refused("recall-below-floor"):
        opened(shop, search="index", recall=1.0, canary=None).state.finder.index.require(1.01)


@pytest.mark.slow
def test_an_export_of_another_run_is_refused(shop: Shop, tmp_path: Path) -> None:
    other = fr.train("sasrec", shop.store, tmp_path / "other", set=["model.dim=8", "training.max_epochs=1"])
    fr.export(other, tmp_path / "graph", to="onnx")
    with refused("export-of-other-run"):
        opened(shop, exported=str(tmp_path / "graph"))
