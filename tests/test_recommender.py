"""The whole model: every combination of parts learns a small pattern, in fp32 and under bf16 autocast."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from discover import everything
from fullrank.models import Record
from fullrank.models.sequential.attention.hstu import HSTU
from fullrank.models.sequential.attention.softmax import Softmax
from fullrank.models.sequential.encoders.gru import GRU
from fullrank.models.sequential.encoders.seq2seq import Seq2Seq
from fullrank.models.sequential.encoders.transformer import Transformer
from fullrank.models.sequential.items.features import Features
from fullrank.models.sequential.items.semantic import Semantic
from fullrank.models.sequential.items.table import Table
from fullrank.models.sequential.model import Recommender, RecommenderModel, Scoring
from fullrank.models.sequential.objectives.losses.sampled_softmax import SampledSoftmax
from fullrank.models.sequential.objectives.negatives import Negatives
from fullrank.models.sequential.objectives.tasks.cloze import Cloze
from fullrank.models.sequential.objectives.tasks.generate import Generate
from fullrank.models.sequential.objectives.tasks.next_item import NextItem
from fullrank.models.sequential.objectives.weightings.inverse_propensity import InversePopularity
from fullrank.models.sequential.objectives.weightings.r2rec import R2Rec
from fullrank.models.sequential.regularizers.dros import DROS
from fullrank.models.sequential.regularizers.logdet import LogDet
from fullrank.models.sequential.regularizers.resn import ReSN
from fullrank.testing.inputs import EXAMPLES
from fullrank.testing.tasks import GENERATE
from refusals import refused
from tiny import close, padded, plain, shaken
from whole import V, build, label, pattern, small


def encoders(task: Any) -> list[Any]:
    """One shallow encoder of each kind that suits a task."""
    causal = task.kind_of() != "cloze"
    found = []
    for pair in everything("encoders"):
        spec = plain(pair)
        if isinstance(spec, Seq2Seq):  # one answer a row; below
            continue
        parts = ("ids.", "features.") if hasattr(spec, "ids") else ("",)  # two transformers in one
        blocks = getattr(spec, "ids", spec)
        settings = [f"{name}=0.0" for name in ("dropout",) if hasattr(blocks, name)]
        settings += ["layers=1"] if hasattr(blocks, "layers") else []
        if hasattr(blocks, "attention"):
            places = "positions=none" if task.kind_of() == "generate" else "positions_from=end"
            settings += [f"attention.causal={causal}", places]
        elif hasattr(blocks, "causal"):
            settings += [f"causal={causal}", *["positions=none"] * (task.kind_of() == "generate")]
        elif not causal:
            continue
        found.append(spec.override(*(part + setting for part in parts for setting in settings)))
    return found


def combinations() -> Iterator[Recommender]:
    tasks = [plain(pair) for pair in everything("objectives.tasks")]
    tasks = [t.override("last=0.6") if t.kind_of() == "cloze" else t for t in tasks]  # more of what inference asks
    losses = [kind for _, kind in everything("objectives.losses")]
    scorings = (Scoring(), Scoring(similarity="cosine", temperature=0.2))
    for task, loss, scoring in itertools.product(tasks, losses, scorings):
        for encoder in encoders(task):
            items = Semantic() if task.kind_of() in GENERATE else Table()
            yield Recommender(
                dim=8, max_length=8, items=items, task=task, loss=small(loss), scoring=scoring, encoder=encoder
            )


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


def marked(spec: Recommender) -> Any:
    """Other encoders and scores meet every loss with the slow tests; at once, a transformer meets every loss, and every
    encoder a task."""
    plain = (spec.loss.kind_of(), spec.task.kind_of()) == ("bce", "next_item")
    common = spec.scoring == Scoring() and (spec.encoder.kind_of() == "transformer" or plain)
    return pytest.param(spec, id=label(spec), marks=() if common else pytest.mark.slow)


@pytest.mark.parametrize("spec", [marked(spec) for spec in combinations()])
def test_every_combination_learns(spec: Recommender) -> None:
    """The loss falls clearly, the circle is continued more often than by chance, and the spec survives YAML."""
    model = build(spec)
    shaken(model.items, 0.2)  # item vectors of N(0, 0.02) lie on a plateau that 60 steps do not always leave
    # a row is read code by code, by the same few weights; gates, filters and halves of a vector are no quicker
    slow = model.task.code_by_code or spec.encoder.kind_of() in ("hgn", "fmlp", "fdsa")
    values = fit(model, 240 if slow else 60)
    assert sum(values[-3:]) < 0.8 * sum(values[:3])
    assert Recommender.from_text(spec.to_yaml()) == spec == Recommender.from_text(spec.to_json())
    model.eval()
    batch = padded([[(s + t) % V for t in range(3)] for s in range(V)])
    with torch.no_grad():
        scores = model.answer(batch).block(0, V)
    wanted = (torch.arange(V) + 3) % V
    better = (scores > scores[torch.arange(V), wanted][:, None]).sum(1)
    assert float(better.float().mean()) < 0.6 * (V - 1) / 2, "hardly better than chance"


SHORT = GRU(dropout=0.0)
VARIANTS = {
    "seq2seq": Recommender(
        dim=8, max_length=8, items=Semantic(), task=Generate(targets="last"), encoder=Seq2Seq(layers=1, dropout=0.0)
    ),
    "horizons": Recommender(dim=8, task=NextItem(horizons=3), encoder=SHORT),
    "features": Recommender(dim=8, items=Features(**EXAMPLES["features"]), encoder=SHORT),
    "weighting": Recommender(dim=8, weighting=InversePopularity(), encoder=SHORT),
    "penalty": Recommender(dim=8, penalties=(LogDet(weight=1e-2),), encoder=SHORT),
    "debiased": Recommender(
        dim=8,
        loss=small("bce"),
        weighting=R2Rec(),
        penalties=(DROS(), ReSN(), LogDet(user_weight=1e-4)),
        encoder=SHORT,
    ),
    "hstu": Recommender(dim=8, max_length=8, encoder=Transformer(layers=1, attention=HSTU(), dropout=0.0)),
    "in_batch": Recommender(dim=8, loss=SampledSoftmax(negatives=Negatives(count=6, in_batch=1)), encoder=SHORT),
}


@pytest.mark.parametrize("spec", VARIANTS.values(), ids=VARIANTS)
def test_the_other_parts_learn_too(spec: Recommender) -> None:
    values = fit(build(spec))
    assert sum(values[-3:]) < 0.95 * sum(values[:3])
    assert Recommender.from_text(spec.to_yaml()) == spec


@pytest.mark.slow
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


def test_refusals() -> None:
    with refused("task-needs-other-mask", "cloze", "causal=false"):
        build(Recommender(task=Cloze()))
    with refused("task-needs-other-mask", "next_item", "causal=true"):
        build(Recommender(encoder=Transformer(attention=Softmax(causal=False))))
    with refused("penalty-repeated"):
        Recommender.parse({"penalties": ["logdet", "logdet"]})
    with refused("width-not-divisible", 3):
        build(Recommender(encoder=Transformer(attention=Softmax(heads=3))))
    with refused("invalid-setting", "max_length"):
        Recommender.parse({"max_length": 1})
