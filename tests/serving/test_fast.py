"""The quick encoder gives what the model gives: states and lists, for every recipe and setting that it takes.

And how a version finds its items: quickly, by an index, by an exported graph: the same lists, with every filter.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import Tensor

import fullrank as fr
from discover import everything
from fullrank.core.jagged import Jagged
from fullrank.data.histories import Histories
from fullrank.inference.batches import batches
from fullrank.inference.exact import top_k
from fullrank.inference.filters import Filters
from fullrank.inference.recommend import rank
from fullrank.models import DenseScorer
from fullrank.models.sequential.attention.hstu import HSTU
from fullrank.models.sequential.attention.softmax import Softmax
from fullrank.models.sequential.encoders.fmlp import FMLP
from fullrank.models.sequential.encoders.gru import GRU
from fullrank.models.sequential.encoders.transformer import Transformer
from fullrank.models.sequential.model import Recommender, RecommenderModel, Scoring
from fullrank.models.sequential.objectives.tasks.cloze import Cloze
from fullrank.run.experiment import find_experiment
from fullrank.serving import fast, fast_search, packed_encoders
from fullrank.serving.fast import FastEncoder
from fullrank.serving.fast_search import Searched, barring, cut, searched_items
from fullrank.serving.messages import RecommendRequest
from fullrank.serving.model import ServedModel, request_history
from fullrank.serving.searching import Finder
from fullrank.serving.settings import ServeSettings
from fullrank.testing.inputs import reachable
from refusals import refused
from serving.conftest import REQUESTS, Shop
from tiny import catalog, plain, shaken

ITEMS = 700
TAKEN = {"sasrec", "sasrec_2018", "sasrec_plus", "bert4rec", "gru4rec", "hstu", "hstu_plus", "srt", "fmlp"}
"""Recipes that it has to take; others may fall back."""
LENGTHS = (1, 9, 2, 60, 3, 50, 49, 5, 17, 31, 1)


def some(lengths: tuple[int, ...] = LENGTHS, items: int = ITEMS, seed: int = 0) -> Histories:
    """Histories with times that do not fall, of which the longest are longer than a model reads."""
    draw = np.random.default_rng(seed)
    rows = Jagged.from_lists([draw.integers(0, items, n).tolist() for n in lengths])
    return Histories(rows, 10**9 + np.cumsum(3 ** draw.integers(0, 16, len(rows.values))))


def listed(histories: Histories) -> tuple[list[np.ndarray], list[np.ndarray]]:
    assert histories.seconds is not None
    return list(histories.items), list(histories.seconds)


def made(spec: Recommender, items: int = ITEMS) -> RecommenderModel:
    torch.manual_seed(0)
    return shaken(spec.build(catalog(items)), 0.1).eval()


@torch.inference_mode()
def own_states(model: RecommenderModel, histories: Histories) -> Tensor:
    """What the model itself gives, in the order of the histories."""
    found = None
    for at, batch in batches(model, histories):
        x, inputs = model.task.inference_inputs(model.items.for_one_step(), batch)
        states = model.task.readout(model.encoder(x, inputs), inputs)
        found = states.new_empty(len(histories), states.shape[1]) if found is None else found
        found[torch.from_numpy(at)] = states
    assert found is not None
    return found


def check_states(model: RecommenderModel, encoder: FastEncoder) -> None:
    """The states of histories of all lengths are the model's, in one batch and one by one."""
    histories = some()
    wanted = own_states(model, histories)
    items, times = listed(histories)
    scale = float(wanted.abs().max())
    assert scale > 0.01
    alone = torch.cat([encoder.states_of([row], [seconds]) for row, seconds in zip(items, times, strict=True)])
    for found in (encoder.states_of(items, times), alone):
        off = float((found - wanted).abs().max())
        assert off <= 1e-5 * max(scale, 1.0), f"states are off by {off} of {scale}"


def check_lists(model: RecommenderModel, encoder: FastEncoder) -> None:
    """The lists are those of `rank`, but for items whose scores are equal to within rounding."""
    histories = some()
    wanted = rank(model, histories, k=20, filters=Filters())
    items, times = listed(histories)
    scores, ids = encoder.lists_of(items, 20, times=times, hidden=items)
    assert np.allclose(scores, wanted.scores, rtol=1e-5, atol=1e-5)
    for row, column in np.argwhere(ids != wanted.ids):
        near = np.abs(wanted.scores[row] - wanted.scores[row, column]) < 1e-4
        assert near.sum() > 1, f"row {row} differs at {column}"


