"""RankMixer: parameter-free token mixing and a feed-forward network per token (Zhu et al. 2025, arXiv:2507.15551).

Claim: tokens that exchange parts and then have networks of their own scale better than crosses of
fields.

    M = LN(X + block_transpose(X)),  X' = LN(FFN_t(M_t) + M_t);  head: mean over tokens, then a linear map

Differs: tokens are cut from the flattened fields or made by a perceptron (`tokeniser`), not
grouped by hand; the hidden width of the FFN is the token's own, as in RankElastor's
experiments (`feed_forward.expansion`). `feed_forward: experts` is the sparse mixture of
experts of its Sec. 3.5.
"""

from __future__ import annotations

from typing import Literal

from fullrank.models.ranking.blocks import Blocks, Heads
from fullrank.models.ranking.feed_forwards import AnyFeedForward
from fullrank.models.ranking.feed_forwards.gelu import Gelu
from fullrank.models.ranking.mixings import AnyMixing, BlockTranspose


class RankMixer(Blocks):
    """Block transpose and GELU networks per token."""

    kind: Literal["rankmixer"] = "rankmixer"
    mixing: AnyMixing = BlockTranspose()
    """Across tokens."""
    feed_forward: AnyFeedForward = Gelu()
    """Within each token."""
    head: Heads = "mean"
    """Tokens -> logit; a comparison of rankers must share it."""
