"""The checks of reasoners catch planted faults: each fails on a reasoner that breaks it, and on no sound one."""

from dataclasses import replace

import pytest
import torch

from fullrank.models.sequential.encoders.transformer import TransformerEncoder
from fullrank.models.sequential.reasoning.budget import Budget
from fullrank.models.sequential.reasoning.plr import PLRReasoner
from fullrank.models.sequential.reasoning.rearec import ReaRecReasoner
from fullrank.testing import reasoning
from fullrank.testing.reasoning import made, steps_of
from parts import PLR, ReaRec


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

    def _begun(self, x, batch, budget):
        states, reasoning = super()._begun(x, batch, budget)
        return states, replace(reasoning, states=replace(reasoning.states, start=states.tokens[:, -1]))


class Idle(PLRReasoner):
    """Planted: a parameter that nothing reads."""

    def __init__(self, encoder, dim, spec):
        super().__init__(encoder, dim, spec)
        self.extra = torch.nn.Parameter(torch.ones(dim))


class Amnesiac(TransformerEncoder):
    """Planted: a step forgets that steps went before it."""

    def step(self, x, cache):
        return super().step(x, replace(cache, layers=tuple(kept[:2] for kept in cache.layers)))


class Absentminded(ReaRecReasoner):
    """Planted: an encoder that forgets."""

    def __init__(self, encoder, dim, spec):
        super().__init__(encoder, dim, spec)
        encoder.__class__ = Amnesiac


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
    run(made(spec))
    with pytest.raises(AssertionError):
        run(made(spec, of=fault))
