"""Latent reasoning: steps after the history, before the answer (ReaRec, arXiv:2503.22675; PLR).

The room's contract: a `ReasonerSpec` that builds a `Reasoner` around an encoder. Called on a
history, it reads that once, takes its steps, and returns States with the states of its steps
(`States.reasoning`) and named `outputs`; the tokens of these States are the encoder's own. The loss
may read another output than the one that answers.

Steps and streams are an argument of each answer, the `Budget` (PLR, Sec. 3.3 and 6.4): a trained
reasoner answers with fewer or more, what is not set is as trained, and nothing of the model
changes, so one model answers under many budgets at a time. It is no part of the protocol that two
results must share: two budgets of one run are exactly what one wants to compare. `begin`, `advance`
and `answered` take one step at a time, so that a caller may stop for some rows (early exit,
`select`) and go on with others.

A step is a token behind the last event (`StepwiseReasoner`: ReaRec, PLR), or it refines the states
of all events (`lares.py`), of which `ReasoningStates` shows the last one's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from fullrank.core.errors import UserError
from fullrank.core.spec import Spec
from fullrank.data.batch import Batch
from fullrank.models import AS_TRAINED, Budget, Flops, ReasoningStates, States, last
from fullrank.models.sequential.encoders import Cache, Encoder
from fullrank.ops.starting_values import small


class ReasonerSpec(Spec):
    """Settings of a reasoner."""

    kind: str

    @abstractmethod
    def build(self, encoder: nn.Module, dim: int, max_length: int) -> Reasoner:
        """The module around an encoder.

        Raises `UserError` where that cannot go on after its history.
        """


class Outputs(Mapping[str, Tensor]):
    """Named answers, each made when it is first read: an answer reads one of them, a training step another."""

    def __init__(self, make: Mapping[str, Callable[[], Tensor]]):
        self._make = make
        self._made: dict[str, Tensor] = {}

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._made:
            self._made[name] = self._make[name]()
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._make)

    def __len__(self) -> int:
        return len(self._make)


@dataclass(frozen=True)
class ReasoningCache:
    """Rows of a batch between two reasoning steps."""

    states: ReasoningStates
    cache: Cache
    """What the next step needs of the rows' histories and of the steps so far."""
    taken: int = 0
    """Steps so far."""


class Reasoner(nn.Module, ABC):
    """Steps of one or more streams. A subclass says how they begin, what a step is, and what is read."""

    uncounted = "a latent token's cost depends on how far each row is read after it; its steps are not counted yet"

    def __init__(self, encoder: nn.Module, *, steps: int, streams: int):
        super().__init__()
        if not isinstance(encoder, Encoder):
            raise UserError(
                f"a reasoner needs an encoder that goes on after its history, a fullrank Encoder with start and step, "
                f"and {type(encoder).__name__} is none; use transformer or gru, or leave model.reasoner out",
                code="not-an-encoder",
            )
        self.encoder = encoder
        self.causal, self.reads_times, self.decodes = encoder.causal, encoder.reads_times, encoder.decodes
        self.steps, self.streams, self.featureless = steps, streams, encoder.featureless

    @abstractmethod
    def opened(self, x: Float[Tensor, "B T D"], batch: Batch, streams: int) -> tuple[States, ReasoningCache]:
        """Read the history, once: the encoder's states, and the rows before the
        first step of that many streams."""

    @abstractmethod
    def advance(self, reasoning: ReasoningCache) -> ReasoningCache:
        """Take one more reasoning step in every row."""

    @abstractmethod
    def trained(self, states: ReasoningStates) -> Float[Tensor, "B D"]:
        """The vector that the loss reads, after one step or more."""

    @abstractmethod
    def answer(self, states: ReasoningStates) -> Float[Tensor, "B D"]:
        """The vector that items are searched with, after one step or more."""

    def steps_in_training(self, batch: Batch) -> int:
        """Steps of a training pass; a function of the batch's seed and step, so that all shards take as many."""
        return self.steps

    def forward(self, x: Float[Tensor, "B T D"], batch: Batch, budget: Budget | None = None) -> States:
        """Read the history and reason: the budget's steps in its first streams; without a budget, as trained.

        The gate of the streams in use sums to one. Without any step the answer is h_0; a
        step beyond those trained gets the last one's vector. Raises `UserError` for more
        streams than were trained.
        """
        history, reasoning = self.opened(x, batch, (budget or AS_TRAINED).streams_of(self))
        drawn = self.training and budget is None
        for _ in range(self.steps_in_training(batch) if drawn else (budget or AS_TRAINED).steps_of(self)):
            reasoning = self.advance(reasoning)
        return replace(history, outputs=self._outputs(reasoning.states), reasoning=reasoning.states)

    def flops(self, length: int, answer: int = 0) -> Flops:
        """FLOPs of one row (`Encoder.flops`), which are not counted."""
        return {"encoder": None}

    def begin(self, x: Float[Tensor, "B T D"], batch: Batch, budget: Budget | None = None) -> ReasoningCache:
        """Read the history, once."""
        return self.opened(x, batch, (budget or AS_TRAINED).streams_of(self))[1]

    def select(self, reasoning: ReasoningCache, rows: Int[Tensor, "b"]) -> ReasoningCache:
        """Some of the rows."""
        s = reasoning.states
        states = ReasoningStates(s.start[rows], s.steps[rows], s.gate[rows])
        return ReasoningCache(states, reasoning.cache.select(rows), reasoning.taken)

    def answered(self, reasoning: ReasoningCache) -> Float[Tensor, "B D"]:
        """The vector that items are searched with if reasoning stops now."""
        return self.answer(reasoning.states) if reasoning.taken else reasoning.states.start

    def _outputs(self, states: ReasoningStates) -> Outputs:
        """The answers after each number of steps, the last of them, and the one that is trained."""
        steps = states.steps.shape[1]
        make: dict[str, Callable[[], Tensor]] = {"step_0": lambda: states.start}
        for s in range(1, steps + 1):
            make[f"step_{s}"] = partial(self.answer, replace(states, steps=states.steps[:, :s]))
        trained = partial(self.trained, states) if steps else make["step_0"]
        return Outputs({**make, "trained": trained, "answer": make[f"step_{steps}"]})


