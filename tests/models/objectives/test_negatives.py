"""Drawn negatives: the right distribution, with exactly the probability that is claimed, wherever they are drawn."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fullrank.models.sequential.objectives.negatives import counted_negatives, draw, log_probability, per_query, scores
from parts import Negatives
from refusals import refused
from tiny import ITEMS, close, histories, padded, questions

MIXTURES = (
    Negatives(count=500, share="query"),
    Negatives(count=500, share="query", uniform=0, popularity=1),
    Negatives(count=500, share="query", uniform=0, in_batch=3),
    Negatives(count=500, share="query", uniform=1, popularity=2, in_batch=0.5),
    Negatives(count=500, share="query", uniform=0, popularity=1, in_batch=1),
)

SHARED = pytest.mark.parametrize("share", ["query", "row", "batch"])


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


@SHARED
def test_draws_depend_on_their_place_alone(share) -> None:
    rows = histories((9, 2, 14, 5))
    spec = Negatives(count=6, share=share, popularity=1)
    q, batch = case()
    whole = ids_of(spec, q, batch)
    again = ids_of(spec, q, batch)
    assert torch.equal(whole, again)
    for mine in ([2], [3, 0], [1, 2]):
        part = padded([rows[i] for i in mine], extra=3, ids=[100 + i for i in mine])
        p = questions(part)
        among = torch.cat([(q.rows == i).nonzero()[:, 0] for i in mine])
        assert torch.equal(ids_of(spec, p, part), whole[among])
    for other in (replace(batch, step=1), replace(batch, seed=9)):
        assert not torch.equal(ids_of(spec, q, other), whole)


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


@SHARED
def test_scores(share) -> None:
    q, batch = case()
    q = replace(q, temperature=0.3)
    spec = Negatives(count=7, share=share)
    drawn = draw(spec, q, batch)
    wanted = torch.einsum("md,mnd->mn", q.vectors, q.table.embed(per_query(spec, drawn, q))) / 0.3
    assert close(scores(spec, drawn, q), wanted)


@pytest.mark.parametrize("exclude", ["none", "target", "history"])
def test_exclusion(exclude) -> None:
    """Item 0 fills the padding and is no event of a row that does not hold it."""
    q, batch = case()
    spec = Negatives(count=40, exclude=exclude)
    ids = ids_of(spec, q, batch)
    found = counted_negatives(spec, ids, q, batch)
    for m, target in enumerate(q.targets.tolist()):
        row = int(q.rows[m])
        events = set(batch.items[row, : batch.lengths[row]].tolist())
        hidden = {"none": set(), "target": {target}, "history": events}[exclude]
        assert found[m].tolist() == [i not in hidden for i in ids[m].tolist()]
    assert bool(found.all()) is (exclude == "none")


def test_refusals() -> None:
    with refused("weights-all-zero", "uniform", "popularity", "in_batch"):
        Negatives.parse({"uniform": 0})
    with refused("invalid-setting", "count"):
        Negatives.parse({"count": 0})
