"""DROS equals a loop over the definition, leaves out what the loss leaves out, and refuses what it cannot serve."""

import math
from dataclasses import replace

import pytest
import torch

from fullrank.models import Record, Step
from fullrank.models.sequential.regularizers.dros import DROS
from parts import BCE, CrossEntropy, NextItem, RecommenderModel, model_with
from refusals import refused
from tiny import Flat, close, histories, padded

COUNTS = [9.0, 5.0, 4.0, 1.0]
POSITIVE, TARGETS = [0.3, -1.2, 2.0], [0, 3, 1]
NEGATIVE, IDS = [[0.1, -0.4], [3.0, 0.2], [-2.0, 0.0]], [[1, 2], [2, 2], [3, 0]]
KEPT = [[True, False], [True, True], [False, True]]


def model(loss, horizons=1) -> RecommenderModel:
    return model_with(DROS(), task=NextItem(horizons=horizons), loss=loss).eval()


def given(kept) -> Step:
    """A step with these scores."""
    step = model(BCE()).step(padded(histories([4])))
    (q,) = step.queries
    q = replace(q, targets=torch.tensor(TARGETS), table=Flat(torch.zeros(4, 6), torch.tensor(COUNTS)))
    positive = torch.tensor(POSITIVE)
    mask = None if kept is None else torch.tensor(kept)
    record = Record(positive, positive, torch.tensor(NEGATIVE), torch.tensor(IDS), mask)
    return replace(step, queries=(q,), records={q.name: record})


def by_hand(errors, temperature, power) -> float:
    weights = [(COUNTS[item] / sum(COUNTS)) ** power for _, item in errors]
    inside = sum(w * math.exp(e / temperature) for w, (e, _) in zip(weights, errors, strict=True))
    return temperature * math.log(inside / sum(weights))


def sigmoid(score) -> float:
    return 1 / (1 + math.exp(-score))


@pytest.mark.parametrize("kept", [None, KEPT])
@pytest.mark.parametrize(("temperature", "power"), [(0.5, 0.05), (1.5, 0.0), (0.01, 1.0)])
def test_equals_the_definition(kept, temperature, power) -> None:
    missed = [((1 - sigmoid(s)) ** 2, item) for s, item in zip(POSITIVE, TARGETS, strict=True)]
    raised = [
        (sigmoid(NEGATIVE[m][n]) ** 2, IDS[m][n]) for m in range(3) for n in range(2) if kept is None or kept[m][n]
    ]
    wanted = by_hand(missed, temperature, power) + by_hand(raised, temperature, power)
    penalty = DROS(weight=0.3, temperature=temperature, power=power).build()
    assert float(penalty(given(kept))) == pytest.approx(0.3 * wanted, rel=1e-4)


def test_groups_without_queries_and_negatives_add_nothing() -> None:
    whole = model(BCE(), horizons=3)
    terms = whole(padded([[1, 2], [3, 4]]))
    assert terms["dros"].isfinite()
    sum(terms.values()).backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in whole.parameters())
    nothing = given([[False, False]] * 3)
    assert close(DROS().build()(nothing), DROS().build()(replace(nothing, records=_without_negatives(nothing))))


def _without_negatives(step) -> dict:
    ((name, record),) = step.records.items()
    none = torch.zeros(3, 0)
    return {name: Record(record.losses, record.positive, none, none.long())}


def test_an_exact_softmax_is_refused() -> None:
    with refused("loss-without-negatives", "dros", "model.loss=bce"):
        model(CrossEntropy())


def test_a_record_without_negatives_is_refused() -> None:
    """Of a loss that says nothing about itself."""
    step = given(None)
    bare = {name: Record(record.losses, record.positive) for name, record in step.records.items()}
    with refused("loss-without-negatives", "dros"):
        DROS().build()(replace(step, records=bare))