class StepwiseReasoner(Reasoner):
    """Streams of latent tokens after a history. A subclass says where they start, and their gate.

    Step t of stream p puts one token after the row's last event, the stream's state before it plus
    the vector of step t, and its state is what the encoder makes of that token; with `residual`
    plus the state before it. The token sees the history, the stream's own earlier tokens and
    itself; the history sees none of them (`Encoder.start` and `step`, which keep keys and values).
    """

    def __init__(self, encoder: nn.Module, dim: int, *, steps: int, streams: int, residual: bool = False):
        super().__init__(encoder, steps=steps, streams=streams)
        self.residual = residual
        self.step_vectors = small(steps, dim)
        self.input_noise = 0.0
        """Standard deviation of what a second view's tokens get in training; set by the penalty that reads it."""

    @abstractmethod
    def openings(self, start: Float[Tensor, "B D"]) -> Float[Tensor, "B P D"]:
        """The state of each stream before its first step."""

    @abstractmethod
    def weigh(self, start: Float[Tensor, "B D"], streams: int) -> Float[Tensor, "B P"]:
        """The gate of the first `streams` streams."""

    def opened(self, x: Float[Tensor, "B T D"], batch: Batch, streams: int) -> tuple[States, ReasoningCache]:
        history, cache = self.encoder.start(x, batch)
        start = last(history.tokens, batch)
        steps = start.new_zeros(start.shape[0], 0, streams, start.shape[1])
        return history, ReasoningCache(ReasoningStates(start, steps, self.weigh(start, streams)), cache)

    def advance(self, reasoning: ReasoningCache) -> ReasoningCache:
        states, taken = reasoning.states, reasoning.taken
        before = states.steps[:, -1] if taken else self.openings(states.start)[:, : states.gate.shape[1]]
        token = before + self.step_vectors[min(taken, self.steps - 1)]
        if self.training and self.input_noise and reasoning.cache.batch.views > 1:
            token = token + self._noise(token, reasoning.cache.batch.views)
        state, cache = self.encoder.step(token, reasoning.cache)
        if self.residual:
            state = state + before
        grown = torch.cat([states.steps, state[:, None]], 1)
        return ReasoningCache(replace(states, steps=grown), cache, taken + 1)

    def _noise(self, token: Float[Tensor, "B P D"], views: int) -> Float[Tensor, "B P D"]:
        """Input noise of every view but the first, which has none."""
        noise = self.input_noise * torch.randn_like(token)
        noise[: len(token) // views] = 0.0
        return noise
