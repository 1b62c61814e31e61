"""Latent reasoning: steps of thought behind the history, before the answer.

The room's contract: a Spec whose ``build(encoder, dim, max_length)`` gives a `Reasoner`. It is an Encoder that holds an
Encoder: called on a history it reads that once, takes its steps behind the last event (the history never sees them),
and returns States with `thoughts` and named `outputs`. The loss may read another output than the one that answers.

Steps and streams are an argument: under a `Budget` a trained reasoner answers with fewer or more, and nothing of it
changes. `begin`, `advance` and `answered` take one step at a time, so that a caller may stop for some rows (`select`)
and go on with others.

Every reasoner here refines the state of the last event alone. One that refines every position (LARES) fits into the
same contract: its `encoder.start` is the pre-block, its `advance` returns a `Thinking` whose cache holds all positions,
and `thoughts` shows the last of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor

from fullrank.data.batch import Batch, ReasoningStates, States
from fullrank.models.sequential.encoders import Encoder
from fullrank.models.sequential.reasoning.budget import Budget


@dataclass(frozen=True)
class Thinking:
    """Some rows between two steps."""

    thoughts: ReasoningStates
    cache: Any
    """What the reasoner remembers of the rows' histories and of its own steps."""
    taken: int = 0
    """Steps so far."""


@runtime_checkable
class Reasoner(Protocol):
    causal: bool
    encoder: Encoder
    steps: int
    """S as trained."""
    streams: int
    """M as trained."""

    def __call__(self, x: Float[Tensor, "B T D"], batch: Batch, budget: Budget | None = None) -> States:
        """With the budget's steps in its first streams, whose gate then sums to one; as trained without one.

        No step is h_0 alone; a step beyond those trained gets the last one's position vector. Raises `UserError` for
        more streams than were trained.
        """
        ...

    def begin(self, x: Float[Tensor, "B T D"], batch: Batch, budget: Budget | None = None) -> Thinking:
        """Read the history, once."""
        ...

    def advance(self, thinking: Thinking) -> Thinking:
        """One step further, for all of its rows."""
        ...

    def select(self, thinking: Thinking, rows: Int[Tensor, "b"]) -> Thinking:
        """Some of the rows."""
        ...

    def answered(self, thinking: Thinking) -> Float[Tensor, "B D"]:
        """What is answered if it stops now."""
        ...
