"""Binary cross-entropy and its generalisation against twins written with loops and sigmoids."""

import math
from collections.abc import Iterator

import pytest

from fullrank.models.sequential.objectives.losses.gbce import GBCE
from parts import BCE, Negatives
from tiny import ITEMS, histories, padded, questions


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


def test_published_defaults() -> None:
    assert (BCE().negatives.count, BCE().negatives.share, BCE().negatives.exclude) == (1, "query", "history")
    assert (GBCE().negatives.count, GBCE().calibration) == (256, 0.75)