def recommenders() -> list[str]:
    return [kind for _, kind in everything("recipes") if isinstance(find_experiment(kind).model, Recommender)]


@pytest.mark.parametrize("recipe", recommenders())
def test_every_recipe_that_it_takes(recipe: str) -> None:
    spec: Any = find_experiment(recipe).model
    if spec.items.kind_of() == "text":  # of columns that the small catalogue has
        spec = spec.model_copy(update={"items": plain(("items", "text"))})
    if spec.items.kind_of() == "features":
        spec = spec.override("items.categorical=[tags]")
    model = made(spec.model_copy(update={"penalties": ()}))  # which take no part in an answer
    encoder = FastEncoder.of(model)
    if encoder is None:
        assert recipe not in TAKEN
        return
    assert isinstance(encoder._ranking, torch.jit.ScriptModule), "it is not compiled"
    check_states(model, encoder)
    check_lists(model, encoder)


def settings() -> list[Recommender]:
    """Every setting of the encoders, at small sizes; without numbers, which are the model's to hold."""
    plain_hstu = HSTU(gate=False, rel_bias="none", rope=True)
    bases: list[Any] = [Softmax(), HSTU(), plain_hstu, HSTU(causal=False, norm="rms")]
    encoders: list[Any] = [Transformer(attention=one) for base in bases for one in reachable(base, 1, numbers=False)]
    for norm_at in ("pre", "post"):
        encoders += reachable(Transformer(attention=Softmax(bias=True), norm_at=norm_at), 1, numbers=False)
        encoders += reachable(Transformer(feed_forward="mlp", norm="layer", norm_at=norm_at), 1, numbers=False)
    encoders += [GRU(), GRU(layers=2, hidden=24)]
    encoders += [FMLP(), FMLP(layers=3, positions="none"), FMLP(causal=False)]
    specs = dict.fromkeys(Recommender(dim=16, encoder=one) for one in encoders)
    return [spec if causal(spec) else spec.override(f"task={WITHOUT_CAUSE[type(spec.encoder)]}") for spec in specs]


WITHOUT_CAUSE: dict[type, str] = {Transformer: "cloze", FMLP: "last_item"}
"""A task of encoders that are not causal."""


def causal(spec: Recommender) -> bool:
    encoder: Any = spec.encoder.attention if isinstance(spec.encoder, Transformer) else spec.encoder
    return bool(getattr(encoder, "causal", True))


