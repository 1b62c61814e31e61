"""Searches among semantic ids: at full width each is the exhaustive one; narrower ones return what they say."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from fakes import ragged
from fullrank.data.events.catalog import Catalog
from fullrank.inference.code_search import BeamSearch, Candidates, GraphSearch, nearest_items, own_scores, product_beam
from fullrank.inference.exact import top_k
from fullrank.inference.filters import BatchFilter
from fullrank.inference.pruned import PrunedSearch
from fullrank.inference.rank import rank
from fullrank.inference.search import Decoding, search_of
from fullrank.models.sequential.items.semantic import CodeScorer, Semantic, SemanticItems, log_probabilities
from fullrank.models.sequential.model import Recommender, RecommenderModel, Scoring
from fullrank.models.sequential.objectives.tasks.semantic_tokens import SemanticTokens
from refusals import refused
from tiny import catalog, close, histories, padded, shaken

V, SIZES = 50, (5, 3, 7)


def coded_catalog(same: int = 0) -> Catalog:
    """Fifty items with codes drawn at random; the last `same` of them have the first one's."""
    rng = np.random.default_rng(3)
    codes = np.stack([rng.integers(0, size, V) for size in SIZES], 1).astype(np.uint16)
    codes[V - same :] = codes[0]
    frame = catalog(V).frame.with_columns(
        codes=pl.Series(codes, dtype=pl.Array(pl.UInt16, 3)),
        code_sizes=pl.Series([list(SIZES)] * V, dtype=pl.Array(pl.Int32, 3)),
    )
    return Catalog(frame)


def model(same: int = 0) -> RecommenderModel:
    spec = Recommender(
        dim=8, items=Semantic(), task=SemanticTokens(), scoring=Scoring(similarity="cosine", temperature=0.3)
    )
    return shaken(spec.build(coded_catalog(same))).eval()  # type: ignore[return-value]


def answered(of: RecommenderModel, users: int = 6) -> CodeScorer:
    with torch.inference_mode():
        answer = of.answer(padded(histories([3, 1, 5, 2, 4, 6][:users], V)))
    assert isinstance(answer, CodeScorer)
    return answer


def exhaustive(answer: CodeScorer, rows: torch.Tensor, k: int, seen: set[tuple[int, int]]) -> torch.Tensor:
    """Every item's codes added up in float64 and sorted, in Python."""
    found = []
    for user, levels in enumerate(answer.levels.T.double()):
        scores = {i: sum(float(levels[place]) for place in row) for i, row in enumerate(rows)}
        kept = sorted((i for i in scores if (user, i) not in seen), key=lambda i: (-round(scores[i], 5), i))
        found.append([*kept[:k], *[-1] * (k - len(kept))])
    return torch.tensor(found)


SEEN = {(0, 3), (0, 7), (2, 49), (5, 0), (5, 1)}


@pytest.mark.parametrize("same", [0, 4])
@pytest.mark.parametrize("k", [1, 10, 49])
@pytest.mark.parametrize("seen", [set(), SEEN])
def test_every_search_at_full_width_is_the_exhaustive_one(same: int, k: int, seen: set[tuple[int, int]]) -> None:
    made = model(same)
    answer, items = answered(made), made.items
    pairs = BatchFilter.of(*np.array(sorted(seen), dtype=np.int64).reshape(-1, 2).T) if seen else None
    wanted = exhaustive(answer, answer.rows, k, seen)
    every = {
        "exact": top_k(answer, k, filters=pairs, block=17),
        "graph": GraphSearch(items, beams=V, edges=V, steps=1)(answer, k, pairs),
        "beam": BeamSearch(items, beams=5 * 3 * 7)(answer, k, pairs),
        "pruned": PrunedSearch(items, codes=2)(answer, k, pairs),
    }
    for name, (scores, ids) in every.items():
        assert torch.equal(ids, wanted), name
        there = ids >= 0
        assert close(scores[there], answer.block(0, V).gather(1, ids.clamp_min(0))[there])
        assert (scores[~there] == -torch.inf).all()


def test_narrow_searches_return_existing_unseen_items_once() -> None:
    made = model(4)
    answer = answered(made)
    pairs = BatchFilter.of(*np.array(sorted(SEEN), dtype=np.int64).T)
    beam = BeamSearch(made.items, beams=2)
    for search in (GraphSearch(made.items, beams=6, edges=3, steps=2), beam):
        scores, ids = search(answer, 6, pairs)
        for user, row in enumerate(ids.tolist()):
            real = [i for i in row if i >= 0]
            assert len(set(real)) == len(real) and not {(user, i) for i in real} & SEEN
        assert close(scores[ids >= 0], answer.block(0, V).gather(1, ids.clamp_min(0))[ids >= 0])
    assert beam.padded > 0 and (beam(answer, 6, pairs)[1] >= 0).all(), "a beam's lists are filled up"


def test_neighbours_are_the_most_alike_items() -> None:
    items = model().items
    assert isinstance(items, SemanticItems)
    found = nearest_items(items, 5)
    table = torch.nn.functional.normalize(items.table.detach(), dim=-1)
    vectors = table[items.codes + items.offsets]
    alike = (1 + torch.einsum("ikd,jkd->ijk", vectors, vectors)).mean(-1) / 2
    assert close(alike.gather(1, found), alike.topk(5).values)
    assert close(alike.gather(1, found[:, :1])[:, 0], torch.ones(V)), "an item is like itself"


