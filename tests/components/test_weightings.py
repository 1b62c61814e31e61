"""The checks of `fullrank.testing.weightings` catch planted faults."""

import pytest
import torch

from fullrank.models.sequential.objectives.weightings.inverse_propensity import D2LR, InversePopularity
from fullrank.testing.weightings import check_coupling, check_mean, check_sound, weigh
from tiny import ITEMS


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
def test_planted_faults_are_caught(check, spoil, sound, couples) -> None:
    def planted(q, step):
        return spoil(sound(q, step))

    planted.couples = couples
    with pytest.raises(AssertionError):
        check(planted)
