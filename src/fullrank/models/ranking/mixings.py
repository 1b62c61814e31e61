"""Token mixings of RankMixer and RankElastor: information crosses from token to token.

The contract: a `MixingSpec` whose ``build(tokens, width)`` gives a `Mixing`. Its FLOPs are counted
on shapes, as the ranker's `mixing_0`, `mixing_1`, ..., so it has nothing to write for them.

Block transpose (RankMixer, arXiv:2507.15551, Sec. 3.3): token i's j-th part changes place with
token j's i-th. Claim: tokens exchange information without a parameter. X in R^{T x D} is a T x T
grid of blocks of width D / T; with the transpose of that grid, Y_ij = X_ji,

    M = LN(X + Y)                                                               (RankElastor, Eq. 2 and Theorem 2.1)

LN is over the width of each token. As many parts as tokens: the width must divide by their number.

Parameterized full mixing (RankElastor, Sec. 3.1, Eq. 3): every coordinate of every token mixes with
every other. Claim: with a learned matrix in place of RankMixer's permutation, mixing raises the
effective rank more (Theorem 3.1).

    pre (the authors' code, which the trained results come from):  M = RMSNorm_D(X + W RMSNorm_TD(vec X) + b)
    post (the paper):                                              M = LN_D((W + I) vec X)

vec is row by row and W in R^{TD x TD}. `factor` = k > 1 takes W = W' (x) I_k with W' in R^{TD/k x
TD/k} and no bias, the cheap variant of the code. Differs: the paper does not say over what its LN
goes; ours is over the width of each token, as in RankMixer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Annotated, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fullrank.core.checks import divided
from fullrank.core.constraints import Parts
from fullrank.core.registry import Room
from fullrank.core.spec import Spec
from fullrank.models.ranking.dnn import xavier

Mixed = tuple[Float[Tensor, "B T D"], Float[Tensor, "B T D"]]
"""Tokens before the last norm, and behind it."""


class Mixing(nn.Module, ABC):
    """Tokens -> mixed tokens."""

    @abstractmethod
    def forward(self, x: Float[Tensor, "B T D"]) -> Mixed:
        """The mixed tokens before the last norm, and behind it.

        Diagnostics read the former, as RankElastor's code does; the next layer reads the latter.
        """

    def start_near_identity(self) -> None:
        """Make what is added to the tokens small at the start (`Blocks.initial`);
        nothing to do without weights."""


class MixingSpec(Spec):
    """Base of every token mixing."""

    @property
    def divides(self) -> bool:
        """Whether the width of a token must divide by the number of tokens."""
        return False

    @abstractmethod
    def build(self, tokens: int, width: int) -> Mixing: ...


AnyMixing = Annotated[MixingSpec, Room("rankers.mixings")]
"""A setting that takes any token mixing."""


class BlockTranspose(MixingSpec):
    """Block transpose: token i's j-th part changes place with token j's i-th (RankMixer, arXiv:2507.15551, Sec. 3.3).

    It has no parameter; the width of a token must divide by their number.
    """

    kind: Literal["block_transpose"] = "block_transpose"

    @property
    def divides(self) -> bool:
        return True

    def build(self, tokens: int, width: int) -> BlockTransposeMixing:
        remedy = f"tokens, a part for each; take {-(-width // tokens) * tokens}, or leave width out"
        divided(width, tokens, "block_transpose: the width", remedy)
        return BlockTransposeMixing(width)


class BlockTransposeMixing(Mixing):
    def __init__(self, width: int):
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Float[Tensor, "B T D"]) -> Mixed:
        mixed = x + transposed(x)
        return mixed, self.norm(mixed)


def transposed(x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
    """The transpose of the grid of blocks."""
    tokens = x.shape[1]
    return x.unflatten(2, (tokens, -1)).transpose(1, 2).flatten(2)


def transposed_reference(x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
    """`transposed`, block by block."""
    tokens, part, out = x.shape[1], x.shape[2] // x.shape[1], x.clone()
    for i in range(tokens):
        for j in range(tokens):
            out[:, i, j * part : (j + 1) * part] = x[:, j, i * part : (i + 1) * part]
    return out


class Full(MixingSpec):
    """Parameterized full mixing: every coordinate of every token mixes with every other (RankElastor, Sec. 3.1, Eq. 3).

    A learned matrix in place of RankMixer's permutation.
    """

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
        """Multiply W by 0.1: Xavier's W has a spectral radius of 1, so that I + W is far from I."""
        with torch.no_grad():
            self.linear.weight.mul_(0.1)


def kronecker(weight: Float[Tensor, "N N"], x: Float[Tensor, "B M"], factor: int) -> Float[Tensor, "B M"]:
    """(W' (x) I_k) x without the large matrix; M = N k."""
    return (weight @ x.unflatten(1, (-1, factor))).flatten(1)