def test_every_setting_of_the_encoders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not compiled: that takes a second each, and computes the same."""
    monkeypatch.setattr(fast, "compiled", lambda module: module)
    monkeypatch.setattr(FastEncoder, "_warm_up", lambda encoder: None)
    taken = 0
    for spec in settings():
        model = made(spec, 60)
        encoder = FastEncoder.of(model)
        if encoder is not None:
            taken += 1
            histories = some((1, 4, 60, 17, 50, 2), 60)
            off = (encoder.states_of(*listed(histories)) - own_states(model, histories)).abs().max()
            assert float(off) < 1e-5, f"{spec.encoder!r}: off by {float(off)}"
    assert taken > 40


def taken(model: RecommenderModel) -> FastEncoder:
    encoder = FastEncoder.of(model)
    assert encoder is not None
    return encoder


@pytest.fixture(scope="module")
def small() -> tuple[RecommenderModel, FastEncoder]:
    model = made(Recommender(dim=16, scoring=Scoring(similarity="cosine", temperature=0.05)), 3000)
    return model, taken(model)


@pytest.mark.parametrize("rows", [1, 3, 16])
def test_filters_hold_before_the_list_is_cut(small: tuple[RecommenderModel, FastEncoder], rows: int) -> None:
    model, encoder = small
    draw, histories = np.random.default_rng(rows), some(tuple(range(1, rows + 1)), 3000)
    items, _ = listed(histories)
    hidden = [np.concatenate([row, draw.integers(0, 3000, 40)]) for row in items]
    refused_, barred = [None if i % 2 else draw.random(3000) < 0.9 for i in range(rows)], draw.random(3000) < 0.5
    vectors = model.items.all().detach()
    scores, ids = encoder.with_items(vectors, barred).lists_of(items, 30, hidden=hidden, refused=refused_)
    excluded = []
    for row, mask in zip(hidden, refused_, strict=True):
        excluded.append(np.union1d(row, np.flatnonzero(mask if mask is not None else [])).astype(int).tolist())
    wanted = rank(model, histories, k=30, filters=Filters(Jagged.from_lists(excluded), barred))
    assert np.array_equal(ids, wanted.ids) and np.allclose(scores, wanted.scores, atol=1e-4)
    assert (ids >= 0).all(), "a list stays full while enough items remain"


def test_places_without_an_item(small: tuple[RecommenderModel, FastEncoder]) -> None:
    _, encoder = small
    all_but = np.ones(3000, bool)
    all_but[[5, 70]] = False
    scores, ids = encoder.lists_of([np.array([1, 2])] * 2, 4, refused=[all_but, None])
    assert sorted(ids[0, :2]) == [5, 70] and ids[0, 2:].tolist() == [-1, -1] and (ids[1] >= 0).all()
    assert np.isneginf(scores[0, 2:]).all() and np.isfinite(scores[0, :2]).all()
    model = made(Recommender(dim=16), 3)
    _, few = taken(model).lists_of([np.array([0])], 5, hidden=[np.array([0])])
    assert few.shape == (1, 5) and sorted(few[0]) == [-1, -1, -1, 1, 2]


def test_equal_scores_are_in_order_of_their_ids(small: tuple[RecommenderModel, FastEncoder]) -> None:
    model, encoder = small
    vectors = model.items.all().detach().clone()
    vectors[10:] = vectors[torch.arange(2990) % 7]
    for rows in (1, 16):
        scores, ids = encoder.with_items(vectors).lists_of([np.array([1, 2])] * rows, 50)
        assert (np.diff(scores) <= 0).all() and len(np.unique(scores[0])) < 10
        assert (np.diff(ids)[np.diff(scores) == 0] > 0).all()
        first = ids[0][scores[0] == scores[0, 0]]
        everything_equal = np.flatnonzero((vectors == vectors[first[0]]).all(1).numpy())
        assert np.array_equal(first, everything_equal[: len(first)])


@torch.inference_mode()
def lists_of(items: Searched, vectors: torch.Tensor, k: int, hidden: list) -> tuple:
    best = fast_search.compiled(fast_search.Best())
    return cut(len(vectors), k, items, hidden, None, lambda rows, some: best(vectors[rows], items, k, some))


@pytest.mark.parametrize("items, rows", [(5, 2), (300, 1), (2999, 16), (3000, 3)])
def test_search_of_vectors_is_the_exact_one(items: int, rows: int) -> None:
    """For what has vectors of its own, such as a reasoner: with ties, hidden and barred items, at odd sizes."""
    draw = np.random.default_rng(items)
    table = torch.from_numpy(draw.integers(-2, 3, (items, 4))).float()
    vectors = torch.from_numpy(draw.integers(-2, 3, (rows, 4))).float()
    hidden = [draw.integers(0, items, n) for n in range(rows)]
    barred = draw.random(items) < 0.3
    filters = Filters(Jagged.from_lists([row.tolist() for row in hidden]), barred).of_batch(None)
    scores, ids = top_k(DenseScorer(vectors, table), 12, filters=filters)
    found = lists_of(barring(searched_items(table), barred), vectors, 12, hidden)
    assert np.array_equal(found[1], ids.numpy()) and np.array_equal(found[0], scores.numpy())


def test_items_that_came_later(small: tuple[RecommenderModel, FastEncoder]) -> None:
    """They are read in a history and found in a list; the encoder that was there before does not know them."""
    model, encoder = small
    old = model.items.all().detach()
    grown = encoder.with_items(torch.cat([old, old[[8]]]))
    like, new = (one.lists_of([np.array([3, item])], 20)[1] for one, item in ((grown, 8), (grown, 3000)))
    assert np.array_equal(like, new) and len(grown.searched.table) == 3001 and len(encoder.searched.table) == 3000
    at = int(encoder.lists_of([np.array([3])], 1)[1][0, 0])
    _, ids = encoder.with_items(torch.cat([old, old[[at]]])).lists_of([np.array([3])], 2)
    assert ids.tolist() == [[at, 3000]]


def test_many_rows_are_parts(small: tuple[RecommenderModel, FastEncoder], monkeypatch: pytest.MonkeyPatch) -> None:
    _, encoder = small
    items, _ = listed(some((5,) * 7, 3000))
    masks = [np.arange(3000) % 7 == i for i in range(7)]
    whole = encoder.lists_of(items, 9, hidden=items, refused=masks)
    monkeypatch.setattr(fast_search, "SCORES", 6001)
    parts = encoder.lists_of(items, 9, hidden=items, refused=masks)
    assert np.array_equal(whole[1], parts[1]) and np.allclose(whole[0], parts[0], atol=1e-5)


def test_nan_scores_are_refused(small: tuple[RecommenderModel, FastEncoder]) -> None:
    model, encoder = small
    broken = encoder.with_items(model.items.all().detach() * torch.nan)
    with refused("nan-scores"):
        broken.lists_of([np.array([1])], 3)


def test_others_fall_back() -> None:
    assert FastEncoder.of(object()) is None
    assert FastEncoder.of(made(Recommender(dim=16)).double()) is None


def test_a_planted_fault_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Events that see their neighbours' histories, a final layer that reads the first event, other weights."""
    model = made(Recommender(dim=16, encoder=Transformer(attention=Softmax(bias=True), norm="layer")))
    monkeypatch.setattr(fast, "compiled", lambda module: module)
    check_states(model, taken(model))
    layout = packed_encoders.PackedTransformer.layout

    def leaky(self: Any, *arguments: Any) -> Any:
        found = layout(self, *arguments)
        return found._replace(chunks=[one._replace(among=torch.zeros_like(one.among)) for one in found.chunks])

    def first(self: Any, *arguments: Any) -> Any:
        found = layout(self, *arguments)
        return found._replace(last=found.last - found.places[found.last])

    for fault in (leaky, lambda self, *a: layout(self, *a)._replace(to_come=layout(self, *a).places * 0), first):
        with monkeypatch.context() as patch, pytest.raises(AssertionError, match="off by"):
            patch.setattr(packed_encoders.PackedTransformer, "layout", fault)
            changed = made(Recommender(dim=16, encoder=Transformer(positions_from="end")))
            check_states(changed, taken(changed))
    before = taken(model)
    shaken(model, 0.1, seed=2)
    with pytest.raises(AssertionError, match="off by"):
        check_states(model, before)
    with pytest.raises(AssertionError):
        check_lists(model, before)


