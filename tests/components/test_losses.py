"""Every loss passes the checks of `fullrank.testing.losses`, which catch planted faults."""

from dataclasses import replace

import pytest
import torch

from fullrank.models.sequential.objectives.losses import positive_scores
from fullrank.models.sequential.objectives.losses.bce import BCELoss
from fullrank.testing.losses import check_gradient, check_memory, check_place, check_step, check_temperature
from parts import BCE
from tests.components.cases import every_kind, run_checks
from tiny import Flat


@every_kind("objectives.losses")
def test_losses(pair) -> None:
    run_checks(pair)


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
