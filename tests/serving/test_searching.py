"""How a version finds its items: quickly, by an index, by an exported graph: the same lists, with every filter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import fullrank as fr
from fullrank.core.errors import UserError
from fullrank.serving.messages import RecommendRequest
from fullrank.serving.model import ServedModel, given_history
from fullrank.serving.settings import ServeSettings
from serving.conftest import Shop

REQUESTS: list[dict[str, Any]] = [
    {"history": ["i7", "i13", "i19"], "k": 9},
    {"history": ["i8"], "k": 9, "exclude": ["i14", "i20"]},
    {"history": ["i9", "i3"], "k": 9, "filters": {"in_stock": True}},
    {"history": ["i1", "i2"], "k": 9, "allow": [f"i{n}" for n in range(30)]},
    {"history": ["i5"], "k": 9, "seen": "keep"},
    {"history": [], "k": 9, "filters": {"category": "soap"}},
    {"history": ["i4", "new"], "k": 120},
]
DOCUMENTS = {
    "new": {"id": "new", "title": "Rose soap number 990", "features": {"in_stock": True, "category": "soap"}},
    "i25": {"id": "i25", "retired": True},
}


def opened(shop: Shop, documents: dict[str, Any] | None = None, **settings: Any) -> ServedModel:
    made = ServeSettings.parse({"run": str(shop.run.path), **settings})
    return ServedModel.open(shop.run.path, "first", made, documents or {})


def lists(model: ServedModel) -> list[list[str]]:
    asks = [model.read(one, given_history(one) or []) for one in map(RecommendRequest.model_validate, REQUESTS)]
    return [[model.items.ids[item] for item in answer.ids] for answer in model.answer(asks)]


@pytest.mark.parametrize("documents", [{}, DOCUMENTS], ids=["plain", "changed"])
def test_an_index_and_a_graph_find_what_is_exact(shop: Shop, tmp_path: Path, documents: dict[str, Any]) -> None:
    exact = opened(shop, documents)
    assert exact.state.finder.fast is not None and exact.state.finder.index is None
    expected = lists(exact)
    slow = opened(shop, documents)
    slow.state = type(slow.state)(
        **{**vars(slow.state), "finder": type(slow.state.finder)(slow.state.finder.predictor)}
    )  # fmt: skip
    assert lists(slow) == expected, "the quick way gives the lists of the model's own"
    indexed = opened(shop, documents, search="index", recall=0.9, index_folder=str(tmp_path / "indexes"))
    assert indexed.recall is not None and indexed.recall >= 0.9
    assert lists(indexed) == expected, "120 items lie in cells that are all read"
    again = opened(shop, documents, search="index", recall=0.9, index_folder=str(tmp_path / "indexes"))
    assert lists(again) == expected, "from the folder"
    for one in expected:
        assert "i25" not in one or not documents


@pytest.mark.slow
def test_a_graph_answers_what_it_can(shop: Shop, tmp_path: Path) -> None:
    fr.export(shop.run, tmp_path / "graph", to="onnx", k=10)
    exact, exported = opened(shop), opened(shop, exported=str(tmp_path / "graph"))
    graph, called = exported.state.finder.graph, []
    assert graph is not None
    answer = graph.answer
    graph.answer = lambda *given: (called.append(given), answer(*given))[1]  # type: ignore[method-assign]
    for request in REQUESTS[:2]:
        asked = RecommendRequest.model_validate(request)
        (own,), (other,) = (
            model.answer([model.read(asked, given_history(asked) or [])]) for model in (exact, exported)
        )
        assert own.ids == other.ids and own.scores == pytest.approx(other.scores, abs=1e-4)
    assert len(called) == 2
    assert lists(exported) == lists(exact) and len(called) == 2, "lists that are too long for it, filters: by torch"


def test_an_index_below_its_floor_is_refused(shop: Shop) -> None:
    with pytest.raises(UserError) as refused:
        opened(shop, search="index", recall=1.0, canary=None).state.finder.index.require(1.01)  # type: ignore[union-attr]
    assert refused.value.code == "recall-below-floor"


@pytest.mark.slow
def test_an_export_of_another_run_is_refused(shop: Shop, tmp_path: Path) -> None:
    other = fr.train("sasrec", shop.store, tmp_path / "other", set=["model.dim=8", "training.max_epochs=1"])
    fr.export(other, tmp_path / "graph", to="onnx")
    with pytest.raises(UserError) as refused:
        opened(shop, exported=str(tmp_path / "graph"))
    assert refused.value.code == "export-of-other-run"
