"""What a recommender answers: from the weights as they are, with the scores that training compares."""

import pytest
import torch

from fullrank.models import DenseScorer, Model
from fullrank.models.sequential.attention.softmax import Softmax
from fullrank.models.sequential.encoders.gru import GRU
from fullrank.models.sequential.encoders.transformer import Transformer
from fullrank.models.sequential.items.features import Features
from fullrank.models.sequential.model import Recommender, Scoring
from fullrank.models.sequential.objectives.tasks.cloze import Cloze
from fullrank.models.sequential.objectives.tasks.next_item import NextItem
from fullrank.testing.inputs import EXAMPLES
from tiny import close, padded, plain
from whole import V, build, pattern, scores


@pytest.mark.parametrize("similarity", ["dot", "cosine"])
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("items", ["table", "features"])
def test_answers_follow_the_weights(items: str, fused: bool, similarity: str) -> None:
    """After a step, a loaded state or a weight set by hand, the table searched is the new one."""
    scoring = Scoring(similarity=similarity, temperature=0.5)
    spec = Recommender(dim=8, items=plain(("items", items)), encoder=GRU(dropout=0.0), scoring=scoring)
    model, twin = build(spec).eval(), build(spec, seed=1).eval()
    optimizer = torch.optim.AdamW(model.items.parameters(), lr=0.1, fused=fused)
    seen = [scores(model)]

    def moved() -> None:
        with torch.no_grad():
            held = model.answer(pattern(), index=model.index_items()).block(0, V)
        seen.append(scores(model))
        assert torch.equal(held, seen[-1])
        assert all(not close(seen[-1], old) for old in seen[:-1])

    for _ in range(2):
        sum(model(pattern()).values()).backward()
        optimizer.step()
        moved()
    model.load_state_dict(twin.state_dict())
    moved()
    assert torch.equal(seen[-1], scores(twin))
    with torch.no_grad():
        next(model.items.parameters()).mul_(2.0)
    moved()


def test_an_index_is_made_once_for_many_answers() -> None:
    """And is of the weights as they were."""
    items = Features(**EXAMPLES["features"])
    model = build(Recommender(dim=8, items=items, encoder=GRU(dropout=0.0))).eval()
    index = model.index_items()
    with torch.no_grad():
        assert model.answer(pattern(), index=index).table is model.answer(padded([[1]]), index=index).table
        assert model.answer(pattern()).table is not model.answer(pattern()).table
        before = index.all().clone()
        next(model.items.parameters()).add_(1.0)
    assert torch.equal(index.all(), before) and not close(model.index_items().all(), before)


def test_answers_have_gradients_where_they_are_asked_for() -> None:
    model = build(Recommender(dim=8)).eval()
    scores(model)
    model.answer(pattern()).block(0, V).sum().backward()
    assert model.items.embedding.weight.grad is not None


def test_answer() -> None:
    """Inner product over the temperature; of unit vectors where it is cosine."""
    for similarity in ("dot", "cosine"):
        spec = Recommender(dim=8, scoring=Scoring(similarity=similarity, temperature=0.25), encoder=GRU(dropout=0.0))
        model = build(spec).eval()
        assert isinstance(model, Model)
        with torch.no_grad():
            batch = pattern()
            answer = model.answer(batch)
            states = model.encoder(model.items.embed(batch.items), batch).tokens
            vectors = states[torch.arange(V), batch.lengths - 1]
            table = model.items.all()
            if similarity == "cosine":
                vectors, table = (x / x.norm(dim=1, keepdim=True) for x in (vectors, table))
        assert isinstance(answer, DenseScorer) and answer.size == V
        assert close(answer.block(2, 7), (vectors @ table.T / 0.25)[:, 2:7])


def test_training_scores_what_inference_ranks() -> None:
    """The loss's positive score is the answer's score of the target."""
    for scoring in (Scoring(temperature=2.0), Scoring(similarity="cosine", temperature=0.1)):
        model = build(Recommender(dim=8, scoring=scoring, encoder=Transformer(dropout=0.0))).eval()
        with torch.no_grad():
            step = model.step(padded([[1, 2, 3, 4]]))
            answered = model.answer(padded([[1, 2, 3]])).block(0, V)
        positive = step.records["ahead_1"].positive
        assert positive is not None and abs(float(positive[-1] - answered[0, 4])) < 1e-5


PARTS = (
    Recommender(dim=8, task=NextItem(horizons=3)),
    Recommender(dim=8, items=Features(**EXAMPLES["features"]), encoder=GRU()),
    Recommender(dim=8, task=Cloze(), encoder=Transformer(attention=Softmax(causal=False))),
)


def test_state_is_whole() -> None:
    """A model built anew from the spec and the state answers the same."""
    for spec in PARTS:
        model = build(spec)
        again = build(spec, seed=9)
        assert not torch.equal(scores(model.eval()), scores(again.eval()))
        again.load_state_dict(model.state_dict())
        assert torch.equal(scores(model.eval()), scores(again.eval()))
