"""LARES: depth-recurrent reasoning, a block that reads all events of a history again and again (arXiv:2505.16865).

H = A(E + P) are the states of the model's encoder, the pre-block A. The thoughts T begin at T_0 =
omega z with z ~ N(0, sigma^2 I), one for each event, and the core block C, whose weights all steps
share, refines those of all events: T_i = C(LN(f(T_(i-1), H))). The answer is the last event's
thought T_k. f is (T + H) / 2, a linear map of both side by side, or a learned scalar gate. In
training the number of steps is drawn anew for every batch, rate ~ LogNormal with mean `steps` and k
= 1 + Poisson(rate), at most 3 `steps`; a model takes `steps` to answer. The penalty of its
self-supervised pre-training is `reasoning_alignment`.

Reconstructed from the paper's abstract and reviews, and checked against the authors' released code.

Differs: the authors' second stage, reinforcement post-training with GRPO, is left out. To answer,
T_0 is zero, or with `start_at_inference=drawn` a fixed draw for each place of a history, so that
the same history has the same answer; the authors draw anew. T_0 has the product omega sigma as one
setting. With no step at all the answer is the pre-block's.
"""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import NormalDist
from typing import Annotated, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fullrank.core.constraints import Factor, Parts, only_with
from fullrank.core.errors import UserError
from fullrank.core.random import uniform_draws
from fullrank.core.registry import Room
from fullrank.data.batch import Batch
from fullrank.models import ReasoningStates, States, last
from fullrank.models.sequential.attention.softmax import Softmax
from fullrank.models.sequential.encoders import Cache, Encoder, EncoderSpec
from fullrank.models.sequential.encoders.transformer import Transformer
from fullrank.models.sequential.reasoning import Reasoner, ReasonerSpec, ReasoningCache
from fullrank.ops.starting_values import start_small

PLACE = 11_534_351
"""Sets the draw of a depth apart from those of negatives."""
SIGMA = 0.5
"""Standard deviation of the logarithm of the Poisson rate, as in the authors' code."""
CUT = 3.0
"""Standard deviations at which T_0 is cut off."""
CORE = Transformer(
    layers=1,
    attention=Softmax(heads=2, bias=True),
    norm="layer",
    norm_at="post",
    norm_eps=1e-12,
    feed_forward="mlp",
    activation="gelu",
    bias=True,
    positions="none",
    input_dropout=0.0,
)


class LARES(ReasonerSpec):
    """A core block that is applied again and again to all events."""

    kind: Literal["lares"] = "lares"
    steps: Parts = 4
    """Steps to answer, and the mean that depths in training are drawn around."""
    core: Annotated[EncoderSpec, Room("encoders")] = CORE
    """The core block C: any encoder that gives every event a state; learned positions in it are added in every step."""
    join: Literal["mean", "concat", "gate"] = "mean"
    """f: the mean of T and H, a linear map of both side by side, or s T + (1 - s) H with a learned scalar s."""
    depth: Literal["poisson_lognormal", "uniform", "fixed"] = "poisson_lognormal"
    """Steps of a training batch: 1 + Poisson of a log-normal rate, uniform from 1 to twice `steps`, or `steps`."""
    start_std: Factor = 3.0
    """omega sigma: standard deviation of T_0 in training; 0 begins at zeros."""
    start_at_inference: Annotated[Literal["zero", "drawn"], only_with("start_std")] = "zero"
    """T_0 of an answer: zeros, or a fixed draw for each place of a history."""

    def build(self, encoder: nn.Module, dim: int, max_length: int) -> LARESReasoner:
        return LARESReasoner(encoder, dim, max_length, self)


