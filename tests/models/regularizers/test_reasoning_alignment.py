"""Reasoning alignment: the terms written out, partners, and what is refused."""

from dataclasses import replace

import pytest
import torch

from fullrank.data.batch import Batch
from fullrank.models.sequential.reasoning.lares import LARES
from fullrank.models.sequential.regularizers.reasoning_alignment import ReasoningAlignment, _draws, same_target
from parts import PLR, LastItem, ReaRec, RecommenderModel, Transformer, model_with
from refusals import refused
from tests.models.regularizers.contrast import cosine_contrast
from tiny import padded
from twins import same

ROWS = [[1, 2, 9], [4, 9], [5, 6, 7, 3], [8, 2, 9], [1, 3]]
"""The last event of each is its target: 9, 9, 3, 9, 3."""


def build(*penalties, reasoner) -> RecommenderModel:
    return model_with(*penalties, task=LastItem(), reasoner=reasoner, encoder=Transformer(dropout=0.1))


@pytest.mark.parametrize("reasoner", [LARES(steps=3, depth="fixed"), PLR(steps=3), ReaRec(steps=3)])
@pytest.mark.parametrize("weights", [(0.3, 0.7), (0.3, 0.0), (0.0, 0.7)])
def test_the_terms_as_they_read(reasoner, weights) -> None:
    spec = ReasoningAlignment(trajectory_weight=weights[0], step_weight=weights[1], temperature=0.2)
    model = build(spec, reasoner=reasoner)
    torch.manual_seed(1)
    step = model.step(padded(ROWS, step=4))
    reasoned = step.states.reasoning
    assert reasoned is not None and step.batch.views == (2 if weights[0] else 1)
    steps, targets = (reasoned.gate[:, None, :, None] * reasoned.steps).sum(2), [row[-1] for row in ROWS]
    first, second, wanted = steps[:5], steps[5:], torch.zeros(())
    if weights[0]:
        mates = same_target(torch.tensor(targets), step.batch).tolist()
        other = torch.stack([second[mate, -1] for mate in mates])
        both = cosine_contrast(first[:, -1], other, targets, 0.2) + cosine_contrast(other, first[:, -1], targets, 0.2)
        wanted = wanted + weights[0] * both / 2
    if weights[1]:
        at = first[:, int(_draws(step.batch, torch.zeros(1, dtype=torch.long))[0] * 3)]
        both = cosine_contrast(first[:, -1], at, targets, 0.2) + cosine_contrast(at, first[:, -1], targets, 0.2)
        wanted = wanted + weights[1] * both / 2
    same(model.penalties["reasoning_alignment"](step), wanted, *model.parameters())


def test_a_partner_has_the_same_target_and_is_another_row_where_there_is_one() -> None:
    targets = torch.tensor([9, 9, 3, 9, 3, 7])
    batch = Batch(targets[:, None], torch.ones(6, dtype=torch.long), rows=torch.arange(40, 46), seed=1)
    seen = set()
    for step in range(60):
        found = same_target(targets, replace(batch, step=step))
        assert torch.equal(targets[found], targets) and found[5] == 5
        assert (found[:5] != torch.arange(5)).all()
        seen |= set(enumerate(found.tolist()))
    assert seen == {(0, 1), (0, 3), (1, 0), (1, 3), (3, 0), (3, 1), (2, 4), (4, 2), (5, 5)}


def test_one_row_and_one_step_have_nothing_to_align() -> None:
    model = build(ReasoningAlignment(), reasoner=LARES(steps=1, depth="fixed"))
    assert model.penalties["reasoning_alignment"](model.step(padded(ROWS[:1]))) == 0
    alone = build(ReasoningAlignment(trajectory_weight=0), reasoner=LARES(steps=1, depth="fixed"))
    assert alone.penalties["reasoning_alignment"](alone.step(padded(ROWS))) == 0


def test_refusals() -> None:
    with refused("weights-all-zero", "trajectory_weight"):
        ReasoningAlignment.parse({"trajectory_weight": 0, "step_weight": 0})
    with refused("no-reasoner", "lares"):
        build(ReasoningAlignment(), reasoner=None)
