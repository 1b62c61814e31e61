"""RankElastor: learned full mixing and gated feed-forward networks per token (KDD 2026, arXiv:2605.23191).

Claim: RankMixer's mixing raises the effective rank too little and its FFNs shrink it; a full
learned mixing expands it more and a gate shrinks it less, and with it come AUC and better scaling
(Tables 2 and 3, Figures 5 to 7).

    M = X + W RMSNorm(vec X) (`mixings.py`, Eq. 3);  head: T D -> 2 T D -> ReLU -> 1
    Z = FFN(M) + M, the FFN a GLU with a skip inside its gate and a closing map (`feed_forwards/glu.py`)

These are the blocks of the authors' code, which the paper's results come from. The paper prints
Z_t = (GELU(M_t W1) * (M_t W2)) W3 + M_t W_r (Eq. 4), which has neither of the two skips nor the
closing map: `feed_forward=glu` is that.

Differs: the paper's (T, D) are (15, 26) on Criteo and (16, 24) on Avazu; (16, 24) is the default,
with the tokeniser that projects to it. The code has one GLU a block (Avazu) or two of width 64
(Criteo): one of the token's width is the default, which is what the paper says of the hidden width,
and what a CPU can train. The tokeniser's hidden norm is on.
"""

from __future__ import annotations

from typing import Literal

from fullrank.core.constraints import Width
from fullrank.models.ranking.blocks import Blocks, Heads, Tokeniser
from fullrank.models.ranking.feed_forwards import AnyFeedForward
from fullrank.models.ranking.feed_forwards.glu import AUTHORS_BLOCK
from fullrank.models.ranking.mixings import AnyMixing, Full


class RankElastor(Blocks):
    """Full mixing and GLU networks per token."""

    kind: Literal["rankelastor"] = "rankelastor"
    width: Width | None = 24
    """D, width of a token; null is (fields x embedding.dim) / tokens, rounded up to what the mixing can divide."""
    tokeniser: Tokeniser = Tokeniser(hidden_norm=True)
    """Fields -> tokens."""
    mixing: AnyMixing = Full()
    """Across tokens."""
    feed_forward: AnyFeedForward = AUTHORS_BLOCK
    """Within each token."""
    head: Heads = "mlp"
    """Tokens -> logit; a comparison of rankers must share it."""
