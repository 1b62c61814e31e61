"""The whole model: every combination of parts learns a small pattern; shards add up; answers follow the weights."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from discover import everything
from fullrank.attention.softmax import Softmax
from fullrank.batch import Batch, Dense, Model, Record
from fullrank.data.loader import Loader
from fullrank.encoders.gru import GRU
from fullrank.encoders.transformer import Transformer
from fullrank.errors import UserError
from fullrank.items.features import Features
from fullrank.objectives.losses.bce import BCE
from fullrank.objectives.losses.gbce import GBCE
from fullrank.objectives.losses.sampled_softmax import SampledSoftmax
from fullrank.objectives.negatives import Negatives
from fullrank.objectives.tasks.cloze import Cloze
from fullrank.objectives.tasks.last_item import LastItem
from fullrank.objectives.tasks.next_item import NextItem
from fullrank.objectives.weightings.inverse_popularity import InversePopularity
from fullrank.recommender import Recommender, RecommenderModel, Scoring
from fullrank.regularizers.logdet import LogDet
from tiny import SETTINGS, catalog, close, padded, plain, shaken, store

V = 12


def pattern(step: int = 0) -> Batch:
    """Every item is followed by the next one on a circle; rows start and end elsewhere in each step."""
    return padded([[(start + t) % V for t in range(3 + (start + step) % 4)] for start in range(V)], step=step)


def encoders(task: Any) -> list[Any]:
    """One shallow encoder of each kind that suits a task."""
    causal = task.kind_of() != "cloze"
    found = []
    for pair in everything("encoders"):
        spec = plain(pair).override("dropout=0.0", "layers=1")
        if hasattr(spec, "attention"):
            found.append(spec.override(f"attention.causal={causal}", "positions_from=end"))
        elif causal:
            found.append(spec)
    return found


def small(kind: str) -> Any:
    """A loss with few negatives."""
    loss = plain(("objectives.losses", kind))
    if hasattr(loss, "negatives"):
        return loss.model_copy(update={"negatives": Negatives(count=6, share="row", popularity=0.5)})
    return loss


def combinations() -> Iterator[Recommender]:
    tasks = [plain(pair) for pair in everything("objectives.tasks")]
    tasks = [t.override("last=0.6") if t.kind_of() == "cloze" else t for t in tasks]  # more of what inference asks
    losses = [kind for _, kind in everything("objectives.losses")]
    scorings = (Scoring(), Scoring(similarity="cosine", temperature=0.2))
    for task, loss, scoring in itertools.product(tasks, losses, scorings):
        for encoder in encoders(task):
            yield Recommender(dim=8, max_length=8, task=task, loss=small(loss), scoring=scoring, encoder=encoder)


def label(spec: Recommender) -> str:
    return "-".join((spec.task.kind_of(), spec.loss.kind_of(), spec.encoder.kind_of(), spec.scoring.similarity))


def build(spec: Recommender, seed: int = 0) -> RecommenderModel:
    torch.manual_seed(seed)
    return spec.build(catalog(V))


def fit(model: RecommenderModel, steps: int = 25, lr: float = 0.03) -> list[float]:
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    values = []
    model.train()
    for k in range(steps):
        loss = sum(model(pattern(k)).values())
        optimizer.zero_grad()
        loss.backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
        optimizer.step()
        values.append(float(loss.detach()))
    return values


@pytest.mark.parametrize("spec", list(combinations()), ids=label)
def test_every_combination_learns(spec: Recommender) -> None:
    """The loss falls clearly, the circle is continued more often than by chance, and the spec survives YAML."""
    model = build(spec)
    shaken(model.items, 0.2)  # item vectors of N(0, 0.02) lie on a plateau that 60 steps do not always leave
    values = fit(model, 60)
    assert sum(values[-3:]) < 0.8 * sum(values[:3])
    assert Recommender.from_text(spec.to_yaml()) == spec == Recommender.from_text(spec.to_json())
    model.eval()
    batch = padded([[(s + t) % V for t in range(3)] for s in range(V)])
    with torch.no_grad():
        scores = model.answer(batch).block(0, V)
    wanted = (torch.arange(V) + 3) % V
    better = (scores > scores[torch.arange(V), wanted][:, None]).sum(1)
    assert float(better.float().mean()) < 0.6 * (V - 1) / 2, "hardly better than chance"


MIXED = Negatives(count=6, in_batch=1)
VARIANTS = {
    "horizons": Recommender(dim=8, task=NextItem(horizons=3), encoder=GRU(dropout=0.0)),
    "features": Recommender(dim=8, items=Features(**SETTINGS["items", "features"]), encoder=GRU(dropout=0.0)),
    "weighting": Recommender(dim=8, weighting=InversePopularity(), encoder=GRU(dropout=0.0)),
    "penalty": Recommender(dim=8, penalties=(LogDet(weight=1e-2),), encoder=GRU(dropout=0.0)),
    "in_batch": Recommender(dim=8, loss=SampledSoftmax(negatives=MIXED), encoder=GRU(dropout=0.0)),
}


@pytest.mark.parametrize("spec", VARIANTS.values(), ids=VARIANTS)
def test_the_other_parts_learn_too(spec: Recommender) -> None:
    values = fit(build(spec))
    assert sum(values[-3:]) < 0.95 * sum(values[:3])
    assert Recommender.from_text(spec.to_yaml()) == spec


@pytest.mark.parametrize("spec", [*combinations(), *VARIANTS.values()], ids=lambda s: label(s))
def test_bf16(spec: Recommender) -> None:
    """Under autocast the terms are close to those of fp32, in fp32, with finite gradients in fp32."""
    model = build(spec)
    fit(model, 5)
    exact = model(pattern())
    with torch.autocast("cpu", torch.bfloat16):
        rough = model(pattern())
    model.zero_grad()
    sum(rough.values()).backward()
    for name, value in rough.items():
        assert value.dtype == torch.float32
        assert abs(float(value.detach() - exact[name].detach())) < 0.05 * abs(float(exact[name].detach())) + 0.05
    assert all(
        p.grad is None or (p.grad.isfinite().all() and p.grad.dtype == torch.float32) for p in model.parameters()
    )


BOTH_SIDES = Transformer(dropout=0.0, attention=Softmax(causal=False))
SHARED = Negatives(count=5, share="batch", popularity=1)
SHARDED = [
    Recommender(dim=8, max_length=6, task=NextItem(horizons=2), loss=small("cross_entropy"), encoder=GRU(dropout=0.0)),
    Recommender(dim=8, max_length=6, loss=GBCE(negatives=Negatives(count=5, share="row", exclude="history")),
                encoder=Transformer(dropout=0.0, positions_from="end")),
    Recommender(dim=8, max_length=6, task=LastItem(), loss=SampledSoftmax(negatives=SHARED),
                encoder=BOTH_SIDES, weighting=InversePopularity()),
    Recommender(dim=8, max_length=6, task=Cloze(), loss=BCE(), scoring=Scoring(similarity="cosine", temperature=0.1),
                encoder=BOTH_SIDES),
]  # fmt: skip


def gradients(model: RecommenderModel, batches: list[Batch]) -> tuple[dict[str, float], list[Tensor]]:
    """Summed terms and gradients of some shards, as training sums them."""
    model.zero_grad()
    terms: dict[str, float] = {}
    for batch in batches:
        found = model(batch)
        scale = 0.0 if batch.filler else 1.0
        (sum(found.values()) * scale).backward()  # type: ignore[union-attr]
        for name, value in found.items():
            terms[name] = terms.get(name, 0.0) + scale * float(value.detach())
    return terms, [p.grad.clone() for p in model.parameters() if p.grad is not None]


def check_shards(model: RecommenderModel) -> None:
    rows = [[(u + 2 * t) % V for t in range(4 + u % 6)] for u in range(9)]
    data = store(rows, V)
    settings: dict[str, Any] = {"by": "tokens", "size": 14, "seed": 2, "counts": model.task.counts}
    whole = Loader(data, model.task.segments, **settings)
    for shards in (2, 3, 7):
        parts = Loader(data, model.task.segments, shards=shards, **settings)
        for k in range(whole.steps_per_epoch):
            terms, slopes = gradients(model, [whole.batch(k)])
            again, others = gradients(model, [parts.batch(k, s) for s in range(shards)])
            assert terms.keys() == again.keys()
            assert all(abs(terms[name] - again[name]) < 1e-4 for name in terms)
            assert all(close(a, b, 1e-4) for a, b in zip(slopes, others, strict=True))


@pytest.mark.parametrize("spec", SHARDED, ids=label)
def test_shards_sum_to_the_whole(spec: Recommender) -> None:
    check_shards(build(spec))


def test_a_loss_that_divides_by_its_shard_is_caught() -> None:
    class Local(RecommenderModel):
        def forward(self, batch: Batch) -> dict[str, Tensor]:
            return super().forward(replace(batch, counts=None))

    with pytest.raises(AssertionError):
        check_shards(Local(catalog(V), SHARDED[0]))


def test_terms() -> None:
    """One term per group of queries, the mean of its weighted losses, and one per penalty."""
    spec = Recommender(dim=8, task=NextItem(horizons=2), weighting=InversePopularity(), penalties=(LogDet(),))
    model = build(spec).eval()
    terms, step = model(pattern()), model.step(pattern())
    assert list(terms) == ["ahead_1", "ahead_2", "logdet"]
    for q in step.queries:
        losses: Record = step.records[q.name]
        assert model.weighting is not None
        assert close(terms[q.name], (losses.losses * model.weighting(q, step)).mean())
    assert close(terms["logdet"], model.penalties["logdet"](step))


def test_a_group_without_queries_costs_nothing() -> None:
    model = build(Recommender(dim=8, task=NextItem(horizons=3)))
    terms = model(padded([[1, 2], [3, 4]]))
    assert float(terms["ahead_2"].detach()) == float(terms["ahead_3"].detach()) == 0
    sum(terms.values()).backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def scores(model: RecommenderModel) -> Tensor:
    with torch.inference_mode():
        return model.answer(pattern()).block(0, V)


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
        with model.frozen():
            held = scores(model)
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


def test_a_frozen_model_makes_its_table_once() -> None:
    """Until the block is left, by an error too."""
    items = Features(**SETTINGS["items", "features"])
    model = build(Recommender(dim=8, items=items, encoder=GRU(dropout=0.0))).eval()
    with model.frozen(), torch.no_grad():
        assert model.answer(pattern()).table is model.answer(padded([[1]])).table
    with pytest.raises(KeyError), model.frozen():
        raise KeyError
    with torch.no_grad():
        assert model.answer(pattern()).table is not model.answer(pattern()).table


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
        assert isinstance(answer, Dense) and answer.size == V
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


def test_state_is_whole() -> None:
    """A model built anew from the spec and the state answers the same."""
    for spec in (VARIANTS["horizons"], VARIANTS["features"], SHARDED[3]):
        model = build(spec)
        fit(model, 3)
        again = build(spec, seed=9)
        again.load_state_dict(model.state_dict())
        assert torch.equal(scores(model.eval()), scores(again.eval()))


def test_refusals() -> None:
    with pytest.raises(UserError, match="'cloze' needs a bidirectional encoder.*causal=false"):
        build(Recommender(task=Cloze()))
    with pytest.raises(UserError, match="'next_item' needs a causal encoder"):
        build(Recommender(encoder=Transformer(attention=Softmax(causal=False))))
    with pytest.raises(UserError, match="each kind once"):
        Recommender.parse({"penalties": ["logdet", "logdet"]})
    with pytest.raises(UserError, match="does not divide by 3 heads"):
        build(Recommender(encoder=Transformer(attention=Softmax(heads=3))))
    with pytest.raises(UserError, match="max_length"):
        Recommender.parse({"max_length": 1})