def test_product_beam_is_the_best_of_all_tuples() -> None:
    levels = tuple(torch.randn(size, 3) for size in SIZES)
    codes = product_beam(levels, 20)
    a, b, c = (level.T for level in levels)
    best = (a[:, :, None, None] + b[:, None, :, None] + c[:, None, None, :]).flatten(1).topk(20).values
    got = sum(level.T.gather(1, codes[:, :, i]) for i, level in enumerate(levels))
    assert close(got, best), "levels are independent, so a beam that is wide enough for each level loses nothing"


def test_candidates_count_an_item_once() -> None:
    answer = answered(model())
    found = Candidates.of(answer, torch.tensor([[4, -1, 4, 2]] * 6))
    assert found.items.tolist() == [[-1, 2, 4, 4]] * 6
    assert found.scores.isfinite().tolist() == [[False, True, True, False]] * 6
    items = torch.arange(12).view(6, 2)
    assert torch.equal(own_scores(answer, items), answer.block(0, V).gather(1, items))


def test_hidden_pairs_are_refused() -> None:
    seen = BatchFilter.of(np.array([0, 1, 1]), np.array([5, 5, 2]))
    assert seen.refuses(torch.tensor([[5, 2], [2, 5]])).tolist() == [[True, False], [True, True]]
    nothing = BatchFilter.of(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))
    assert not nothing.refuses(torch.tensor([[5, 2]])).any()


def test_through_rank() -> None:
    made, histories = model(), ragged([[1, 2], [3, 9, 4]])
    exact = rank(made, histories, k=5)
    for settings in ({"kind": "graph", "beams": V, "edges": V}, {"kind": "beam", "beams": 105}, {"kind": "pruned"}):
        found = rank(made, histories, k=5, decoding=Decoding(**settings))  # type: ignore[arg-type]
        assert np.array_equal(found.ids, exact.ids) and np.allclose(found.scores, exact.scores, atol=1e-5)


@pytest.mark.parametrize("settings", [{"kind": "graph"}, {"kind": "beam"}, {"kind": "pruned"}])
def test_models_without_codes_are_refused(settings: dict[str, Any]) -> None:
    with refused("decoding-needs-codes"):
        search_of(Recommender(dim=8).build(catalog()), Decoding(**settings), 10)
    with refused("decoding-needs-codes", settings["kind"]):
        search_of(Recommender(dim=8).build(coded_catalog()), Decoding(**settings), 10)


def peaked(users: int, sharp: float) -> tuple[SemanticItems, CodeScorer]:
    """Items of many codes, and users who like the codes of one item much better than others."""
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 16, (4000, 4)).astype(np.uint16)
    frame = catalog(4000).frame.with_columns(
        codes=pl.Series(codes, dtype=pl.Array(pl.UInt16, 4)),
        code_sizes=pl.Series([[16] * 4] * 4000, dtype=pl.Array(pl.Int32, 4)),
    )
    items = Semantic().build(8, Catalog(frame))
    logits = [torch.randn(users, 16, generator=torch.Generator().manual_seed(k)) * sharp for k in range(4)]
    return items, CodeScorer(log_probabilities(logits), items.sizes, items.codes + items.offsets)


@pytest.mark.parametrize(("sharp", "k", "whole"), [(3.0, 10, 0), (0.01, 4000, 5)])
def test_pruning_scores_few_items_where_users_are_decided(sharp: float, k: int, whole: int) -> None:
    items, answer = peaked(5, sharp)
    search = PrunedSearch(items, codes=1)
    assert torch.equal(search(answer, k, None)[1], top_k(answer, k)[1])
    assert search.scanned == whole and (search.scored < 5 * 4000 / 2) == (whole == 0)


@pytest.mark.parametrize("parts", ["mean", "sum", "concat"])
def test_pruning_serves_any_task_on_items_of_codes(parts: Any) -> None:
    catalogue = coded_catalog(4)
    made = shaken(Recommender(dim=12, items=Semantic(parts=parts)).build(catalogue)).eval()
    histories = ragged([[1, 2], [3, 9, 4]])
    exact = rank(made, histories, k=8)
    found = rank(made, histories, k=8, decoding=Decoding(kind="pruned", codes=3))
    assert np.array_equal(found.ids, exact.ids) and np.allclose(found.scores, exact.scores, atol=1e-5)


def test_pruning_refuses_a_cosine_of_whole_items_and_nan() -> None:
    cosine = Recommender(dim=12, items=Semantic(), scoring=Scoring(similarity="cosine")).build(coded_catalog())
    with refused("decoding-needs-inner-products", "similarity=dot"):
        rank(cosine.eval(), ragged([[1, 2]]), k=3, decoding=Decoding(kind="pruned"))
    items, answer = peaked(2, 1.0)
    with refused("nan-scores"):
        PrunedSearch(items, codes=1)(CodeScorer(answer.levels.fill_(torch.nan), answer.sizes, answer.rows), 3, None)


def test_settings() -> None:
    for wrong in ("beams=3", "edges=3"):
        with refused("setting-without-effect", "kind=exact"):
            Decoding().override(wrong)
    with refused("setting-without-effect", "kind=beam"):
        Decoding(kind="beam").override("steps=3")
    assert Decoding(kind="graph", edges=7).described() == {"kind": "graph", "beams": 100, "edges": 7, "steps": 3}
    search = search_of(model(), Decoding(kind="graph", beams=4), 10)
    assert (search(answered(model()), 5, None)[1] >= 0).all(), "lists longer than what is held are full, too"


def test_log_probabilities_of_a_level_sum_to_one() -> None:
    levels = log_probabilities([torch.randn(4, size) for size in SIZES])
    assert all(close((part * 3).exp().sum(0), torch.ones(4)) for part in levels.split(SIZES))
