"""Searches among semantic ids: at full width each is the exhaustive one; narrower ones return what they say."""

from typing import Any

import numpy as np
import pytest
import torch

from fakes import ragged
from fullrank.inference.code_search import (
    BeamSearch,
    Candidates,
    GraphSearch,
    PrunedSearch,
    nearest_items,
    own_scores,
    product_beam,
)
from fullrank.inference.exact import top_k
from fullrank.inference.filters import BatchFilter
from fullrank.inference.recommend import rank
from fullrank.inference.search import Decoding, search_of
from fullrank.models.sequential.items.semantic import CodeScorer, Semantic, SemanticItems, log_probabilities
from fullrank.models.sequential.model import Recommender, RecommenderModel, Scoring
from fullrank.models.sequential.objectives.tasks.semantic_tokens import SemanticTokens
from refusals import refused
from tiny import catalog, close, coded_catalog, histories, padded, shaken

V, SIZES = 50, (5, 3, 7)


def model(same: int = 0) -> RecommenderModel:
    spec = Recommender(
        dim=8, items=Semantic(), task=SemanticTokens(), scoring=Scoring(similarity="cosine", temperature=0.3)
    )
    return shaken(spec.build(coded_catalog(V, SIZES, same))).eval()  # type: ignore[return-value]


def answered(of: RecommenderModel) -> CodeScorer:
    with torch.inference_mode():
        answer = of.answer(padded(histories([3, 1, 5, 2, 4, 6], V)))
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


@pytest.mark.parametrize("kind", ["graph", "beam", "pruned"])
def test_models_without_codes_are_refused(kind: Any) -> None:
    for items in (catalog(), coded_catalog(V, SIZES)):
        with refused("decoding-needs-codes", kind):
            search_of(Recommender(dim=8).build(items), Decoding(kind=kind), 10)


def peaked(users: int, sharp: float) -> tuple[SemanticItems, CodeScorer]:
    """Items of many codes, and users who like the codes of one item much better than others."""
    items = Semantic().build(8, coded_catalog(4000, (16,) * 4))
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
    catalogue = coded_catalog(V, SIZES, 4)
    made = shaken(Recommender(dim=12, items=Semantic(parts=parts)).build(catalogue)).eval()
    histories = ragged([[1, 2], [3, 9, 4]])
    exact = rank(made, histories, k=8)
    found = rank(made, histories, k=8, search=Decoding(kind="pruned", codes=3))
    assert np.array_equal(found.ids, exact.ids) and np.allclose(found.scores, exact.scores, atol=1e-5)


def test_pruning_refuses_a_cosine_of_whole_items_and_nan() -> None:
    cosine = Recommender(dim=12, items=Semantic(), scoring=Scoring(similarity="cosine")).build(coded_catalog(V, SIZES))
    with refused("decoding-needs-inner-products", "similarity=dot"):
        rank(cosine.eval(), ragged([[1, 2]]), k=3, search=Decoding(kind="pruned"))
    items, answer = peaked(2, 1.0)
    with refused("nan-scores"):
        PrunedSearch(items, codes=1)(CodeScorer(answer.levels.fill_(torch.nan), answer.sizes, answer.rows), 3, None)


def test_settings() -> None:
    for kind, wrong in (("exact", "beams=3"), ("exact", "edges=3"), ("beam", "steps=3")):
        with refused("setting-without-effect", f"kind={kind}"):
            Decoding().override(f"kind={kind}", wrong)
    assert Decoding(kind="graph", edges=7).described() == {"kind": "graph", "beams": 100, "edges": 7, "steps": 3}
    search = search_of(model(), Decoding(kind="graph", beams=4), 10)
    assert (search(answered(model()), 5, None)[1] >= 0).all(), "lists longer than what is held are full, too"


def test_log_probabilities_of_a_level_sum_to_one() -> None:
    levels = log_probabilities([torch.randn(4, size) for size in SIZES])
    assert all(close((part * 3).exp().sum(0), torch.ones(4)) for part in levels.split(SIZES))
