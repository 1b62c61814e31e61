"""GELU networks per token, dense or as a sparse mixture of experts (RankMixer, arXiv:2507.15551, Sec. 3.4 and 3.5).

    gelu:     Z_t = LN(W2_t GELU(W1_t M_t + b1_t) + b2_t + M_t)
    experts:  G_tj = ReLU(h_t(M_t))_j,  Z_t = LN(sum_j G_tj FFN_tj(M_t) + M_t),  and lambda * mean of G is added to the
              loss

ReLU routing lets a token take as many experts as it needs; the penalty on G keeps them few.

Differs: the hidden width is `expansion` times the token's, 1 by default, as RankElastor's
experiments set it; its code takes two hidden layers of 200 or 400 (`hidden: [200, 200]`) and adds
the skip without a norm (`norm: false`). With experts, lambda is fixed (`sparsity`) where the paper
adapts it to a budget; there is one router, not one for dense training and one for sparse inference;
and all experts are computed, so a zero gate saves no time here.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from fullrank.core.constraints import DropoutRate, Expansion, Factor, Several, Widths, only_with
from fullrank.core.spec import later
from fullrank.models.ranking.feed_forwards import FeedForward, FeedForwardSpec, TokensAndTerms
from fullrank.ops.dropout import drop
from fullrank.ops.ranking_layers import affine, biases, per_token, stack_of


class Gelu(FeedForwardSpec):
    """GELU per-token FFN (RankMixer, arXiv:2507.15551, Sec. 3.4)."""

    kind: Literal["gelu"] = "gelu"
    expansion: Annotated[Expansion | None, only_with("hidden", ())] = None
    """Hidden width as a multiple of the token's; null is 1."""
    hidden: Widths = ()
    """Hidden widths written out, in place of `expansion`."""
    norm: bool = True
    """LayerNorm of the sum with the input; without it the input is added alone."""
    dropout: DropoutRate = later(0.0)
    """Share of hidden units dropped in training (the code)."""

    def build(self, tokens: int, width: int) -> GeluFeedForward:
        return GeluFeedForward(tokens, width, self)


class GeluFeedForward(FeedForward):
    def __init__(self, tokens: int, width: int, spec: Gelu):
        super().__init__()
        hidden = spec.hidden or (max(1, round((spec.expansion or 1.0) * width)),)
        widths = (width, *hidden, width)
        pairs = list(zip(widths[:-1], widths[1:], strict=True))
        self.weights = nn.ParameterList(stack_of(tokens, a, b) for a, b in pairs)
        self.biases = nn.ParameterList(biases(tokens, b) for _, b in pairs)
        self.norm = nn.LayerNorm(width) if spec.norm else None
        self.dropout = spec.dropout

    def forward(self, x: Float[Tensor, "B T D"]) -> TokensAndTerms:
        network = partial(perceptron, p=self.dropout if self.training else 0.0)
        out = x + per_token(network, x, [*self.weights, *self.biases])
        return out if self.norm is None else self.norm(out), {}

    def start_near_identity(self, blocks: int) -> None:
        """Divide the last map by sqrt(2 blocks): what all blocks add to their input
        is then about as large as it."""
        with torch.no_grad():
            self.weights[-1].div_((2 * blocks) ** 0.5)


def perceptron(x: Tensor, *weights: Tensor, p: float = 0.0) -> Tensor:
    """Layers of one token (or of all): first the matrices, then as many biases; GELU
    and dropout between layers."""
    layers = len(weights) // 2
    for layer in range(layers):
        x = affine(x, weights[layer], weights[layers + layer])
        if layer < layers - 1:
            x = drop(F.gelu(x), p)
    return x


class Experts(FeedForwardSpec):
    """Sparse mixture of experts per token with ReLU routing (RankMixer, arXiv:2507.15551, Sec. 3.5)."""

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
    def __init__(self, tokens: int, width: int, spec: Experts):
        super().__init__()
        self.experts, self.sparsity = spec.experts, spec.sparsity
        hidden = max(1, round(spec.expansion * width))
        self.up = nn.ParameterList(stack_of(tokens, width, hidden) for _ in range(spec.experts))
        self.down = nn.ParameterList(stack_of(tokens, hidden, width) for _ in range(spec.experts))
        self.up_bias = nn.ParameterList(biases(tokens, hidden) for _ in range(spec.experts))
        self.down_bias = nn.ParameterList(biases(tokens, width) for _ in range(spec.experts))
        self.router, self.router_bias = stack_of(tokens, width, spec.experts), biases(tokens, spec.experts)
        self.norm = nn.LayerNorm(width)
        self.dropout = spec.dropout

    def forward(self, x: Float[Tensor, "B T D"]) -> TokensAndTerms:
        gates = F.relu(per_token(affine, x, [self.router, self.router_bias]))
        network = partial(perceptron, p=self.dropout if self.training else 0.0)
        out = x
        for number in range(self.experts):
            weights = [self.up[number], self.down[number], self.up_bias[number], self.down_bias[number]]
            out = out + gates[..., number, None] * per_token(network, x, weights)
        aux = {"routing": self.sparsity * gates.mean()} if self.sparsity else {}
        return self.norm(out), aux

    def start_near_identity(self, blocks: int) -> None:
        """Divide the last map of every expert by sqrt(2 blocks), as of one network."""
        with torch.no_grad():
            for down in self.down:
                down.div_((2 * blocks) ** 0.5)
