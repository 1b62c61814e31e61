"""The checks of reasoners catch planted faults: each fails on a reasoner that breaks it, and on no sound one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fullrank.core.spec import Spec
from fullrank.data.batch import Batch, States
from fullrank.models.sequential.encoders import Cache
from fullrank.models.sequential.encoders.transformer import TransformerEncoder
from fullrank.models.sequential.reasoning import ReasoningCache
from fullrank.models.sequential.reasoning.budget import Budget
from fullrank.models.sequential.reasoning.plr import PLR, PLRReasoner
from fullrank.models.sequential.reasoning.rearec import ReaRec, ReaRecReasoner
from fullrank.testing.reasoning import (
    check_blind,
    check_budgets,
    check_cached,
    check_effects,
    check_isolated,
    check_learns,
    check_padding,
    made,
    steps_of,
)  # fmt: skip


class Gossip(PLRReasoner):
    """Planted: a stream opens where the others do."""

    def openings(self, start: Tensor) -> Tensor:
        return super().openings(start) + self.triggers.mean(0)


class Peeking(ReaRecReasoner):
    """Planted: the history sees the latent tokens."""

    def forward(self, x: Tensor, batch: Batch) -> States:
        states = super().forward(x, batch)
        return replace(states, tokens=states.tokens + steps_of(states).steps.mean((1, 2))[:, None])


class Tail(ReaRecReasoner):
    """Planted: begins at the end of the padded row."""

    def _begun(self, x: Tensor, batch: Batch, budget: Budget | None) -> tuple[States, ReasoningCache]:
        states, reasoning = super()._begun(x, batch, budget)
        return states, replace(reasoning, states=replace(reasoning.states, start=states.tokens[:, -1]))


class Idle(PLRReasoner):
    """Planted: a parameter that nothing reads."""

    def __init__(self, encoder: Any, dim: int, spec: PLR):
        super().__init__(encoder, dim, spec)
        self.extra = torch.nn.Parameter(torch.ones(dim))


class Amnesiac(TransformerEncoder):
    """Planted: a step forgets that steps went before it."""

    def step(self, x: Tensor, cache: Cache) -> tuple[Tensor, Cache]:
        return super().step(x, replace(cache, layers=tuple(kept[:2] for kept in cache.layers)))


class Absentminded(ReaRecReasoner):
    """Planted: an encoder that forgets."""

    def __init__(self, encoder: TransformerEncoder, dim: int, spec: ReaRec):
        super().__init__(encoder, dim, spec)
        encoder.__class__ = Amnesiac


@pytest.mark.parametrize(
    ("spec", "fault", "check"),
    [
        (PLR(), Gossip, check_isolated),
        (ReaRec(), Peeking, check_blind),
        (ReaRec(), Tail, check_padding),
        (ReaRec(), Absentminded, check_cached),
        (PLR(), Idle, check_learns),
    ],
)
def test_planted_faults_are_caught(spec: Spec, fault: type, check: Callable[[Any], None]) -> None:
    check(made(spec))
    with pytest.raises(AssertionError):
        check(made(spec, of=fault))


def test_a_budget_that_is_not_kept_is_caught() -> None:
    check_budgets(made(ReaRec()))

    class Stuck(ReaRecReasoner):
        def forward(self, x: Tensor, batch: Batch, budget: Budget | None = None) -> States:
            return super().forward(x, batch, None if budget is None else Budget(streams=budget.streams))

    with pytest.raises(AssertionError):
        check_budgets(made(ReaRec(), of=Stuck))


class Deaf(ReaRec):
    """Planted: a setting that nothing reads."""

    unread: bool = False


def test_a_setting_without_effect_is_caught() -> None:
    with pytest.raises(AssertionError, match="has no effect"):
        check_effects(Deaf(), torch.device("cpu"))
