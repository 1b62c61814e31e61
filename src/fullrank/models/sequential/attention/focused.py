"""Focused attention: the difference of two softmax attentions mixes the values (FAIR, Sec. 3.2, Eqs. 2 to 7).

Claim: two sets of queries and keys and one of values; A = Norm(l1 A1 - l2 A2) lets what both maps
agree on, the noise, cancel, and leaves what one of them picks out. l1 and l2 are constants, 1 in
the paper. A's entries may be negative.

The paper does not say what Norm is. With l1 = l2 every row of the difference sums to 0, so that
dividing by the row's sum does not exist. `none` (default) leaves the difference: the maps start
alike, so the block starts near the identity. `head_rms` is what the Differential Transformer does
(arXiv:2410.05258, Sec. 2.1): RMSNorm on each head's mixed values, with one learned gain per value
dimension shared by the heads. It cancels any positive scale of a row, so it stands for every such
Norm but for what eps (1e-6) does to rows near zero, and it needs no weights of queries x keys; at
the start it blows a small random difference up to full size, which drowns small inputs. `row_l1`
and `row_rms` divide the row itself, by the sum of its absolute values or by its root mean square
over the keys that may be seen. Why `none`: docs/decisions/0007-focused-attention-without-norm.md.

Rows of these four are signed, and with l1 = l2 they sum to 0: they cannot pass the mean of a
history. The weights that the paper prints (Table 4) are positive in rows that sum to 1, and two
readings of Norm give such rows. `softmax`: A = softmax(l1 A1 - l2 A2) over the keys that may be
seen. The inner maps lie in [0, 1], so that two weights of a row differ by a factor of at most
exp(l1 + l2), e^2 at l1 = l2 = 1, and long rows stay near the mean: their entries are about 1/n.
Larger factors sharpen it. `relu_l1`: A = (D + eps A1) / (sum of D + eps) with D = relu(l1 A1 - l2
A2), which sees no key that the second map prefers and is A1 where no key is left.

Differs: dropout falls on A behind Norm; on A1 and A2 apart it would break what cancels. The first
event of a row sees itself alone in both maps, so with l1 = l2 and signed rows its output is
exactly 0 and the block's residual carries it; `softmax` and `relu_l1` give it weight 1. The factor
1 - lambda_init of the Differential Transformer is left out.

The columns that SPRINT's penalty reads are sums of |A| where the weights are made anyway (under all
norms but `none` and `head_rms`). Elsewhere they are sums of l1 A1 + l2 A2, which is nowhere less
than |A|, so that the bound |A|_2 <= sqrt(|A|_1 |A|_inf) holds with it too; its rows sum to l1 + l2,
which `exact_bound` counts. The RMSNorm of `head_rms` is outside of what the penalty bounds, as
HSTU's gate is. Sums behind dropout would need one mask for two kernels and are refused.
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from fullrank.core.constraints import DropoutRate, PositiveFactor, Width
from fullrank.data.batch import Batch, ColumnSums
from fullrank.models.sequential.attention import (
    Attention,
    AttentionSpec,
    Heads,
    Mask,
    Memory,
    Places,
    Projection,
    WithColumns,
    even_width,
    latent_mask,
    mask,
    rotate,
)
from fullrank.ops.attention import stream_mix, stream_scores
from fullrank.ops.dropout import drop
from fullrank.ops.focused_attention import (
    EPS,
    RowNorm,
    counted_weights,
    focused_attention,
    focused_attention_with_sums,
    focused_weights,
    softmax_map,
    subtracted,
)
from fullrank.ops.starting_values import start_small

Norm = Literal["none", "head_rms", "row_l1", "row_rms", "softmax", "relu_l1"]
ROW_NORMS: dict[str, RowNorm] = {"row_l1": "l1", "row_rms": "rms", "softmax": "softmax", "relu_l1": "relu_l1"}
"""The norms of the rows of weights; the others leave them as they are."""


class Focused(AttentionSpec):
    """Attention as the difference of two softmax maps."""

    kind: Literal["focused"] = "focused"
    norm: Norm = "none"
    """Nothing, RMSNorm of each head's output, rows of the weights over their absolute sum or root mean square, softmax
    of the rows, or their positive part over its sum."""
    lambda_1: PositiveFactor = 1.0
    """Factor of the first map; under `softmax` both factors together say how far weights of a row can differ."""
    lambda_2: PositiveFactor = 1.0
    """Factor of the second, which is subtracted."""
    qk_width: Width | None = None
    """Width of each of the two queries and keys per head; default the model's width over the heads."""
    rope: bool = False
    """Turn queries and keys by their position (RoPE, base 10,000)."""
    dropout: DropoutRate = 0.0
    """Dropout on the difference, behind its norm."""

    def build(self, dim: int, max_length: int) -> FocusedAttention:
        width = self.head_width(dim)
        if self.rope:
            even_width(self.kind, self.qk_width or width)
        return FocusedAttention(dim, max_length, self)


