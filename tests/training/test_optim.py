"""The learning rate by hand."""

import pytest

from fullrank.run.experiment import Training
from fullrank.training.optim import lr_factor, plateau_factor


def curve(total: int, **settings: object) -> list[float]:
    training = Training.parse(settings)
    return [lr_factor(training, step, total) for step in range(total)]


@pytest.mark.parametrize("settings", [{}, {"schedule": "plateau"}])
def test_constant_after_warmup(settings: dict) -> None:
    assert curve(10, warmup=0.3, **settings) == pytest.approx([0.25, 0.5, 0.75, 1, 1, 1, 1, 1, 1, 1])


def test_plateau_is_cut_by_validations_alone() -> None:
    training = Training(schedule="plateau", warmup=0.3, lr=1e-3)
    assert [plateau_factor(training, cuts) for cuts in range(5)] == pytest.approx([1, 0.1, 0.01, 1e-3, 1e-3])


def test_linear_falls_to_nothing() -> None:
    assert curve(8, schedule="linear", warmup=0.5) == pytest.approx([0.2, 0.4, 0.6, 0.8, 1, 0.75, 0.5, 0.25])


def test_cosine_is_half_in_the_middle() -> None:
    found = curve(10, schedule="cosine")
    assert found[0] == 1 and found[5] == pytest.approx(0.5) and found[-1] < 0.05


def test_one_cycle_goes_from_a_25th_over_one_to_a_tenth() -> None:
    found = curve(100, schedule="one_cycle", warmup=0.3)
    assert found[0] == pytest.approx(1 / 25) and found[30] == 1 and found[-1] == pytest.approx(0.1, abs=1e-2)
    assert max(found) == 1
