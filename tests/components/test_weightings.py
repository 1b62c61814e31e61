"""Laws of every weighting: of mean one, and either blind to the batch's company or saying that it is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from discover import Pair, everything, name
from fullrank.data.batch import Queries, Record, States, Step
from fullrank.models.sequential.objectives.weightings.inverse_propensity import D2LR, InversePopularity
from tiny import ITEMS, close, histories, padded, plain, questions, reachable

ALL = pytest.mark.parametrize("pair", everything("objectives.weightings"), ids=name)


def weigh(weighting: Any, targets: Tensor) -> tuple[Tensor, Queries]:
    batch = padded(histories([4, 5]))
    q = questions(batch)
    rows = torch.zeros_like(targets)
    q = replace(q, targets=targets, vectors=torch.randn(len(targets), q.vectors.shape[1]), rows=rows, positions=rows)
    losses = (1.0 + targets).requires_grad_()
    step = Step(torch.nn.Identity(), batch, States(torch.zeros(2, 4, 6)), (q,), {q.name: Record(losses)})
    return weighting(q, step), q


def check_sound(weighting: Any) -> None:
    """A factor for each query: finite, never negative, without a gradient, and nothing for no queries."""
    weights, _ = weigh(weighting, torch.arange(ITEMS))
    assert weights.shape == (ITEMS,) and weights.dtype == torch.float32
    assert weights.isfinite().all() and (weights >= 0).all() and not weights.requires_grad
    assert weigh(weighting, torch.zeros(0, dtype=torch.long))[0].shape == (0,)


def check_mean(weighting: Any) -> None:
    """One under the training distribution; for a weighting that couples queries, over those at hand."""
    for targets in (torch.arange(ITEMS), torch.tensor([7, 7, 0])):
        weights, q = weigh(weighting, targets)
        if weighting.couples:
            assert abs(float(weights.mean()) - 1) < 1e-4
        elif len(targets) == ITEMS:
            assert (weights > 0).all()
            assert abs(float((weights * q.catalogue.log_q(targets).exp()).sum()) - 1) < 1e-4


def check_company(weighting: Any) -> None:
    """Shards and micro-batches weigh a query as the whole batch does, and `couples` says so, or says otherwise."""
    whole, _ = weigh(weighting, torch.arange(ITEMS))
    part, _ = weigh(weighting, torch.tensor([7, 7, 0]))
    assert close(part, whole[[7, 7, 0]]) != weighting.couples


@ALL
@pytest.mark.parametrize("check", [check_sound, check_mean])
def test_laws(pair: Pair, check: Callable[[Any], None]) -> None:
    for spec in reachable(plain(pair), 2):
        check(spec.build())  # type: ignore[attr-defined]


@ALL
def test_company(pair: Pair) -> None:
    for spec in reachable(plain(pair), 2):
        weighting = spec.build()  # type: ignore[attr-defined]
        if spec == plain(pair) or not weighting.couples:  # extreme settings may make all weights alike
            check_company(weighting)


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
        (check_company, Planted(lambda w: w / w.mean(), alone)),
        (check_company, Planted(lambda w: w, alone, couples=True)),
        (check_sound, Planted(lambda w: w - 1, alone)),
    ]
    for check, weighting in faults:
        with pytest.raises(AssertionError):
            check(weighting)
