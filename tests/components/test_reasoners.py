"""Every reasoner passes the checks of `fullrank.testing.reasoning`, which catch faults; one step and noise by hand."""

from dataclasses import replace

import pytest
import torch

from fullrank.models import Budget
from fullrank.models.sequential.encoders.gru import GRUEncoder
from fullrank.models.sequential.reasoning.plr import PLRReasoner
from fullrank.models.sequential.reasoning.rearec import ReaRecReasoner
from fullrank.ops.dropout import Dropout
from fullrank.testing import reasoning
from fullrank.testing.inputs import sequences
from fullrank.testing.reasoning import DIM, ENCODERS, LONGEST, build_reasoner, steps_of
from parts import PLR, ReaRec
from refusals import refused
from tests.components.cases import every_kind, run_checks
from tests.components.test_encoders import Late
from tiny import close


@every_kind("reasoning")
def test_reasoners(pair) -> None:
    run_checks(pair)


def test_one_step_of_one_stream() -> None:
    """PLR's z is h_1 under a gate of 1; ERL answers with the mean of two states, PRL with the second."""
    x, batch = sequences(DIM, extra=2)
    plr = build_reasoner(PLR(steps=1, streams=1))
    states = plr(x, batch)
    start, one = steps_of(states).start, steps_of(states).steps[:, 0, 0]
    assert torch.equal(steps_of(states).gate, torch.ones(len(x), 1)) and plr.gate is None
    assert close(states.outputs["trained"], one) and close(states.outputs["answer"], start + one)
    mean, end = (build_reasoner(ReaRec(steps=1, answer=answer)) for answer in ("mean", "last"))  # type: ignore[arg-type]
    states = mean(x, batch)
    start, one = steps_of(states).start, steps_of(states).steps[:, 0, 0]
    assert close(states.outputs["answer"], (start + one) / 2)
    assert close(end(x, batch).outputs["answer"], one)


def test_a_residual_adds_the_state_before() -> None:
    """h_(1,m) = f(h_0 + tau_m + r_1) + h_0 + tau_m, and step 2 reads and adds that (PLR, Eqs. 3 and 4)."""
    x, batch = sequences(DIM, extra=2)
    for encoder in ("post_norm", "gru"):
        reasoner = build_reasoner(PLR(residual=True), encoder)
        states = steps_of(reasoner(x, batch))
        _, cache = reasoner.encoder.start(x, batch)
        before = states.start[:, None] + reasoner.triggers
        for step in range(2):
            found, cache = reasoner.encoder.step(before + reasoner.step_vectors[step], cache)
            before = found + before
            assert close(states.steps[:, step], before)


def test_a_residual_keeps_apart_what_a_step_brings_together() -> None:
    """Around an encoder that answers the same whatever it is given, streams stay as far apart as they open."""

    class Same(GRUEncoder):
        def step(self, x, cache):
            return torch.ones_like(x), cache

    x, batch = sequences(DIM)
    for residual, apart in ((False, False), (True, True)):
        reasoner = build_reasoner(PLR(steps=3, residual=residual), "gru")
        reasoner.encoder.__class__ = Same
        last = steps_of(reasoner(x, batch)).steps[:, -1]
        wanted = (reasoner.triggers[0] - reasoner.triggers[1]).expand_as(last[:, 0]) * apart
        assert close(last[:, 0] - last[:, 1], wanted)


@pytest.mark.parametrize("std", [0.02, 0.3, 1.0])
def test_triggers_start_as_wide_as_they_are_told(std) -> None:
    torch.manual_seed(0)
    wide = PLR(streams=64, trigger_std=std).build(ENCODERS["gru"].build(DIM, LONGEST), DIM, LONGEST)
    assert wide.triggers.detach().std() == pytest.approx(std, rel=0.1)
    assert wide.step_vectors.detach().std() < 0.05


def test_noise_falls_on_the_second_view_alone() -> None:
    x, batch = sequences(DIM, extra=2)
    reasoner, twice = build_reasoner(ReaRec(), "causal"), batch.repeated(2)
    for part in reasoner.modules():
        if isinstance(part, Dropout):
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


class Gossip(PLRReasoner):
    """Planted: a stream opens where the others do."""

    def openings(self, start):
        return super().openings(start) + self.triggers.mean(0)


class Peeking(ReaRecReasoner):
    """Planted: the history sees the latent tokens."""

    def forward(self, x, batch):
        states = super().forward(x, batch)
        return replace(states, tokens=states.tokens + steps_of(states).steps.mean((1, 2))[:, None])


class Tail(ReaRecReasoner):
    """Planted: begins at the end of the padded row."""

    def opened(self, x, batch, streams):
        states, reasoning = super().opened(x, batch, streams)
        return states, replace(reasoning, states=replace(reasoning.states, start=states.tokens[:, -1]))


class Idle(PLRReasoner):
    """Planted: a parameter that nothing reads."""

    def __init__(self, encoder, dim, spec):
        super().__init__(encoder, dim, spec)
        self.extra = torch.nn.Parameter(torch.ones(dim))


class Absentminded(ReaRecReasoner):
    """Planted: an encoder that forgets."""

    def __init__(self, encoder, dim, spec):
        super().__init__(encoder, dim, spec)
        encoder.__class__ = Late


class Stuck(ReaRecReasoner):
    """Planted: a budget of steps is not kept."""

    def forward(self, x, batch, budget=None):
        return super().forward(x, batch, None if budget is None else Budget(streams=budget.streams))


@pytest.mark.parametrize(
    ("spec", "fault", "check"),
    [
        (PLR(), Gossip, "isolated"), (ReaRec(), Peeking, "blind"), (ReaRec(), Tail, "padding"),
        (ReaRec(), Absentminded, "cached"), (PLR(), Idle, "learns"), (ReaRec(), Stuck, "budgets"),
    ],
)  # fmt: skip
def test_planted_faults_are_caught(spec, fault, check) -> None:
    run = getattr(reasoning, f"check_{check}")
    run(build_reasoner(spec))
    with pytest.raises(AssertionError):
        run(build_reasoner(spec, of=fault))
