"""MOJITO: attention maps mixed of what items and what their moments say (Tran et al., SIGIR 2023, arXiv:2304.08158).

Two score maps serve all heads (the admixture of heads is FishFormer's, Nguyen et al., NeurIPS
2022): one of the tokens, S_item = Q K^T, and one of the calendar (`calendar.py`), S_time = Q_c
K_c^T, with c_i the vector of the moment of event i. In training each is drawn from a Gaussian
around its value, S + sigma^2 N(0, 1), with sigma learned. A small network, the same at every pair
of positions, turns the two numbers into one for each head:

    A_h = softmax((W_2 relu(W_1 [S_item, S_time] + b))_h / sqrt e),  y = W_o concat_h(A_h V_h)

Differs: the authors' tokens are items and moments side by side, twice as wide; here the width
stays the model's, and an encoder with ``context: calendar`` adds the moment to the item. Every
layer has calendar codes of its own, where theirs reads the second half of the layer below. Noise
is drawn in training alone, so that an answer can be given twice. W_2 has no bias, which softmax
would not see. The score of a candidate has no part of its own moment: it is the same for all
candidates, and not known when an answer is asked for. SPRINT's authors compare a variant without
this mixture: items plus a vector of the logarithm of the time, which their 20 buckets cut to one
value for all times since 1970.
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from fullrank.core.constraints import DropoutRate, Width
from fullrank.models.sequential.attention import (
    Attention,
    AttentionSpec,
    Heads,
    Mask,
    Places,
    Projection,
    even_width,
    require_times,
    rotate,
)
from fullrank.models.sequential.attention.calendar import CalendarCodes
from fullrank.models.sequential.attention.softmax import Softmax
from fullrank.ops.starting_values import start_otherwise, start_small

SIGMA = 0.1
"""First value of sigma."""


class Mojito(AttentionSpec):
    """Mixture of item attention and calendar attention (needs times)."""

    kind: Literal["mojito"] = "mojito"
    width: Width | None = None
    """Width of queries and keys of both maps; default the model's width over the heads."""
    rope: bool = False
    """Turn queries and keys of the item map by their position (RoPE, base 10,000)."""
    noise: bool = True
    """Draw the scores of both maps from Gaussians in training."""
    calendar: CalendarCodes = CalendarCodes()
    """How a moment is coded."""
    dropout: DropoutRate = 0.0
    """Dropout on the attention weights."""

    def across(self) -> AttentionSpec:
        """A decoder's tokens have no moments: softmax attention."""
        return Softmax(heads=self.heads, causal=False, dropout=self.dropout)

    def build(self, dim: int, max_length: int) -> MojitoAttention:
        by_head = self.head_width(dim)
        width = self.width or by_head
        if self.rope:
            even_width(self.kind, width)
        return MojitoAttention(dim, max_length, width, self)


class MojitoAttention(Attention):
    """A = softmax of a mixture of two maps. Queries and keys have one head, which all heads of the values share."""

    positional, reads_times, rows_sum_to_one = True, True, True

    def __init__(self, dim: int, max_length: int, width: int, spec: Mojito):
        super().__init__(dim, max_length, spec, projections=False)
        self.sizes, self.rope, self.weight_dropout = [width, width, dim], spec.rope, spec.dropout
        self.qkv, self.output = nn.Linear(dim, sum(self.sizes), bias=False), nn.Linear(dim, dim, bias=False)
        self.calendar = spec.calendar.build(dim)
        self.moments = nn.Linear(dim, 2 * width, bias=False)
        self.opened, self.mixed = nn.Linear(2, spec.heads), nn.Linear(spec.heads, spec.heads, bias=False)
        start_small(self)
        for small in (self.opened.weight, self.mixed.weight):  # of two or `heads` numbers, not of a width
            nn.init.xavier_uniform_(small)
            start_otherwise(small)
        self.sigma = nn.Parameter(torch.full((2,), SIGMA)) if spec.noise else None

    def mix(self, q: Tensor, k: Tensor, allowed: Mask, places: Places | None = None) -> Float[Tensor, "B H T S"]:
        # [B, T, S, 2]: the score of the items, and that of the moments
        maps = torch.stack([(q @ k.mT)[:, 0].float(), self._moment_scores(places, q.shape[2]).float()], -1)
        if self.sigma is not None and self.training:
            maps = maps + self.sigma.square() * torch.randn_like(maps)
        scores = self.mixed(self.opened(maps).relu()).movedim(-1, 1).float() / q.shape[-1] ** 0.5
        return scores.masked_fill(~allowed, float("-inf")).softmax(-1).to(q.dtype)

    def project(self, x: Float[Tensor, "B T D"], positions: Int[Tensor, "B T"]) -> Heads:
        """[B, 1, T, e] queries and keys of the item map, [B, H, T, f] values."""
        q, k, v = self.qkv(x).split(self.sizes, -1)
        q, k, v = q[:, None], k[:, None], v.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        if self.rope:
            q, k = rotate(q, positions), rotate(k, positions)
        return q, k, v

    def matrices(self) -> Projection:
        return self.qkv.weight[-self.sizes[2] :].unflatten(0, (self.heads, -1)), self.output.weight

    def _moment_scores(self, places: Places | None, queries: int) -> Float[Tensor, "B T S"]:
        """Scores of the moments of keys for those of the queries,
        which are the last of the keys."""
        times = require_times(None if places is None else places.times, "attention=softmax")
        q, k = self.moments(self.calendar(times)).chunk(2, -1)
        return q[:, k.shape[1] - queries :] @ k.mT
