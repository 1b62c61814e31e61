"""Sparse mixture of experts per token with ReLU routing (RankMixer, arXiv:2507.15551, Sec. 3.5).

    G_tj = ReLU(h_t(M_t))_j,  Z_t = LN(sum_j G_tj FFN_tj(M_t) + M_t),  and lambda * mean of G is added to the loss

ReLU lets a token take as many experts as it needs; the penalty on G keeps them few.

Differs: lambda is fixed (`sparsity`) where the paper adapts it to a budget; there is one router, not one for dense
training and one for sparse inference; and all experts are computed, so a zero gate saves no time here.
"""

from __future__ import annotations

from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from fullrank.core.constraints import DropoutRate, Expansion, Factor, Several
from fullrank.core.spec import later
from fullrank.models.ranking.feed_forwards import FeedForward, FeedForwardSpec, TokensAndTerms
from fullrank.models.ranking.feed_forwards.gelu import perceptron
from fullrank.ops.per_token import How, affine, biases, per_token, stack_of


class Experts(FeedForwardSpec):
    """RankMixer's sparse-MoE per-token FFN."""

    kind: Literal["experts"] = "experts"
    experts: Several = 4
    """Experts of each token."""
    expansion: Expansion = 1.0
    """Hidden width of an expert as a multiple of the token's."""
    sparsity: Factor = 1e-3
    """Weight of the mean gate in the loss; 0 adds nothing."""
    dropout: DropoutRate = later(0.0)
    """Share of each expert's hidden units dropped in training."""

    def build(self, tokens: int, width: int) -> ExpertsFeedForward:
        return ExpertsFeedForward(tokens, width, self)


class ExpertsFeedForward(FeedForward):
    def __init__(self, tokens: int, width: int, spec: Experts, how: How | None = None):
        super().__init__()
        self.how, self.experts, self.sparsity = how, spec.experts, spec.sparsity
        hidden = max(1, round(spec.expansion * width))
        self.up = nn.ParameterList(stack_of(tokens, width, hidden) for _ in range(spec.experts))
        self.down = nn.ParameterList(stack_of(tokens, hidden, width) for _ in range(spec.experts))
        self.up_bias = nn.ParameterList(biases(tokens, hidden) for _ in range(spec.experts))
        self.down_bias = nn.ParameterList(biases(tokens, width) for _ in range(spec.experts))
        self.router, self.router_bias = stack_of(tokens, width, spec.experts), biases(tokens, spec.experts)
        self.norm = nn.LayerNorm(width)
        self.dropout = spec.dropout

    def forward(self, x: Float[Tensor, "B T D"]) -> TokensAndTerms:
        gates = F.relu(per_token(affine, x, [self.router, self.router_bias], self.how))
        network = partial(perceptron, p=self.dropout if self.training else 0.0)
        out = x
        for number in range(self.experts):
            weights = [self.up[number], self.down[number], self.up_bias[number], self.down_bias[number]]
            out = out + gates[..., number, None] * per_token(network, x, weights, self.how)
        aux = {"routing": self.sparsity * gates.mean()} if self.sparsity else {}
        return self.norm(out), aux

    def start_near_identity(self, blocks: int) -> None:
        """The last map of every expert / sqrt(2 blocks), as in `gelu.py`."""
        with torch.no_grad():
            for down in self.down:
                down.div_((2 * blocks) ** 0.5)
