"""Every reasoner passes the checks of `fullrank.testing.reasoning`; what one step, noise and budgets are by hand."""

from __future__ import annotations

import pytest
import torch

from discover import Pair
from fullrank.models.sequential.reasoning.budget import Budget
from fullrank.models.sequential.reasoning.plr import PLR
from fullrank.models.sequential.reasoning.rearec import ReaRec
from fullrank.testing.inputs import sequences
from fullrank.testing.reasoning import DIM, LONGEST, made, steps_of
from refusals import refused
from tests.components.cases import every_check, run_check
from tiny import close


@every_check("reasoning")
def test_reasoners(pair: Pair, check: str, device: str) -> None:
    run_check(pair, check, device)


@pytest.mark.parametrize("wrong", [{"steps": -1}, {"streams": 0}])
def test_budgets_below_the_least_are_refused(wrong: dict[str, int]) -> None:
    with refused("invalid-setting", *wrong):
        Budget.parse(wrong)


def test_one_step_of_one_stream() -> None:
    """PLR's z is h_1 under a gate of 1; ERL answers with the mean of two states, PRL with the second."""
    x, batch = sequences(DIM, extra=2)
    plr = made(PLR(steps=1, streams=1))
    states = plr(x, batch)
    start, one = steps_of(states).start, steps_of(states).steps[:, 0, 0]
    assert torch.equal(steps_of(states).gate, torch.ones(len(x), 1)) and plr.gate is None
    assert close(states.outputs["trained"], one) and close(states.outputs["answer"], start + one)
    mean, end = (made(ReaRec(steps=1, answer=answer)) for answer in ("mean", "last"))  # type: ignore[arg-type]
    states = mean(x, batch)
    start, one = steps_of(states).start, steps_of(states).steps[:, 0, 0]
    assert close(states.outputs["answer"], (start + one) / 2)
    assert close(end(x, batch).outputs["answer"], one)


def test_noise_falls_on_the_second_view_alone() -> None:
    x, batch = sequences(DIM, extra=2)
    reasoner, twice = made(ReaRec(), "causal"), batch.repeated(2)
    for part in reasoner.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    reasoner.input_noise = 0.5
    clean = steps_of(reasoner(x, batch)).steps
    quiet = steps_of(reasoner(x.repeat(2, 1, 1), twice)).steps
    assert close(quiet, clean.repeat(2, 1, 1, 1)), "noise in evaluation"
    noisy = steps_of(reasoner.train()(x.repeat(2, 1, 1), twice)).steps
    assert close(noisy[: len(x)], clean) and not close(noisy[len(x) :], clean)


def test_an_encoder_that_cannot_go_on_is_refused() -> None:
    with refused("not-an-encoder", "Identity"):
        PLR().build(torch.nn.Identity(), DIM, LONGEST)  # type: ignore[arg-type]
