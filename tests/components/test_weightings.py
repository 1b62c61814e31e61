"""Every weighting passes the checks of `fullrank.testing.weightings`, which catch planted faults."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from discover import Pair
from fullrank.data.batch import Queries, Step
from fullrank.models.sequential.objectives.weightings.inverse_propensity import D2LR, InversePopularity
from fullrank.testing.weightings import check_coupling, check_mean, check_sound, weigh
from tests.components.cases import every_kind, run_checks
from tiny import ITEMS


@every_kind("objectives.weightings")
def test_weightings(pair: Pair) -> None:
    run_checks(pair)


@pytest.mark.parametrize("power", [0.25, 0.5, 1.0])
def test_inverse_popularity(power: float) -> None:
    """The weights of two items stand as their counts to the power, turned over."""
    weights, _ = weigh(InversePopularity(power=power).build(), torch.arange(ITEMS))
    assert (weights.diff() > 0).all(), "rarer items weigh more"
    assert abs(float(weights[9] / weights[0]) - 10**power) < 1e-3 * 10**power


class Planted:
    """A sound weighting, spoiled."""

    def __init__(self, spoil: Callable[[Tensor], Tensor], sound: Any, couples: bool = False):
        self.spoil, self.sound, self.couples = spoil, sound, couples

    def __call__(self, q: Queries, step: Step) -> Tensor:
        return self.spoil(self.sound(q, step))


def test_planted_faults_are_caught() -> None:
    alone, coupled = InversePopularity().build(), D2LR().build()
    faults: list[tuple[Callable[[Any], None], Any]] = [
        (check_mean, Planted(lambda w: w * 1.1, alone)),
        (check_mean, Planted(lambda w: w / w.sum(), coupled, couples=True)),
        (check_coupling, Planted(lambda w: w / w.mean(), alone)),
        (check_coupling, Planted(lambda w: w, alone, couples=True)),
        (check_sound, Planted(lambda w: w - 1, alone)),
    ]
    for check, weighting in faults:
        with pytest.raises(AssertionError):
            check(weighting)
