"""R2Rec and D2LR equal plain loops over the definition, and their scale is that of the decision."""

import math

import pytest
import torch

from fullrank.models import Queries, States, Step
from fullrank.models.sequential.objectives.weightings.inverse_propensity import D2LR
from fullrank.models.sequential.objectives.weightings.r2rec import R2Rec, tail_items
from parts import BCE, GRU, Recommender
from refusals import refused
from tiny import Flat, close, histories, padded, questions
from whole import build, pattern

COUNTS = [9, 5, 5, 4, 2, 2, 2, 1, 1, 1]


def asked(targets, counts=COUNTS) -> tuple:
    batch = padded(histories([4]))
    q = questions(batch)
    at = torch.zeros(len(targets), dtype=torch.long)
    table = Flat(torch.zeros(len(counts), 6), torch.tensor(counts))
    q = Queries(q.name, torch.zeros(len(at), 6), torch.tensor(targets), table, at, at)
    return q, Step(torch.nn.Identity(), batch, States(torch.zeros(1, 4, 6)), (q,))


@pytest.mark.parametrize(("share", "tail"), [(0.8, 8), (0.5, 6), (0.3, 3), (0.05, 3), (0.95, 9)])
def test_the_tail_takes_in_ties(share, tail) -> None:
    """The items with at most as many events as the last of the least popular share."""
    flags = tail_items(Flat(torch.zeros(10, 2), torch.tensor(COUNTS)), share, torch.device("cpu"))
    bound = sorted(COUNTS)[max(math.floor(share * 10 + 1e-9), 1) - 1]
    assert flags.tolist() == [count <= bound for count in COUNTS]
    assert flags.sum() == {8: 9}.get(tail, tail), "the 8th least popular item has 5 events, as two items do"


@pytest.mark.parametrize("temperature", [0.05, 0.5, 1.0])
def test_r2rec_by_hand(temperature) -> None:
    targets = [0, 0, 3, 9, 7]
    weights = R2Rec(temperature=temperature, tail=0.5).build()(*asked(targets))
    eta = [1.0 if item >= 4 else 0.0 for item in targets]
    gamma = [math.exp(e / temperature) for e in eta]
    assert close(weights, torch.tensor([5 * g / sum(gamma) for g in gamma]))
    assert float(weights[3] / weights[0]) == pytest.approx(math.exp(1 / temperature), rel=1e-3)


def test_r2rec_gives_the_sum_of_gamma_and_loss() -> None:
    """The model's term (local sum over the count) is sum gamma loss, with gamma summing to one."""
    model = build(Recommender(dim=8, loss=BCE(), weighting=R2Rec(tail=0.5), encoder=GRU(dropout=0.0))).eval()
    step = model.step(pattern())
    (q,) = step.queries
    tail = tail_items(q.table, 0.5, q.targets.device)[q.targets].float()
    gamma = torch.softmax(tail / 0.5, 0)
    assert 0 < tail.mean() < 1
    assert close(model(pattern())[q.name], (gamma * step.records[q.name].losses).sum())


@pytest.mark.parametrize("floor", [0.0, 0.1])
def test_d2lr_by_hand(floor) -> None:
    targets = [0, 1, 3, 9, 9]
    raw = [max(COUNTS[item] / sum(COUNTS), floor) ** -0.3 for item in targets]
    weights = D2LR(power=0.3, floor=floor).build()(*asked(targets))
    assert close(weights, torch.tensor([w / (sum(raw) / len(raw)) for w in raw]))
    assert bool(weights[2] == weights[3]) == (floor > 4 / 32)


def test_a_floor_above_every_share_is_refused() -> None:
    with refused("floor-above-every-share", "floor=0.4", "0.281"):
        D2LR(floor=0.4).build()(*asked([0, 1]))
    with refused("invalid-setting", "floor"):
        D2LR.parse({"floor": 1.0})
