"""GELU per-token FFN (RankMixer, arXiv:2507.15551, Sec. 3.4).

    Z_t = LN(W2_t GELU(W1_t M_t + b1_t) + b2_t + M_t)

Differs: the hidden width is `expansion` times the token's, 1 by default, as RankElastor's experiments set it; its code
takes two hidden layers of 200 or 400 (`hidden: [200, 200]`) and adds the skip without a norm (`norm: false`).
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from fullrank.core.constraints import DropoutRate, Expansion, Widths, only_with
from fullrank.core.spec import later
from fullrank.models.ranking.feed_forwards import FeedForward, FeedForwardSpec, TokensAndTerms
from fullrank.ops.dropout import dropout
from fullrank.ops.per_token import How, affine, biases, per_token, stack_of


class Gelu(FeedForwardSpec):
    """RankMixer's per-token FFN."""

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
    def __init__(self, tokens: int, width: int, spec: Gelu, how: How | None = None):
        super().__init__()
        self.how = how
        hidden = spec.hidden or (max(1, round((spec.expansion or 1.0) * width)),)
        widths = (width, *hidden, width)
        pairs = list(zip(widths[:-1], widths[1:], strict=True))
        self.weights = nn.ParameterList(stack_of(tokens, a, b) for a, b in pairs)
        self.biases = nn.ParameterList(biases(tokens, b) for _, b in pairs)
        self.norm = nn.LayerNorm(width) if spec.norm else None
        self.dropout = spec.dropout

    def forward(self, x: Float[Tensor, "B T D"]) -> TokensAndTerms:
        network = partial(perceptron, p=self.dropout if self.training else 0.0)
        out = x + per_token(network, x, [*self.weights, *self.biases], self.how)
        return out if self.norm is None else self.norm(out), {}

    def start_near_identity(self, blocks: int) -> None:
        """The last map / sqrt(2 blocks): what all blocks add to their input is then about as large as it."""
        with torch.no_grad():
            self.weights[-1].div_((2 * blocks) ** 0.5)


def perceptron(x: Tensor, *weights: Tensor, p: float = 0.0) -> Tensor:
    """Layers of one token (or of all): first the matrices, then as many biases; GELU and dropout between layers."""
    layers = len(weights) // 2
    for place in range(layers):
        x = affine(x, weights[place], weights[layers + place])
        if place < layers - 1:
            x = dropout(F.gelu(x), p)
    return x
