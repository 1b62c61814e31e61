"""Drawn negatives: the right distribution, with exactly the probability that is claimed, wherever they are drawn."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fullrank.models.sequential.objectives.negatives import draw, log_probability, per_query
from parts import Negatives
from refusals import refused
from tiny import ITEMS, histories, padded, questions

MIXTURES = (
    Negatives(count=500, share="query"),
    Negatives(count=500, share="query", uniform=0, popularity=1),
    Negatives(count=500, share="query", uniform=0, in_batch=3),
    Negatives(count=500, share="query", uniform=1, popularity=2, in_batch=0.5),
    Negatives(count=500, share="query", uniform=0, popularity=1, in_batch=1),
)


def case(lengths=(9, 2, 14, 5)) -> tuple:
    batch = padded(histories(lengths))
    return questions(batch), batch


@pytest.mark.parametrize("spec", MIXTURES, ids=lambda s: f"{s.uniform}-{s.popularity}-{s.in_batch}")
def test_draws_follow_the_claimed_probability(spec) -> None:
    """Of 40 steps' draws, every item's share within 5 standard errors of its claimed probability."""
    q, batch = case()
    claimed = log_probability(spec, q, torch.arange(ITEMS)).exp()
    drawn = torch.cat([draw(spec, q, replace(batch, step=step)).flatten() for step in range(40)])
    found = torch.bincount(drawn, minlength=ITEMS) / len(drawn)
    assert abs(claimed.sum() - 1) < 1e-5
    assert ((found - claimed).abs() <= 5 * (claimed * (1 - claimed) / len(drawn)).sqrt() + 1e-9).all()


def test_probabilities_by_hand() -> None:
    """1/5 uniform + 2/5 training share + 2/5 share among the batch's targets."""
    q, _ = case()
    spec = Negatives(uniform=1, popularity=2, in_batch=2)
    counts = 100 / torch.arange(1, ITEMS + 1)
    for item in range(ITEMS):
        inside = float((q.targets == item).float().mean())
        wanted = 0.2 / ITEMS + 0.4 * float(counts[item] / counts.sum()) + 0.4 * inside
        assert abs(log_probability(spec, q, torch.tensor([item])).exp() - wanted) < 1e-6


def ids_of(spec, q, batch) -> Tensor:
    return per_query(spec, draw(spec, q, batch), q)


@pytest.mark.parametrize(("share", "different"), [("query", 26), ("row", 4), ("batch", 1)])
def test_who_shares_a_draw(share, different) -> None:
    q, batch = case()
    spec = Negatives(count=20, share=share)
    ids = ids_of(spec, q, batch)
    assert len(ids.unique(dim=0)) == different == {"query": len(q.targets), "row": len(batch.items), "batch": 1}[share]
    if share == "row":
        assert all(len(ids[q.rows == r].unique(dim=0)) == 1 for r in range(len(batch.items)))


def test_groups_of_queries_draw_their_own() -> None:
    q, batch = case()
    spec = Negatives(count=20)
    assert not torch.equal(draw(spec, q, batch), draw(spec, replace(q, name="ahead_2"), batch))


def test_refusals() -> None:
    with refused("weights-all-zero", "uniform", "popularity", "in_batch"):
        Negatives.parse({"uniform": 0})
    with refused("invalid-setting", "count"):
        Negatives.parse({"count": 0})