class FocusedAttention(Attention):
    """A = Norm(l1 softmax(Q1 K1^T) - l2 softmax(Q2 K2^T)). A query is [q1 q2] and a key [k1 k2], side by side."""

    captures_after_dropout = False

    def __init__(self, dim: int, max_length: int, spec: Focused):
        super().__init__(dim, max_length, spec, projections=False)
        self.rope, self.weight_dropout = spec.rope, spec.dropout
        self.factors = spec.lambda_1, spec.lambda_2
        self.rows = ROW_NORMS.get(spec.norm)
        self.rows_sum_to_one, self.sparse = self.rows in ("softmax", "relu_l1"), self.rows == "relu_l1"
        self.width = spec.qk_width or dim // spec.heads
        self.sizes = [2 * spec.heads * self.width, 2 * spec.heads * self.width, dim]
        self.qkv = nn.Linear(dim, sum(self.sizes), bias=False)
        self.output = nn.Linear(dim, dim, bias=False)
        self.linear = spec.norm != "head_rms"
        self.norm = nn.RMSNorm(dim // spec.heads, eps=EPS) if spec.norm == "head_rms" else None
        start_small(self)

    def mix(self, q: Tensor, k: Tensor, allowed: Mask) -> Float[Tensor, "B H T S"]:
        """A behind its row norm, or l1 A1 - l2 A2, signed, where the norm is the head's or none."""
        return focused_weights(q, k, self.factors, allowed, self.rows)

    def project(self, x: Float[Tensor, "B T D"], positions: Int[Tensor, "B T"]) -> Heads:
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).split(self.sizes, -1))
        if self.rope:
            # a head's two queries turn as two heads would: each over its own width
            q, k = (rotate(p.unflatten(-1, (2, -1)).transpose(2, 3).flatten(1, 2), positions) for p in (q, k))
            q, k = (p.unflatten(1, (self.heads, 2)).transpose(2, 3).flatten(3) for p in (q, k))
        return q, k, v

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        allowed: Mask | None,
        places: Places | None = None,
    ) -> Float[Tensor, "B T D"]:
        y = focused_attention(q, k, v, self.factors, allowed, norm=self.rows, dropout=self.drop_rate)
        return self.close(y, q)

    def attend_with_columns(
        self, q: Tensor, k: Tensor, v: Tensor, batch: Batch, places: Places | None, *, after_dropout: bool
    ) -> WithColumns:
        y, (columns, rows) = focused_attention_with_sums(
            q, k, v, self.factors, batch.valid, causal=self.causal, norm=self.rows, dropout=self.drop_rate
        )
        return self.close(y, q), ColumnSums(self, columns, batch.valid, None if self.rows_sum_to_one else rows)

    def attend_latent(
        self, q: Float[Tensor, "B H P e"], prefix: Memory, streams: Memory, batch: Batch
    ) -> Float[Tensor, "B P D"]:
        allowed, w = latent_mask(batch, streams[0].shape[3]), self.width
        first, second = (
            softmax_map(stream_scores(q[..., at], prefix[0][..., at], streams[0][..., at]), w, allowed)
            for at in (slice(0, w), slice(w, 2 * w))
        )
        weights = subtracted(first, second, self.factors, allowed, self.rows)
        dropped = drop(weights, self.drop_rate).to(q.dtype)
        return self.close(stream_mix(dropped, prefix[1], streams[1]), q)

    def close(self, mixed: Float[Tensor, "B H T f"], q: Tensor) -> Float[Tensor, "B T D"]:
        """Each head normalised where that is the norm, in fp32, and the output projection of all."""
        y = mixed.float().transpose(1, 2)  # as the kernels lay it out
        y = y if self.norm is None else self.norm(y)
        return self.output(y.flatten(2).to(self.output.weight.dtype))

    def weights(self, x: Float[Tensor, "B T D"], batch: Batch) -> Float[Tensor, "B H T T"]:
        """As `mix`, but in fp64 where no gradient is asked for, as in diagnostics.

        Where the two maps nearly agree, fp32 leaves little but its own rounding.
        """
        q, k, _ = self.project(x, batch.positions(from_end=False))
        q, k = (q, k) if torch.is_grad_enabled() else (q.double(), k.double())
        return self.mix(q, k, mask(batch, causal=self.causal)).to(x.dtype)

    def column_weights(self, x: Float[Tensor, "B T D"], batch: Batch) -> Float[Tensor, "B H T T"]:
        """|A| behind a row norm, else l1 A1 + l2 A2, which is no less."""
        q, k, _ = self.project(x, batch.positions(from_end=False))
        return counted_weights(q, k, self.factors, mask(batch, causal=self.causal), self.rows).to(x.dtype)

    def matrices(self) -> Projection:
        """With head_rms the norm stands between the two."""
        return self.qkv.weight[-self.sizes[2] :].unflatten(0, (self.heads, -1)), self.output.weight
