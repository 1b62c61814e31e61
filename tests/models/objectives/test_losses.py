"""Losses against twins: binary cross-entropy and gBCE with loops and sigmoids; the exact softmax equal to torch's in
value and gradient; the sampled one full where every item is a negative, its partition function unbiased.
"""

import math
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fullrank.models import Queries
from fullrank.models.sequential.objectives.losses import sampled_softmax as module
from fullrank.models.sequential.objectives.losses.gbce import GBCE
from fullrank.models.sequential.objectives.losses.sampled_softmax import SampledSoftmax
from parts import BCE, CrossEntropy, Negatives
from tiny import ITEMS, Flat, histories, padded, questions
from twins import same


def case() -> tuple:
    batch = padded(histories([9, 2, 14, 5]))
    return questions(batch), batch


def sigmoid(x) -> float:
    return 1 / (1 + math.exp(-x))


def counted(q, batch, ids, m, exclude) -> list:
    """The negatives of query m that count."""
    row = int(q.rows[m])
    events = set(batch.items[row, : batch.lengths[row]].tolist())
    hidden = {"none": set(), "target": {int(q.targets[m])}, "history": events}[exclude]
    return [i for i in ids[m].tolist() if i not in hidden]


def parts(q, batch, record, exclude) -> Iterator:
    """Of each query: log sigma(s+), log(1 - sigma(s-)) of each negative that counts, and its loss."""
    table = q.table.all()
    for m, target in enumerate(q.targets.tolist()):
        scores = (table @ q.vectors[m]).tolist()
        against = [math.log(1 - sigmoid(scores[i])) for i in counted(q, batch, record.negative_ids, m, exclude)]
        yield math.log(sigmoid(scores[target])), against, record.losses[m].item()


@pytest.mark.parametrize("share", ["query", "row", "batch"])
@pytest.mark.parametrize(("count", "exclude"), [(1, "history"), (6, "target"), (6, "none"), (30, "history")])
def test_bce_equals_its_twin(count, exclude, share) -> None:
    q, batch = case()
    record = BCE(negatives=Negatives(count=count, share=share, exclude=exclude)).build()(q, batch)
    for own, against, loss in parts(q, batch, record, exclude):
        assert abs(loss + own + (sum(against) / len(against) if against else 0)) < 1e-4


@pytest.mark.parametrize("t", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("count", [1, 8, 200])
def test_gbce_equals_its_twin(count, t) -> None:
    """arXiv:2308.07192, Eqs. 14-17: -(log sigma(s+)^beta + sum log(1 - sigma(s-))) / (N + 1)."""
    q, batch = case()
    record = GBCE(negatives=Negatives(count=count, share="row"), calibration=t).build()(q, batch)
    alpha = min(1.0, count / (ITEMS - 1))
    beta = alpha * (t * (1 - 1 / alpha) + 1 / alpha)
    for own, against, loss in parts(q, batch, record, "target"):
        assert abs(loss + (beta * own + sum(against)) / (count + 1)) < 1e-4


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])
@pytest.mark.parametrize("chunk", [1, 16 * ITEMS, 17 * ITEMS + 3, 10**8])
@pytest.mark.parametrize("weighted", [False, True])
def test_equals_torch(chunk, smoothing, weighted) -> None:
    """Equal upstream gradients scale what the forward pass made; others are made anew: both must be true."""
    batch = padded(histories([30, 2, 17, 8]))
    q = replace(questions(batch), temperature=0.7)
    loss = CrossEntropy(label_smoothing=smoothing, chunk_elements=chunk).build()
    weights = torch.linspace(-1, 2, len(q.targets)) if weighted else torch.full((len(q.targets),), 0.3)
    found = loss(q, batch).losses
    logits = q.vectors @ q.table.all().T / q.temperature
    wanted = F.cross_entropy(logits, q.targets, reduction="none", label_smoothing=smoothing)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    same((found * weights).sum(), (wanted * weights).sum(), q.vectors, q.table.all())


