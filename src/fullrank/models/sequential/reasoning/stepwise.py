"""What reasoners share that feed a state back to their encoder: streams of cached steps, the budget, named outputs.

Step t of stream m puts one token behind the row's last event, the stream's state before it plus the vector of step t,
and its state is what the encoder makes of that token. The token sees the history, the stream's own earlier tokens and
itself; the history sees none of them (`Encoder.start` and `step`, which keep keys and values).
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from fullrank.core.errors import UserError
from fullrank.data.batch import Batch, ReasoningStates, States, last
from fullrank.models.initial import STD
from fullrank.models.sequential.reasoning import Thinking
from fullrank.models.sequential.reasoning.budget import AS_TRAINED, Budget


class Stepwise(nn.Module):
    """Satisfies `Reasoner`; a subclass says where streams open, how they are weighed and what is made of them."""

    uncounted = "a latent token's cost depends on how far each row is read behind it; its steps are not counted yet"

    def __init__(self, encoder: nn.Module, dim: int, *, steps: int, streams: int):
        super().__init__()
        if not hasattr(encoder, "start") or not hasattr(encoder, "step"):
            raise UserError(
                f"a reasoner needs an encoder that goes on behind its history (start and step), and "
                f"{type(encoder).__name__} does not; use transformer or gru, or leave model.reasoner out"
            )
        inner: Any = encoder
        self.encoder = inner
        self.causal: bool = inner.causal
        self.reads_times: bool = getattr(encoder, "reads_times", False)
        self.steps, self.streams = steps, streams
        self.step_vectors = nn.Parameter(torch.randn(steps, dim) * STD)
        self.input_noise = 0.0
        """Standard deviation of what a second view's tokens get in training; set by the penalty that reads it."""

    @abstractmethod
    def openings(self, start: Float[Tensor, "B D"]) -> Float[Tensor, "B M D"]:
        """The state of each stream before its first step."""

    @abstractmethod
    def weigh(self, start: Float[Tensor, "B D"], streams: int) -> Float[Tensor, "B M"]:
        """The gate of the first `streams` streams."""

    @abstractmethod
    def trained(self, thoughts: ReasoningStates) -> Float[Tensor, "B D"]:
        """What the loss reads, after one step or more."""

    @abstractmethod
    def answer(self, thoughts: ReasoningStates) -> Float[Tensor, "B D"]:
        """What is searched with, after one step or more."""

    def forward(self, x: Float[Tensor, "B T D"], batch: Batch, budget: Budget | None = None) -> States:
        states, thinking = self._begun(x, batch, budget)
        for _ in range((budget or AS_TRAINED).steps_of(self)):
            thinking = self.advance(thinking)
        return replace(states, outputs=self._outputs(thinking.thoughts), thoughts=thinking.thoughts)

    def begin(self, x: Float[Tensor, "B T D"], batch: Batch, budget: Budget | None = None) -> Thinking:
        return self._begun(x, batch, budget)[1]

    def advance(self, thinking: Thinking) -> Thinking:
        thoughts, taken = thinking.thoughts, thinking.taken
        before = self.openings(thoughts.start)[:, : thoughts.gate.shape[1]] if not taken else thoughts.steps[:, -1]
        token = before + self.step_vectors[min(taken, self.steps - 1)]
        if self.training and self.input_noise and thinking.cache.batch.views > 1:
            token = token + self._noise(token, thinking.cache.batch.views)
        state, cache = self.encoder.step(token, thinking.cache)
        grown = torch.cat([thoughts.steps, state[:, None]], 1)
        return Thinking(replace(thoughts, steps=grown), cache, taken + 1)

    def select(self, thinking: Thinking, rows: Int[Tensor, "b"]) -> Thinking:
        t = thinking.thoughts
        kept = ReasoningStates(t.start[rows], t.steps[rows], t.gate[rows])
        return Thinking(kept, thinking.cache.select(rows), thinking.taken)

    def answered(self, thinking: Thinking) -> Float[Tensor, "B D"]:
        return self.answer(thinking.thoughts) if thinking.taken else thinking.thoughts.start

    def _begun(self, x: Tensor, batch: Batch, budget: Budget | None) -> tuple[States, Thinking]:
        streams = (budget or AS_TRAINED).streams_of(self)
        states, cache = self.encoder.start(x, batch)
        start = last(states.tokens, batch)
        steps = start.new_zeros(len(start), 0, streams, start.shape[1])
        return states, Thinking(ReasoningStates(start, steps, self.weigh(start, streams)), cache)

    def _outputs(self, thoughts: ReasoningStates) -> dict[str, Tensor]:
        found = {"step_0": thoughts.start}
        for s in range(1, thoughts.steps.shape[1] + 1):
            found[f"step_{s}"] = self.answer(replace(thoughts, steps=thoughts.steps[:, :s]))
        trained = self.trained(thoughts) if thoughts.steps.shape[1] else thoughts.start
        return {**found, "trained": trained, "answer": found[f"step_{thoughts.steps.shape[1]}"]}

    def _noise(self, token: Float[Tensor, "B M D"], views: int) -> Float[Tensor, "B M D"]:
        """Of all views but the first."""
        noise = self.input_noise * torch.randn_like(token)
        noise[: len(token) // views] = 0.0
        return noise
