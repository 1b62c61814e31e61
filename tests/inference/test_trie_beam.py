"""Generation over the trie: as wide as the catalogue it is the exhaustive search, under every filter; narrower it stays
full, and nothing that it gives does not exist."""

from typing import Any

import numpy as np
import pytest
import torch

from fullrank.core.jagged import Jagged
from fullrank.inference.exact import top_k
from fullrank.inference.filters import BatchFilter, Filters
from fullrank.inference.search import Decoding, search_of
from fullrank.inference.trie_beam import TrieBeam
from fullrank.models.sequential.attention.softmax import Softmax
from fullrank.models.sequential.encoders.gru import GRU
from fullrank.models.sequential.encoders.transformer import Transformer
from fullrank.models.sequential.items.semantic import Semantic, SemanticItems
from fullrank.models.sequential.model import Recommender, RecommenderModel, Scoring
from fullrank.models.sequential.objectives.tasks.generate import Generate, GeneratedScorer
from refusals import refused
from tiny import close, coded_catalog, histories, padded, shaken

V, SIZES = 60, (5, 4, 6)
ROTARY = Transformer(attention=Softmax(rope=True), positions="none", layers=2)


def model(same: int = 0, sizes: tuple[int, ...] = SIZES, **settings: Any) -> RecommenderModel:
    chosen = {"dim": 8, "encoder": ROTARY, "items": Semantic(), "task": Generate(), **settings}
    made = Recommender(**chosen).build(coded_catalog(V, sizes, same))
    return shaken(made).eval()  # type: ignore[return-value]


def beam(of: RecommenderModel, beams: int = V) -> TrieBeam:
    assert isinstance(of.items, SemanticItems)
    return TrieBeam(of.items, beams=beams)


def answered(of: RecommenderModel) -> GeneratedScorer:
    with torch.inference_mode():
        answer = of.answer(padded(histories([3, 1, 5, 2, 4, 6], V)))
    assert isinstance(answer, GeneratedScorer)
    return answer


ENCODERS = [
    pytest.param({}, id="rotary"),
    pytest.param({"encoder": GRU(layers=2, hidden=6)}, id="gru"),
    pytest.param({"scoring": Scoring(similarity="cosine", temperature=0.2)}, id="cosine"),
]


@pytest.mark.parametrize("settings", ENCODERS)
def test_scores_are_those_of_teacher_forcing(settings: dict[str, Any]) -> None:
    """The score of an item is what training says of it behind the same history, code by code."""
    made = model(**settings)
    rows = histories([3, 1, 5], V)
    with torch.inference_mode():
        answer = made.answer(padded(rows))
        scores = answer.block(0, V)
        for item in (0, 7, 59):
            step = made.step(padded([[*row, item] for row in rows]))
            asked = [record.losses for record in step.records.values()]
            ends = torch.tensor([len(row) for row in rows]).cumsum(0) - 1  # of each row's predictions the last
            assert close(scores[:, item], -sum(losses[ends] for losses in asked))


def filters_of(kind: str) -> BatchFilter | None:
    """Of six users."""
    rng = np.random.default_rng(1)

    def lists(*lengths: int) -> Jagged:
        return Jagged.from_lists([rng.choice(V, n, replace=False).tolist() for n in lengths])

    seen, many, allowed = lists(*[4] * 6), lists(*[50] * 6), lists(30, 3, 1, 60, 12, 20)
    stock, genre = rng.random(V) < 0.5, rng.random(V) < 0.7
    chosen: dict[str, Filters] = {
        "none": Filters(),
        "seen": Filters(),
        "most hidden": Filters(excluded=many),
        "allow": Filters(allowed=allowed),
        "barred": Filters(barred=stock),
        "masks": Filters(masks=((np.array([0, 2, 3]), stock), (np.array([3, 4]), genre))),
        "all": Filters(excluded=seen, barred=stock, allowed=allowed, masks=((np.array([0, 2, 3]), genre),)),
    }
    return chosen[kind].of_batch({"none": None, "all": many}.get(kind, seen))


KINDS = ["none", "seen", "most hidden", "allow", "barred", "masks", "all"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("same", [0, 5])
@pytest.mark.parametrize("sizes", [SIZES, (60,), (3, 4, 2, 5)])
def test_as_wide_as_the_catalogue_it_is_the_exhaustive_search(kind: str, same: int, sizes: tuple[int, ...]) -> None:
    made = model(same, sizes)
    answer, filters = answered(made), filters_of(kind)
    for k in (1, 10, V):
        wanted = top_k(answer, k, filters=filters)
        found = beam(made)(answer, k, filters)
        assert torch.equal(found[1], wanted[1]) and close(found[0], wanted[0])


@pytest.mark.parametrize("kind", KINDS)
def test_a_narrow_beam_gives_full_lists_of_items_that_exist(kind: str) -> None:
    made = model(3)
    answer, filters = answered(made), filters_of(kind)
    every = answer.block(0, V)
    for k, beams in ((1, 1), (5, 2), (10, 10)):
        scores, ids = beam(made, beams)(answer, k, filters)
        hidden = torch.zeros(6, V).bool() if filters is None else filters.refuses(torch.arange(V).expand(6, -1))
        there, items = ids >= 0, ids.clamp_min(0)
        assert torch.equal(there.sum(1), (~hidden).sum(1).clamp_max(k)), "as many as there are, up to k"
        assert close(scores[there], every.gather(1, items)[there]) and not hidden.gather(1, items)[there].any()
        assert all(len(set(row[row >= 0].tolist())) == int((row >= 0).sum()) for row in ids), "no item twice"


def test_users_of_a_batch_do_not_change_each_other() -> None:
    made = model()
    search = beam(made, 4)
    together = search(answered(made), 4, None)
    for i, row in enumerate(histories([3, 1, 5, 2, 4, 6], V)):
        with torch.inference_mode():
            alone = search(made.answer(padded([row])), 4, None)  # type: ignore[arg-type]
        assert torch.equal(alone[1][0], together[1][i]) and close(alone[0][0], together[0][i])


def test_what_is_kept_of_masks_is_not_taken_for_other_masks() -> None:
    """Counts of a mask serve the next batch; a mask that was changed in place, or another one, is counted anew."""
    made = model()
    answer, search = answered(made), beam(made)
    stock, rows = np.arange(V) % 2 == 0, np.arange(3)
    for _ in range(4):
        for filters in (Filters(barred=stock), Filters(masks=((rows, stock), (rows + 3, ~stock)))):
            asked = filters.of_batch(None)
            found, wanted = search(answer, V, asked), top_k(answer, V, filters=asked)
            assert torch.equal(found[1], wanted[1]) and close(found[0], wanted[0])
        stock[:20] = ~stock[:20]


def test_what_cannot_be_generated_is_refused() -> None:
    made = model()
    with refused("decoding-needs-independent-codes", "graph", "beam"):
        search_of(made, Decoding(kind="graph"), 64)
    with refused("encoder-does-not-continue", "model.encoder.positions=none"):
        model(encoder=Transformer())
    with refused("items-not-codes", "model.items.kind=semantic"):
        model(items=Semantic(parts="concat"), dim=6)
