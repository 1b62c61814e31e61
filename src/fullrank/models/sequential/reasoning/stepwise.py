"""Streams of latent tokens after a history: what the reasoners of ReaRec and PLR have in common.

Step t of stream p puts one token after the row's last event, the stream's state before it plus the vector of step t,
and its state is what the encoder makes of that token; with `residual` plus the state before it. The token sees the
history, the stream's own earlier tokens and itself; the history sees none of them (`Encoder.start` and `step`, which
keep keys and values).
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fullrank.data.batch import Batch
from fullrank.models.contracts import ReasoningStates, States, last
from fullrank.models.initial import small
from fullrank.models.sequential.reasoning import Reasoner, ReasoningCache


class StepwiseReasoner(Reasoner):
    """A subclass says where the streams start, and their gate."""

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
        """Of all views but the first."""
        noise = self.input_noise * torch.randn_like(token)
        noise[: len(token) // views] = 0.0
        return noise
