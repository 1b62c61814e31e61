"""Laws of every weighting: positive, of mean one under the training distribution, and blind to the batch's company."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from discover import Pair, everything, name
from fullrank.batch import Queries, States, Step
from fullrank.objectives.weightings.inverse_popularity import InversePopularity
from tiny import ITEMS, close, histories, padded, plain, questions, reachable

ALL = pytest.mark.parametrize("pair", everything("objectives.weightings"), ids=name)


def weigh(weighting: Any, targets: Tensor) -> tuple[Tensor, Queries]:
    batch = padded(histories([4, 5]))
    q = questions(batch)
    rows = torch.zeros_like(targets)
    q = replace(q, targets=targets, vectors=torch.randn(len(targets), q.vectors.shape[1]), rows=rows, positions=rows)
    step = Step(torch.nn.Identity(), batch, States(torch.zeros(2, 4, 6)), (q,))
    return weighting(q, step), q


def check_mean(weighting: Any) -> None:
    every = torch.arange(ITEMS)
    weights, q = weigh(weighting, every)
    assert weights.shape == (ITEMS,) and weights.isfinite().all() and (weights > 0).all()
    share = q.catalogue.log_q(every).exp()
    assert abs(float((weights * share).sum()) - 1) < 1e-4


def check_company(weighting: Any) -> None:
    """Shards and micro-batches weigh a query as the whole batch does."""
    whole, _ = weigh(weighting, torch.arange(ITEMS))
    part, _ = weigh(weighting, torch.tensor([7, 7, 0]))
    assert close(part, whole[[7, 7, 0]])
    assert weigh(weighting, torch.zeros(0, dtype=torch.long))[0].shape == (0,)


@ALL
@pytest.mark.parametrize("check", [check_mean, check_company])
def test_laws(pair: Pair, check: Callable[[Any], None]) -> None:
    for spec in reachable(plain(pair), 2):
        check(spec.build())  # type: ignore[attr-defined]


@pytest.mark.parametrize("power", [0.25, 0.5, 1.0])
def test_inverse_popularity(power: float) -> None:
    """The weights of two items stand as their counts to the power, turned over."""
    weights, _ = weigh(InversePopularity(power=power).build(), torch.arange(ITEMS))
    assert (weights.diff() > 0).all(), "rarer items weigh more"
    assert abs(float(weights[9] / weights[0]) - 10**power) < 1e-3 * 10**power


def test_planted_faults_are_caught() -> None:
    sound = InversePopularity().build()

    def unscaled(q: Queries, step: Step) -> Tensor:
        return sound(q, step) * 1.1

    def of_the_batch(q: Queries, step: Step) -> Tensor:
        weights = sound(q, step)
        return weights / weights.mean()

    with pytest.raises(AssertionError):
        check_mean(unscaled)
    with pytest.raises(AssertionError):
        check_company(of_the_batch)
