"""HSTU: pointwise SiLU attention with a gate, and biases by position and by time (Zhai et al. 2024, arXiv:2402.17152).

With [U V Q K] = silu(W x) and A_ij = silu(q_i . k_j + b_p(i - j) + b_t(t_(i+1) - t_j)) / n for the
keys that i may see (Eqs. 1 and 2; no softmax and no 1 / sqrt d), y = W_o dropout(U * norm(A V))
(Eq. 3). b_p is a table of distances, b_t one of floor(ln(max(|dt|, 1)) / 0.301) cut at 128, both
shared by the heads; the last event of a row asks about its own time. The defaults are the paper's;
the norm before it, the residual and learned positions are the encoder's.

SPRINT's backbone is the ungated setting: y = W_o A V with ``gate=False, rel_bias=none, rope=True, bias=False``.

Differs: n is the model's `max_length`, where SPRINT's code takes the padded length of the batch,
which would show a row how long its neighbours are. W_o starts Xavier-uniform in both settings. The
table of a causal attention has no entries for distances that causality hides.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from fullrank.core.checks import divided
from fullrank.core.constraints import DropoutRate, Parts, Width, needs, only_with
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
    require_times,
    rotate,
)
from fullrank.ops.attention import stream_mix, stream_scores
from fullrank.ops.dropout import Dropout, drop
from fullrank.ops.silu_attention import Bias, silu_attention, silu_weights
from fullrank.ops.starting_values import STD, start_otherwise, start_small

BUCKETS = 129
"""Entries of the time table; the last takes every difference of e^38.5 seconds or more."""
BUCKET_WIDTH = 0.301
"""Width of a bucket, in ln(seconds)."""


class HSTU(AttentionSpec):
    """SiLU attention with gate and relative biases."""

    kind: Literal["hstu"] = "hstu"
    heads: Parts = 2
    """Heads."""
    qk_width: Width | None = None
    """Width of queries and keys per head; default the model's width over the heads, which must divide it."""
    value_width: Width | None = None
    """Width of values (and of the gate) per head; default as for `qk_width`."""
    gate: bool = True
    """Normalise the mixed values and multiply them by a gate made of the query's own token."""
    norm: Annotated[Literal["layer", "rms"] | None, only_with("gate")] = None
    """Norm before the gate: LayerNorm without gain and bias, or RMSNorm with gain; default layer."""
    rel_bias: Literal["none", "positions", "times"] = "times"
    """Added to the scores: nothing, a table of distances, or that and a table of time differences (needs times)."""
    rope: Annotated[bool, needs("rel_bias", "none", code="settings-contradict")] = False
    """Turn queries and keys by their position, after the SiLU (RoPE, base 10,000); for rel_bias=none."""
    bias: bool = True
    """Bias on the output projection."""
    dropout: DropoutRate = 0.0
    """Dropout on what the output projection reads."""
    weight_dropout: DropoutRate = 0.0
    """Dropout on the attention weights."""

    def across(self) -> AttentionSpec:
        return super().across().model_copy(update={"rel_bias": "none"})

    def build(self, dim: int, max_length: int) -> HSTUAttention:
        if None in (self.qk_width, self.value_width):
            remedy = "heads; choose other heads or set qk_width and value_width"
            divided(dim, self.heads, "hstu attention: the width", remedy)
        if self.rope:
            even_width(self.kind, self.qk_width or dim // self.heads)
        return HSTUAttention(dim, max_length, self)


class HSTUAttention(Attention):
    """A_ij = silu(q_i . k_j + bias) / n. A query carries its gate behind it: both are the querying token's own."""

    positional, linear, captures_after_dropout = True, False, False
    bucket_edges: Tensor | None

    def __init__(self, dim: int, max_length: int, spec: HSTU):
        super().__init__(dim, max_length, spec, projections=False)
        self.rope, self.gated, self.reads_times = spec.rope, spec.gate, spec.rel_bias == "times"
        self.max_length = max_length
        value, qk = spec.value_width or dim // spec.heads, spec.qk_width or dim // spec.heads
        self.sizes = [spec.heads * width for width in (value * spec.gate, value, qk, qk)]
        self.uvqk = nn.Linear(dim, sum(self.sizes), bias=False)
        self.output = nn.Linear(spec.heads * value, dim, bias=spec.bias)
        start_small(self)
        nn.init.xavier_uniform_(self.output.weight)
        start_otherwise(self.output.weight)
        self.norm: nn.Module | None = None
        if spec.gate and spec.norm == "rms":
            self.norm = nn.RMSNorm(spec.heads * value, eps=1e-6)
        elif spec.gate:
            self.norm = nn.LayerNorm(spec.heads * value, eps=1e-6, elementwise_affine=False)
        distances = max_length if spec.causal else 2 * max_length - 1
        self.by_distance = nn.Parameter(torch.randn(distances) * STD) if spec.rel_bias != "none" else None
        self.by_time = nn.Parameter(torch.randn(BUCKETS) * STD) if spec.rel_bias == "times" else None
        # set in an exported graph alone, whose runtime rounds logarithms otherwise
        self.register_buffer("bucket_edges", None, persistent=False)
        self.drop, self.weight_dropout = Dropout(spec.dropout), spec.weight_dropout

    def mix(self, q: Tensor, k: Tensor, allowed: Mask, places: Places | None = None) -> Float[Tensor, "B H T S"]:
        """May be below zero, down to -0.28 / n, and rows do not sum to one."""
        q, bias = q[..., : k.shape[-1]], self._bias(places or Places.ending(q, k))
        added = None if bias is None else bias(slice(0, q.shape[2]), k.shape[2])
        return silu_weights(q, k, self._divisor(q), allowed, added)

    def project(self, x: Float[Tensor, "B T D"], positions: Int[Tensor, "B T"]) -> Heads:
        parts = F.silu(self.uvqk(x)).split(self.sizes, -1)
        u, v, q, k = (part.unflatten(-1, (self.heads, part.shape[-1] // self.heads)).transpose(1, 2) for part in parts)
        if self.rope:
            q, k = rotate(q, positions), rotate(k, positions)
        return (torch.cat([q, u], -1) if self.gated else q), k, v

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        allowed: Mask | None,
        places: Places | None = None,
    ) -> Float[Tensor, "B T D"]:
        """Without `places` the tokens are those of whole rows, at positions 0, 1, ... and without times."""
        return self._attend(q, k, v, allowed, places or Places.ending(q, k), None)[0]

    def attend_with_columns(
        self, q: Tensor, k: Tensor, v: Tensor, batch: Batch, places: Places | None, *, after_dropout: bool
    ) -> WithColumns:
        y, columns, rows = self._attend(q, k, v, self.visible(batch), places or Places.of(batch), batch.valid)
        assert columns is not None
        return y, ColumnSums(self, columns, batch.valid, rows)

    def attend_latent(
        self, q: Float[Tensor, "B H P e"], prefix: Memory, streams: Memory, batch: Batch
    ) -> Float[Tensor, "B P D"]:
        steps, asking = streams[0].shape[3], q[..., : prefix[0].shape[-1]]
        allowed, bias = latent_mask(batch, steps), self._bias(Places.behind(batch, steps - 1, 1))
        scores = stream_scores(asking, prefix[0], streams[0])
        scores = scores if bias is None else scores + bias(slice(0, 1), scores.shape[-1])
        weights = (F.silu(scores) / self._divisor(q)).masked_fill(~allowed, 0.0)
        dropped = drop(weights, self.drop_rate)
        return self.close(stream_mix(dropped, prefix[1], streams[1]), q)

    def close(self, mixed: Float[Tensor, "B H T f"], q: Tensor) -> Float[Tensor, "B T D"]:
        y = mixed.transpose(1, 2).flatten(2)
        if self.norm is not None:
            u = q[..., self.sizes[2] // self.heads :]
            y = u.transpose(1, 2).flatten(2) * self.norm(y)
        return self.output(self.drop(y))

    def visible(self, batch: Batch) -> Bool[Tensor, "B 1 1 T"] | None:
        """A query that sees no key needs no first one: SiLU has no sum to divide by."""
        return None if self.causal else batch.valid[:, None, None, :]

    def matrices(self) -> Projection:
        """The value projection before its SiLU; norm and gate stand between it and the output projection."""
        value = self.uvqk.weight[self.sizes[0] : self.sizes[0] + self.sizes[1]]
        return value.unflatten(0, (self.heads, -1)), self.output.weight

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, allowed: Tensor | None, places: Places, counted: Tensor | None
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """The output, and the sums of |A| by key and by query over the queries that are counted."""
        asking = q[..., : k.shape[-1]]
        divisor, bias = self._divisor(q), self._bias(places)
        mixed, columns, rows = silu_attention(
            asking, k, v, divisor, allowed, bias=bias, counted=counted, dropout=self.drop_rate
        )
        return self.close(mixed, q), columns, rows

    def _divisor(self, q: Tensor) -> Float[Tensor, "1 1 1 1"]:
        """n, as a tensor that broadcasts over the weights."""
        return torch.full((1, 1, 1, 1), float(self.max_length), device=q.device)

    def _bias(self, places: Places) -> Bias | None:
        """The addition to the scores, made for a block of queries when that is asked for; None without one."""
        if self.by_time is not None:
            require_times(places.times, "attention.rel_bias=positions")
        if self.by_distance is None:
            return None
        return lambda queries, keys: self._added(places, queries, keys)

    def _added(self, places: Places, queries: slice, keys: int) -> Float[Tensor, "#B 1 m n"]:
        """b_p(i - j) and b_t of these queries against the first `keys`
        keys, the same for all heads."""
        assert self.by_distance is not None
        most = self.max_length - 1
        apart = places.queries[:, queries, None] - places.keys[:, None, :keys]
        added = self.by_distance[apart.clamp(0, most) if self.causal else apart.clamp(-most, most) + most]
        if self.by_time is not None:
            assert places.query_times is not None and places.times is not None
            since = places.query_times[:, queries, None] - places.times[:, None, :keys]
            at = buckets(since) if self.bucket_edges is None else buckets_by_edges(since, self.bucket_edges)
            # takes 0.4 of the time of by_time[at], forward and backward
            added = added + self.by_time.index_select(0, at.flatten()).view(at.shape)
        return added[:, None]


def buckets(seconds: Int[Tensor, "*n"]) -> Int[Tensor, "*n"]:
    """Which entry of the time table a difference reads."""
    return (seconds.abs().clamp_min(1).float().log() / BUCKET_WIDTH).long().clamp_max(BUCKETS - 1)


def bucket_edges() -> Int[Tensor, "n"]:
    """The least seconds of each entry of the time table, where `buckets` steps, and one that no difference reaches.

    Found by bisection, since what float32 makes of a logarithm near an edge is this machine's own.
    """
    entries = torch.arange(1, BUCKETS)
    low, high = torch.ones_like(entries), torch.full_like(entries, 2**62)
    while bool((high - low > 1).any()):
        middle = low + (high - low) // 2
        reached = buckets(middle) >= entries
        low, high = torch.where(reached, low, middle), torch.where(reached, middle, high)
    return torch.cat([entries.new_zeros(1), high, entries.new_full((1,), 2**63 - 1)])


def buckets_by_edges(seconds: Int[Tensor, "*n"], edges: Int[Tensor, "m"]) -> Int[Tensor, "*n"]:
    """`buckets`, where the logarithm may be off by its last digit: whole numbers put the entry right."""
    near, apart = buckets(seconds), seconds.abs()
    return near + (apart >= edges[near + 1]).long() - (apart < edges[near]).long()