class LARESReasoner(Reasoner):
    start_draw: Tensor
    """[max_length, D]; None where an answer begins at zeros."""

    def __init__(self, encoder: nn.Module, dim: int, max_length: int, spec: LARES):
        super().__init__(encoder, steps=spec.steps, streams=1)
        self.core: Encoder = spec.core.build(dim, max_length)
        for part, name in ((self.encoder, "model.encoder"), (self.core, "model.reasoner.core")):
            if part.decodes:
                raise UserError(
                    f"lares refines the state of every event, and {name} answers with a decoder behind them: choose "
                    "transformer or gru",
                    code="encoder-answers-once",
                )
        self.causal = self.encoder.causal and self.core.causal
        self.reads_times = self.encoder.reads_times or self.core.reads_times
        self.depth, self.start_std, self.join = spec.depth, spec.start_std, spec.join
        self.norm = nn.LayerNorm(dim, eps=1e-12)
        self.both = nn.Linear(2 * dim, dim) if spec.join == "concat" else None
        self.share = nn.Parameter(torch.zeros(())) if spec.join == "gate" else None
        fixed = torch.randn(max_length, dim, generator=torch.Generator().manual_seed(PLACE)).clamp(-CUT, CUT)
        self.drawn = spec.start_at_inference == "drawn"
        self.register_buffer("start_draw", spec.start_std * fixed if self.drawn else None, persistent=False)
        start_small(self)

    def steps_in_training(self, batch: Batch) -> int:
        if self.depth == "fixed":
            return self.steps
        row = torch.full((1,), PLACE)
        first, second = uniform_draws(batch.seed, batch.step, row, 2)[0].tolist()
        if self.depth == "uniform":
            return 1 + int(first * 2 * self.steps)
        return drawn_depth(self.steps, first, second)

    def opened(self, x: Float[Tensor, "B T D"], batch: Batch, streams: int) -> tuple[States, ReasoningCache]:
        history = self.encoder(x, batch)
        hidden = history.tokens
        start = last(hidden, batch)
        states = ReasoningStates(
            start, start.new_zeros(start.shape[0], 0, 1, start.shape[1]), torch.ones_like(start[:, :1])
        )
        return history, ReasoningCache(states, Cache(((hidden, self._first_thought(hidden, batch)),), batch))

    def advance(self, reasoning: ReasoningCache) -> ReasoningCache:
        (hidden, thought), states = reasoning.cache.layers[0], reasoning.states
        batch = reasoning.cache.batch
        thought = self.core(self.norm(self._joined(thought, hidden)), batch).tokens
        grown = torch.cat([states.steps, last(thought, batch)[:, None, None]], 1)
        cache = reasoning.cache.grown(((hidden, thought),))
        return ReasoningCache(replace(states, steps=grown), cache, reasoning.taken + 1)

    def trained(self, states: ReasoningStates) -> Float[Tensor, "B D"]:
        return self.answer(states)

    def answer(self, states: ReasoningStates) -> Float[Tensor, "B D"]:
        return states.steps[:, -1, 0]

    def _first_thought(self, hidden: Float[Tensor, "B T D"], batch: Batch) -> Float[Tensor, "B T D"]:
        """T_0: drawn in training; zeros, or the fixed draw, in an answer."""
        if self.training:
            return self.start_std * torch.randn_like(hidden).clamp(-CUT, CUT)
        if not self.drawn:
            return torch.zeros_like(hidden)
        places = batch.positions(from_end=False).clamp_max(len(self.start_draw) - 1)
        return self.start_draw[places].to(hidden.dtype)

    def _joined(self, thought: Float[Tensor, "B T D"], hidden: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """f(T, H): the input of the core block, from thoughts and the states of the history."""
        if self.both is not None:
            return self.both(torch.cat([thought, hidden], -1))
        share = 0.5 if self.share is None else self.share.sigmoid()
        return share * thought + (1 - share) * hidden


def drawn_depth(mean: int, first: float, second: float) -> int:
    """1 + Poisson(rate), at most three times the mean, with rate ~ LogNormal of this
    mean, from two uniform numbers."""
    normal = NormalDist().inv_cdf(min(max(first, 1e-12), 1 - 1e-12))
    rate = math.exp(math.log(mean) - SIGMA**2 / 2 + SIGMA * normal)
    # the first count of a Poisson distribution at which its cumulated chance passes `second`
    count, chance = 0, math.exp(-rate)
    below = chance
    while second >= below and 1 + count < 3 * mean:
        count += 1
        chance *= rate / count
        below += chance
    return min(1 + count, 3 * mean)
