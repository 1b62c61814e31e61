"""Scaled dot-product attention (Vaswani et al. 2017, arXiv:1706.03762, Eq. 1), causal or not, with optional RoPE.

Differs: where every visible key is real (causal rows, right-padded), the kernel gets ``is_causal`` and no mask: the
rows of valid queries are the same, and the mask of B x T x T is never made.
"""

from __future__ import annotations

from typing import Literal

import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor, nn

from fullrank.core.errors import UserError
from fullrank.core.spec import Spec
from fullrank.data.batch import Batch, Captures, ColumnSums
from fullrank.models.initial import start_small
from fullrank.models.sequential.attention import Projection, mask, of_mixing
from fullrank.models.sequential.attention.rotary import rotate
from fullrank.models.sequential.attention.streams import Memory, seen
from fullrank.ops.column_attention import column_attention
from fullrank.ops.shared_prefix import stream_mix, stream_scores


class Softmax(Spec):
    """Softmax attention."""

    kind: Literal["softmax"] = "softmax"
    heads: int = Field(2, ge=1)
    """Heads; the width must divide by them."""
    causal: bool = True
    """A position sees itself and what came before it."""
    rope: bool = False
    """Turn queries and keys by their position (RoPE, base 10,000)."""
    bias: bool = False
    """Biases on the four projections."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout on the attention weights."""

    def build(self, dim: int, max_length: int) -> SoftmaxAttention:
        if dim % self.heads:
            raise UserError(f"softmax attention: the width {dim} does not divide by {self.heads} heads")
        if self.rope and (dim // self.heads) % 2:
            raise UserError(f"softmax attention: RoPE needs an even width per head, not {dim // self.heads}")
        return SoftmaxAttention(dim, self)


class SoftmaxAttention(nn.Module):
    """Satisfies `Attention` and `Streamed`."""

    rows_sum_to_one, linear, captures_after_dropout = True, True, True

    def __init__(self, dim: int, spec: Softmax):
        super().__init__()
        self.heads, self.causal, self.rope, self.drop = spec.heads, spec.causal, spec.rope, spec.dropout
        self.qkv = nn.Linear(dim, 3 * dim, bias=spec.bias)
        self.output = nn.Linear(dim, dim, bias=spec.bias)
        start_small(self)

    def flops(self, length: int) -> dict[str, int]:
        weights = self.qkv.weight.numel() + self.output.weight.numel()
        mixing = of_mixing(length, 2 * self.output.in_features, causal=self.causal)
        return {"projections": 2 * length * weights, "mixing": mixing}

    def project(self, x: Float[Tensor, "B T D"], positions: Int[Tensor, "B T"]) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if self.rope:
            q, k = rotate(q, positions), rotate(k, positions)
        return q, k, v

    def attend(self, q: Tensor, k: Tensor, v: Tensor, allowed: Bool[Tensor, "B 1 T S"] | None) -> Tensor:
        drop = self.drop if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed, is_causal=allowed is None, dropout_p=drop)
        return self.output(y.transpose(1, 2).flatten(2))

    def forward(self, x: Float[Tensor, "B T D"], batch: Batch) -> Float[Tensor, "B T D"]:
        q, k, v = self.project(x, batch.positions(from_end=False))
        captures = batch.captures or Captures()
        if captures.memory is not None:
            captures.memory[self] = k, v
        if captures.columns is not None:
            y, noted = self._attend_noting(q, k, v, batch, captures.after_dropout)
            captures.columns.append(noted)
            return y
        return self.attend(q, k, v, None if self.causal else mask(batch, causal=False))

    def think(self, q: Float[Tensor, "B H M e"], prefix: Memory, own: Memory, batch: Batch) -> Float[Tensor, "B M D"]:
        scores = stream_scores(q, prefix[0], own[0]).float() / q.shape[-1] ** 0.5
        shares = scores.masked_fill(~seen(batch, own[0].shape[3]), float("-inf")).softmax(-1).to(q.dtype)
        mixed = stream_mix(F.dropout(shares, self.drop, self.training), prefix[1], own[1])
        return self.output(mixed.transpose(1, 2).flatten(2))

    def _attend_noting(
        self, q: Tensor, k: Tensor, v: Tensor, batch: Batch, after_dropout: bool
    ) -> tuple[Tensor, ColumnSums]:
        y, sums, _ = column_attention(
            q, k, v, batch.valid, causal=self.causal, dropout=self.drop if self.training else 0.0,
            dropped_columns=after_dropout,
        )  # fmt: skip
        return self.output(y.transpose(1, 2).flatten(2)), ColumnSums(self, sums, batch.valid)

    def weights(self, x: Float[Tensor, "B T D"], batch: Batch) -> Float[Tensor, "B H T T"]:
        q, k, _ = self.project(x, batch.positions(from_end=False))
        scores = (q @ k.mT).float() / q.shape[-1] ** 0.5
        return scores.masked_fill(~mask(batch, causal=self.causal), float("-inf")).softmax(-1).to(x.dtype)

    def apply_weights(self, weights: Float[Tensor, "B H T T"], x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        value = self.qkv(x).unflatten(-1, (3, self.heads, -1))[..., 2, :, :].transpose(1, 2)
        return self.output((weights @ value).transpose(1, 2).flatten(2))

    def matrices(self) -> Projection:
        dim = self.output.out_features
        value = self.qkv.weight[2 * dim :]
        return value.unflatten(0, (self.heads, dim // self.heads)), self.output.weight