def sampled_case() -> tuple:
    batch = padded(histories([9, 2, 7]))
    return replace(questions(batch, dim=3), temperature=1.5), batch


def full(q) -> Tensor:
    return F.cross_entropy(q.vectors @ q.table.all().T / q.temperature, q.targets, reduction="none")


@pytest.mark.parametrize("log_q", ["all", "negatives"])
@pytest.mark.parametrize("share", ["query", "row", "batch"])
def test_all_negatives_equal_the_full_softmax(share, log_q, monkeypatch) -> None:
    """Every item drawn once, uniformly; the target's own draw does not count."""
    q, batch = sampled_case()
    draws = {"query": len(q.targets), "row": len(batch.items), "batch": 1}[share]
    monkeypatch.setattr(module, "draw", lambda *_: torch.arange(ITEMS).expand(draws, -1))
    loss = SampledSoftmax(negatives=Negatives(count=ITEMS, share=share), log_q=log_q).build()
    same(loss(q, batch).losses, full(q), q.vectors, q.table.all())


def check_unbiased(negatives, steps=300) -> None:
    """exp(loss + s+) is the estimated partition function: its mean over many steps within 5 standard errors of Z."""
    q, batch = sampled_case()
    loss = SampledSoftmax(negatives=negatives, log_q="negatives").build()
    with torch.no_grad():
        records = [loss(q, replace(batch, step=s)) for s in range(steps)]
        estimates = torch.stack([(r.losses + r.positive).double().exp() for r in records])
        z = (q.vectors @ q.table.all().T / q.temperature).double().exp().sum(1)
    error = estimates.std(0) / steps**0.5
    assert ((estimates.mean(0) - z).abs() < 5 * error).all()
    assert (error < 0.05 * z).all(), "the test is blunt"


SOURCES = (
    {"uniform": 1.0},
    {"uniform": 0.0, "popularity": 1.0},
    {"uniform": 1.0, "in_batch": 1.0},
    {"uniform": 0.2, "popularity": 0.5, "in_batch": 0.3},
)


@pytest.mark.parametrize("sources", SOURCES, ids=str)
@pytest.mark.parametrize("share", ["query", "row"])
def test_log_q_is_unbiased(sources, share) -> None:
    check_unbiased(Negatives(count=60, share=share, **sources))


def test_by_hand() -> None:
    """One query, four negatives, training shares 1/2, 1/3, 1/6: -log of e^(s+ - log q+) over the sum."""
    table = torch.tensor([[1.0], [2.0], [-1.0]])
    batch = padded([[0, 1]])
    zero = torch.tensor([0])
    q = Queries("ahead_1", torch.ones(1, 1), torch.tensor([1]), Flat(table, torch.tensor([3, 2, 1])), zero, zero)
    spec = Negatives(count=4, uniform=0, popularity=1, exclude="none")
    record = SampledSoftmax(negatives=spec).build()(q, batch)
    share = torch.tensor([1 / 2, 1 / 3, 1 / 6])
    mass = (table[:, 0].exp() / share)[torch.cat([torch.tensor([1]), record.negative_ids[0]])]
    torch.testing.assert_close(record.losses[0], -(mass[0] / mass.sum()).log())
    raw = SampledSoftmax(negatives=spec, log_q="none").build()(q, batch)
    plain = table[:, 0].exp()[torch.cat([torch.tensor([1]), raw.negative_ids[0]])]
    torch.testing.assert_close(raw.losses[0], -(plain[0] / plain.sum()).log())


def test_negatives_that_do_not_count_weigh_nothing() -> None:
    q, batch = sampled_case()
    only = replace(q, targets=torch.zeros_like(q.targets))
    spec = Negatives(count=5, uniform=0, in_batch=1)
    record = SampledSoftmax(negatives=spec).build()(only, batch)  # every draw is the target
    assert (record.negative_ids == 0).all() and not record.losses.any()
    assert all(g.isfinite().all() for g in torch.autograd.grad(record.losses.sum(), (q.vectors, q.table.all())))
