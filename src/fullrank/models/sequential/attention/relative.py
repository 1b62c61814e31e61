"""Softmax attention with T5's relative position bias (Raffel et al. 2020, arXiv:1910.10683, Sec. 2.1).

A_ij = softmax_j(q_i . k_j / sqrt(e) + b_h(i - j)): a learned number for each head and bucket of
distances. Half of the buckets are for distances of their own, 0, 1, 2, ..; the others grow like
logarithms up to `FURTHEST`, and the last takes all beyond. An attention that sees both sides shares
its buckets between them.

Differs: T5 shares one table among all layers and has no 1 / sqrt(e), which its
starting values make up for.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor, nn

from fullrank.core.constraints import DropoutRate, Width
from fullrank.data.batch import Batch
from fullrank.models.sequential.attention import (
    Attention,
    AttentionSpec,
    Mask,
    Memory,
    Places,
    causal_mask,
    latent_mask,
)
from fullrank.ops.attention import fused_attention, stream_mix, stream_scores
from fullrank.ops.dropout import drop
from fullrank.ops.starting_values import small, start_small

FURTHEST = 128
"""The distance from which on all are one class (T5's)."""


class Relative(AttentionSpec):
    """Softmax attention with a bias by distance (T5)."""

    kind: Literal["relative"] = "relative"
    buckets: int = Field(32, ge=0, le=FURTHEST, multiple_of=4)
    """Classes of distances, of both sides together where the attention is not causal: a multiple of 4; 0 is no bias."""
    width: Width | None = None
    """Width of queries, keys and values per head; default the model's width over the heads, which must divide it."""
    bias: bool = False
    """Biases on the four projections."""
    dropout: DropoutRate = 0.0
    """Dropout on the attention weights."""

    def across(self) -> AttentionSpec:
        return super().across().model_copy(update={"buckets": 0})

    def head_width(self, dim: int) -> int:
        return self.width or super().head_width(dim)

    def build(self, dim: int, max_length: int) -> RelativeAttention:
        return RelativeAttention(dim, max_length, self)


class RelativeAttention(Attention):
    """A = softmax(Q K^T / sqrt e + B)."""

    rows_sum_to_one = True

    def __init__(self, dim: int, max_length: int, spec: Relative):
        super().__init__(dim, max_length, spec, projections=False)
        inner = spec.heads * spec.head_width(dim)
        self.qkv, self.output = nn.Linear(dim, 3 * inner, bias=spec.bias), nn.Linear(inner, dim, bias=spec.bias)
        start_small(self)
        self.weight_dropout, self.buckets, self.positional = spec.dropout, spec.buckets, spec.buckets > 0
        self.by_bucket = small(spec.buckets, spec.heads) if spec.buckets else None

    def mix(self, q: Tensor, k: Tensor, allowed: Mask, places: Places | None = None) -> Float[Tensor, "B H T S"]:
        scores = (q @ k.mT).float() / q.shape[-1] ** 0.5 + self._bias(places or Places.ending(q, k))
        return scores.masked_fill(~allowed, float("-inf")).softmax(-1).to(q.dtype)

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        allowed: Mask | None,
        places: Places | None = None,
    ) -> Float[Tensor, "B T D"]:
        """Without `places` the tokens are those of whole rows, at positions 0, 1, ..."""
        allowed = causal_mask(q, k) if allowed is None else allowed
        added = self._bias(places or Places.ending(q, k)).to(q.dtype).masked_fill(~allowed, float("-inf"))
        return self.close(fused_attention(q, k, v, added, self.drop_rate), q)

    def attend_latent(
        self, q: Float[Tensor, "B H P e"], prefix: Memory, streams: Memory, batch: Batch
    ) -> Float[Tensor, "B P D"]:
        steps = streams[0].shape[3]
        scores = stream_scores(q, prefix[0], streams[0]).float() / q.shape[-1] ** 0.5
        scores = scores + self._bias(Places.behind(batch, steps - 1, 1))
        shares = scores.masked_fill(~latent_mask(batch, steps), float("-inf")).softmax(-1).to(q.dtype)
        dropped = drop(shares, self.drop_rate)
        return self.close(stream_mix(dropped, prefix[1], streams[1]), q)

    def _bias(self, places: Places) -> Float[Tensor, "#B #H T S"]:
        """b_h(i - j) of each query and key; zeros where there are no buckets."""
        if self.by_bucket is None:
            return torch.zeros(1, 1, places.queries.shape[1], places.keys.shape[1], device=places.keys.device)
        apart = places.queries[:, :, None] - places.keys[:, None]
        at = distance_classes(apart, self.buckets, both_sides=not self.causal)
        # takes a third of the time of by_bucket[at], forward and backward
        return self.by_bucket.index_select(0, at.flatten()).view(*at.shape, self.heads).permute(0, 3, 1, 2).float()


def distance_classes(apart: Int[Tensor, "*n"], count: int, *, both_sides: bool) -> Int[Tensor, "*n"]:
    """The class of each distance from a key to the query behind it; keys ahead have the upper half."""
    ahead = (apart < 0) & both_sides
    count = count // 2 if both_sides else count
    far, exact = (apart.abs() if both_sides else apart.clamp_min(0)), count // 2
    # from `exact` on classes grow like logarithms: the last begins where the
    # distance reaches FURTHEST
    grown = (far.clamp_min(exact).float() / exact).log() / math.log(FURTHEST / exact) * (count - exact)
    return torch.where(far < exact, far, (exact + grown.long()).clamp_max(count - 1)) + ahead * count
