"""Scaled dot-product attention (Vaswani et al. 2017, arXiv:1706.03762, Eq. 1), causal or not, with optional RoPE.

Differs: where every visible key is real (causal rows, right-padded), the kernel gets ``is_causal``
and no mask: the rows of valid queries are the same, and the mask of B x T x T is never made.
"""

from __future__ import annotations

from typing import Literal

from jaxtyping import Float, Int
from torch import Tensor

from fullrank.core.constraints import DropoutRate
from fullrank.data.batch import Batch, ColumnSums
from fullrank.models.sequential.attention import (
    Attention,
    AttentionSpec,
    Heads,
    Mask,
    Memory,
    Places,
    WithColumns,
    even_width,
    latent_mask,
    rotate,
)
from fullrank.ops.attention import fused_attention, stream_mix, stream_scores
from fullrank.ops.column_attention import column_attention
from fullrank.ops.dropout import drop


class Softmax(AttentionSpec):
    """Softmax attention."""

    kind: Literal["softmax"] = "softmax"
    rope: bool = False
    """Turn queries and keys by their position (RoPE, base 10,000)."""
    bias: bool = False
    """Biases on the four projections."""
    dropout: DropoutRate = 0.0
    """Dropout on the attention weights."""

    def build(self, dim: int, max_length: int) -> SoftmaxAttention:
        if self.rope:
            even_width(self.kind, self.head_width(dim))
        return SoftmaxAttention(dim, max_length, self)


class SoftmaxAttention(Attention):
    """A = softmax(Q K^T / sqrt e), by fused kernels."""

    rows_sum_to_one = True

    def __init__(self, dim: int, max_length: int, spec: Softmax):
        super().__init__(dim, max_length, spec, bias=spec.bias)
        self.rope, self.weight_dropout = spec.rope, spec.dropout

    def mix(self, q: Tensor, k: Tensor, allowed: Mask) -> Float[Tensor, "B H T S"]:
        scores = (q @ k.mT).float() / q.shape[-1] ** 0.5
        return scores.masked_fill(~allowed, float("-inf")).softmax(-1).to(q.dtype)

    def project(self, x: Float[Tensor, "B T D"], positions: Int[Tensor, "B T"]) -> Heads:
        q, k, v = super().project(x, positions)
        if self.rope:
            q, k = rotate(q, positions), rotate(k, positions)
        return q, k, v

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        allowed: Mask | None,
        places: Places | None = None,
    ) -> Float[Tensor, "B T D"]:
        return self.close(fused_attention(q, k, v, allowed, self.drop_rate), q)

    def attend_with_columns(
        self, q: Tensor, k: Tensor, v: Tensor, batch: Batch, places: Places | None, *, after_dropout: bool
    ) -> WithColumns:
        y, sums, _ = column_attention(
            q, k, v, batch.valid, causal=self.causal, dropout=self.drop_rate, dropped_columns=after_dropout
        )
        return self.close(y, q), ColumnSums(self, sums, batch.valid)

    def attend_latent(
        self, q: Float[Tensor, "B H P e"], prefix: Memory, streams: Memory, batch: Batch
    ) -> Float[Tensor, "B P D"]:
        scores = stream_scores(q, prefix[0], streams[0]).float() / q.shape[-1] ** 0.5
        shares = scores.masked_fill(~latent_mask(batch, streams[0].shape[3]), float("-inf")).softmax(-1).to(q.dtype)
        dropped = drop(shares, self.drop_rate)
        return self.close(stream_mix(dropped, prefix[1], streams[1]), q)
