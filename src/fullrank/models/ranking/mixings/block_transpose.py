"""Block transpose: token i's j-th part changes place with token j's i-th (RankMixer, arXiv:2507.15551, Sec. 3.3).

Claim: tokens exchange information without a parameter. X in R^{T x D} is a T x T grid of blocks of width D / T; with
the transpose of that grid, Y_ij = X_ji,

    M = LN(X + Y)                                                               (RankElastor, Eq. 2 and Theorem 2.1)

LN is over the width of each token. As many parts as tokens: the width must divide by their number.
"""

from __future__ import annotations

from typing import Literal

from jaxtyping import Float
from torch import Tensor, nn

from fullrank.core.checks import divided
from fullrank.models.ranking.mixings import Mixed, Mixing, MixingSpec


class BlockTranspose(MixingSpec):
    """RankMixer's mixing."""

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
    """The same, block by block."""
    tokens, part, out = x.shape[1], x.shape[2] // x.shape[1], x.clone()
    for i in range(tokens):
        for j in range(tokens):
            out[:, i, j * part : (j + 1) * part] = x[:, j, i * part : (i + 1) * part]
    return out
