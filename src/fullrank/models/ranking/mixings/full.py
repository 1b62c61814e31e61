"""Parameterized full mixing: every coordinate of every token mixes with every other (RankElastor, Sec. 3.1, Eq. 3).

Claim: with a learned matrix in place of RankMixer's permutation, mixing raises the effective rank more (Theorem 3.1).

    pre (the authors' code, which the trained results come from):  M = RMSNorm_D(X + W RMSNorm_TD(vec X) + b)
    post (the paper):                                              M = LN_D((W + I) vec X)

vec is row by row and W in R^{TD x TD}. `factor` = k > 1 takes W = W' (x) I_k with W' in R^{TD/k x TD/k} and no bias,
the cheap variant of the code.

Differs: the paper does not say over what its LN goes; ours is over the width of each token, as in RankMixer.
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fullrank.core.checks import divided
from fullrank.core.constraints import Parts
from fullrank.models.ranking.mixings import Mixed, Mixing, MixingSpec
from fullrank.models.ranking.perceptron import xavier


class Full(MixingSpec):
    """RankElastor's mixing."""

    kind: Literal["full"] = "full"
    norm: Literal["pre", "post"] = "pre"
    """Where the norm stands: before W with a plain skip (the code), or behind the sum (the paper)."""
    factor: Parts = 1
    """Width k of the identity that W is a Kronecker product with; 1 is a full matrix."""

    def build(self, tokens: int, width: int) -> FullMixing:
        divided(tokens * width, self.factor, "full mixing: tokens x width =", "(factor)")
        return FullMixing(tokens, width, self)


class FullMixing(Mixing):
    def __init__(self, tokens: int, width: int, spec: Full):
        super().__init__()
        whole, self.factor = tokens * width, spec.factor
        pre = spec.norm == "pre"
        self.before = nn.RMSNorm(whole) if pre else None
        self.linear = xavier(nn.Linear(whole // spec.factor, whole // spec.factor, bias=pre and spec.factor == 1))
        self.after: nn.Module = nn.RMSNorm(width) if pre else nn.LayerNorm(width)

    def forward(self, x: Float[Tensor, "B T D"]) -> Mixed:
        flat = x.flatten(1)
        if self.before is not None:
            flat = self.before(flat)
        moved = self.linear(flat) if self.factor == 1 else kronecker(self.linear.weight, flat, self.factor)
        mixed = x + moved.view(x.shape)
        return mixed, self.after(mixed)

    def start_near_identity(self) -> None:
        """W x 0.1: Xavier's W has a spectral radius of 1, so that I + W is far from I."""
        with torch.no_grad():
            self.linear.weight.mul_(0.1)


def kronecker(weight: Float[Tensor, "N N"], x: Float[Tensor, "B M"], factor: int) -> Float[Tensor, "B M"]:
    """(W' (x) I_k) x without the large matrix; M = N k."""
    return (weight @ x.unflatten(1, (-1, factor))).flatten(1)
