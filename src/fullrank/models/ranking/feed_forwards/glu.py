"""GLU-improved per-token FFN (RankElastor, Sec. 3.2, Eq. 4).

Claim: a gate multiplies coordinates, so that a token's network no longer shrinks the effective rank (Theorem 3.2).

    Z_t = (GELU(M_t W1) * (M_t W2)) W3 + M_t W_r,   W1, W2 in R^{D x rD}, W3 in R^{rD x D}, W_r in R^{D x D}

Differs: an RMSNorm stands before it, and every map but W_r has a bias (the paper omits biases "for clarity"). The
authors' code adds a linear skip inside the gate, (S2 M + GELU(M W1)) * (M W2) (`inner_skip`), and the input once more
outside (`outer_skip`): both are off, as in the paper.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch.nn.functional as F
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from fullrank.core.bounds import MOST_PARTS
from fullrank.models.ranking.feed_forwards import FeedForward, FeedForwardSpec
from fullrank.ops.per_token import How, affine, biases, per_token, stack_of


class Glu(FeedForwardSpec):
    """RankElastor's per-token FFN."""

    kind: Literal["glu"] = "glu"
    expansion: float = Field(3.0, gt=0, le=MOST_PARTS)
    """r: hidden width as a multiple of the token's."""
    norm: bool = True
    """RMSNorm of the input of all maps."""
    bias: bool = True
    """Biases on W1, W2 and W3."""
    inner_skip: bool = False
    """A linear map of the token beside GELU, inside the gate (the code)."""
    outer_skip: bool = False
    """The input itself added to the output, beside W_r (the code)."""

    def build(self, tokens: int, width: int) -> GluFeedForward:
        return GluFeedForward(tokens, width, self)


class GluFeedForward(FeedForward):
    def __init__(self, tokens: int, width: int, spec: Glu, how: How | None = None):
        super().__init__()
        self.how, self.outer_skip = how, spec.outer_skip
        hidden = max(1, round(spec.expansion * width))
        self.norm = nn.RMSNorm(width) if spec.norm else None
        self.gate, self.value = stack_of(tokens, width, hidden), stack_of(tokens, width, hidden)
        self.down, self.residual = stack_of(tokens, hidden, width), stack_of(tokens, width, width)
        self.skip = stack_of(tokens, width, hidden) if spec.inner_skip else None
        widths = (hidden, hidden, width) if spec.bias else ()
        self.biases = nn.ParameterList(biases(tokens, size) for size in widths)

    def forward(self, x: Float[Tensor, "B T D"]) -> tuple[Float[Tensor, "B T D"], Mapping[str, Tensor]]:
        inner = x if self.norm is None else self.norm(x)
        weights = [self.gate, self.value, self.down, self.residual, *self.biases]
        if self.skip is None:
            out = per_token(gated, inner, weights, self.how)
        else:
            out = per_token(gated_with_skip, inner, [self.skip, *weights], self.how)
        return out + x if self.outer_skip else out, {}


def gated(x: Tensor, gate: Tensor, value: Tensor, down: Tensor, residual: Tensor, *bias: Tensor) -> Tensor:
    """Eq. 4 for one token (or for all)."""
    one, two, three = bias or (None, None, None)
    return affine(F.gelu(affine(x, gate, one)) * affine(x, value, two), down, three) + x @ residual


def gated_with_skip(
    x: Tensor, skip: Tensor, gate: Tensor, value: Tensor, down: Tensor, residual: Tensor, *bias: Tensor
) -> Tensor:
    """The form of the authors' code."""
    one, two, three = bias or (None, None, None)
    lifted = x @ skip + F.gelu(affine(x, gate, one))
    return affine(lifted * affine(x, value, two), down, three) + x @ residual