def test_cloze_reads_one_event_less() -> None:
    """The covered place takes one of the positions."""
    attention = Softmax(causal=False)
    model = made(Recommender(dim=16, max_length=6, encoder=Transformer(attention=attention), task=Cloze()))
    histories = some((5, 6, 9))
    found = taken(model).states_of(*listed(histories))
    assert float((found - own_states(model, histories)).abs().max()) < 1e-5


DOCUMENTS = {
    "new": {"id": "new", "title": "Rose soap number 990", "features": {"in_stock": True, "category": "soap"}},
    "i25": {"id": "i25", "retired": True},
}


def opened(shop: Shop, documents: dict | None = None, **settings) -> ServedModel:
    made = ServeSettings.parse({"run": str(shop.run.path), **settings})
    return ServedModel.open(shop.run.path, made, documents or {})


def answers(model: ServedModel, requests: list = REQUESTS) -> list:
    asked = map(RecommendRequest.model_validate, requests)
    return model.answer([model.read(request, request_history(request) or []) for request in asked])


def lists(model: ServedModel) -> list:
    return [[model.items.ids[item] for item in answer.ids] for answer in answers(model)]


@pytest.mark.parametrize("documents", [{}, DOCUMENTS], ids=["plain", "changed"])
def test_an_index_and_a_graph_find_what_is_exact(shop: Shop, tmp_path: Path, documents: dict) -> None:
    exact = opened(shop, documents)
    assert exact.state.finder.fast is not None and exact.state.finder.index is None
    expected = lists(exact)
    slow = opened(shop, documents)
    slow.state = replace(slow.state, finder=Finder(slow.predictor).barring(slow.items.barred))
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
