"""The checks of `fullrank.testing.losses` and of `fullrank.testing.weightings` catch planted faults."""

from dataclasses import replace

import pytest
import torch

from fullrank.models import Record
from fullrank.models.sequential.objectives.losses import positive_scores
from fullrank.models.sequential.objectives.losses.bce import BCELoss
from fullrank.models.sequential.objectives.losses.cross_entropy import CrossEntropy, CrossEntropyLoss
from fullrank.models.sequential.objectives.weightings.inverse_propensity import D2LR, InversePopularity
from fullrank.testing.losses import (
    check_autocast,
    check_gradient,
    check_memory,
    check_place,
    check_step,
    check_temperature,
)
from fullrank.testing.weightings import check_coupling, check_mean, check_sound, weigh
from parts import BCE
from tiny import ITEMS, Flat


class Tepid(BCELoss):
    """Planted: the temperature is left out."""

    def __call__(self, queries, batch):
        return super().__call__(replace(queries, temperature=1.0), batch)


class Crowded(BCELoss):
    """Planted: every query is compared with the mean of all."""

    def __call__(self, queries, batch):
        record = super().__call__(queries, batch)
        return replace(record, losses=record.losses + record.losses.mean())


class Restless(BCELoss):
    """Planted: draws from torch's own generator."""

    def __call__(self, queries, batch):
        return super().__call__(queries, replace(batch, seed=int(torch.randint(1000, ()))))


class Stuck(BCELoss):
    """Planted: forgets the step."""

    def __call__(self, queries, batch):
        return super().__call__(queries, replace(batch, step=0))


class Cut(BCELoss):
    """Planted: no gradient reaches the positive's vector."""

    def __call__(self, queries, batch):
        record = super().__call__(queries, batch)
        fixed = positive_scores(replace(queries, table=Flat(queries.table.all().detach())))
        own = torch.nn.functional.softplus(-positive_scores(queries))
        return replace(record, losses=record.losses - own + own.detach() + fixed - fixed.detach() - 1e-9)


class Whole(BCELoss):
    """Planted: makes all scores."""

    def __call__(self, queries, batch):
        record = super().__call__(queries, batch)
        return replace(record, losses=record.losses + 0 * (queries.vectors @ queries.table.all().T).sum(1))


class InHalf(CrossEntropyLoss):
    """Sound: the exact softmax in bf16 products, written out, so that faults can be planted in it."""

    def scores(self, x, table):
        return x @ table.T

    def total(self, scores):
        return scores.float().logsumexp(1)

    def __call__(self, queries, batch):
        positive = positive_scores(queries)
        total = self.total(self.scores(queries.vectors / queries.temperature, queries.table.all()))
        return Record(total - positive, positive)


class Coarse(InHalf):
    """Planted: adds up in bf16."""

    def total(self, scores):
        top = scores.amax(1, keepdim=True)
        return ((scores - top).exp().to(scores.dtype).cumsum(1)[:, -1].log() + top[:, 0]).float()


class Unshifted(InHalf):
    """Planted: the log-sum-exp is not shifted by its largest score."""

    def total(self, scores):
        return scores.float().exp().sum(1).log()


class Turned(InHalf):
    """Planted: in bf16 the table is read as if it were stored the other way round."""

    def scores(self, x, table):
        return x @ (table.reshape(table.shape[::-1]) if x.dtype == torch.bfloat16 else table.T)


class Lost(InHalf):
    """Planted: in bf16 the items learn nothing from the sum."""

    def scores(self, x, table):
        return x @ (table.detach() if x.dtype == torch.bfloat16 else table).T


@pytest.mark.parametrize("fault", [Coarse, Unshifted, Turned, Lost])
def test_planted_faults_in_bf16_are_caught(fault) -> None:
    spec = CrossEntropy()
    check_autocast(spec, InHalf(spec))
    with pytest.raises(AssertionError, match="off by"):
        check_autocast(spec, fault(spec))


@pytest.mark.parametrize(
    ("fault", "check"),
    [
        (Tepid, check_temperature),
        (Crowded, check_place),
        (Restless, check_step),
        (Stuck, check_step),
        (Cut, check_gradient),
        (Whole, check_memory),
    ],
)
def test_planted_faults_are_caught(fault, check) -> None:
    spec = BCE()
    check(spec, BCELoss(spec))
    if fault is Whole:

        class Planted(BCE):
            def build(self):
                return Whole(self)

        spec = Planted()
    with pytest.raises(AssertionError):
        check(spec, fault(spec))


@pytest.mark.parametrize("power", [0.25, 0.5, 1.0])
def test_inverse_popularity(power) -> None:
    """The weights of two items stand as their counts to the power, turned over."""
    weights, _ = weigh(InversePopularity(power=power).build(), torch.arange(ITEMS))
    assert (weights.diff() > 0).all(), "rarer items weigh more"
    assert abs(float(weights[9] / weights[0]) - 10**power) < 1e-3 * 10**power


ALONE, COUPLED = InversePopularity().build(), D2LR().build()


@pytest.mark.parametrize(
    ("check", "spoil", "sound", "couples"),
    [
        (check_mean, lambda w: w * 1.1, ALONE, False),
        (check_mean, lambda w: w / w.sum(), COUPLED, True),
        (check_coupling, lambda w: w / w.mean(), ALONE, False),
        (check_coupling, lambda w: w, ALONE, True),
        (check_sound, lambda w: w - 1, ALONE, False),
    ],
)
def test_planted_faults_of_weightings_are_caught(check, spoil, sound, couples) -> None:
    def planted(q, step):
        return spoil(sound(q, step))

    planted.couples = couples
    with pytest.raises(AssertionError):
        check(planted)
