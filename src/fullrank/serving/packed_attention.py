"""Attention over packed events, and the products around it: the parts of a packed encoder (`serving/fast.py`).

Letters: N events of all B histories, n those of one chunk (a few whole histories, whose events see
each other only within their own), H heads, e their width. TorchScript reads the source of these
classes: signatures say `Tensor` and docstrings the shape, annotations are not put off (`from
__future__`), and `no_type_check` keeps the checker of shapes, which wraps functions while tests
run, off them.
"""

from typing import NamedTuple, no_type_check

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fullrank.models.sequential.attention.hstu import BUCKET_WIDTH, HSTUAttention
from fullrank.models.sequential.attention.softmax import SoftmaxAttention

CHUNK = 64
"""Events whose attention is computed at once: of 36 to 200 the least time per event, on one core."""
SMALL_PRODUCT = 600_000
"""Multiplications below which MKL's call is quicker than oneDNN's, which costs 10 microseconds more to make."""
FUSED = {"none": "none", "relu": "relu", "gelu": "gelu", "silu": "swish"}
"""oneDNN's names of activations."""


@no_type_check
class Chunk(NamedTuple):
    """Some whole histories: events low .. high-1 are those of rows first .. end-1."""

    low: int
    high: int
    first: int
    end: int
    among: Tensor
    """[n, n] summand of the scores of their events: 0, or -inf where one does not see the other."""
    behind: Tensor
    """[rows, n] summand where each row's last event is the query."""


@no_type_check
class Layout(NamedTuple):
    """Positions, times and chunks of the N events of a batch."""

    places: Tensor
    """[N] position in its history, from 0."""
    to_come: Tensor
    """[N] number of events that come after it in its history."""
    last: Tensor
    """[B] number of the last event of each row."""
    query_times: Tensor
    """[N] the time that an event predicts at: the next one's, for the last event its own; empty without times."""
    times: Tensor
    """[N], or empty."""
    chunks: list[Chunk]


def can_pack() -> bool:
    """Whether oneDNN lays out weights here (builds for x86 do)."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def lay_out(weight: Tensor) -> Tensor:
    """A matrix [out, in] laid out for oneDNN; unchanged where oneDNN cannot be used."""
    if not can_pack():
        return weight
    return torch.ops.mkldnn._reorder_linear_weight(weight, CHUNK)


@no_type_check
class Dense(nn.Module):
    """activation(x W^T + b)."""

    __constants__ = ("packs", "activation", "fused")

    def __init__(self, weight: Tensor, bias: Tensor | None, activation: str = "none"):
        super().__init__()
        self.weight = weight.detach().clone().contiguous()
        self.bias: Tensor | None = None if bias is None else bias.detach().clone()
        self.packs, self.activation, self.fused = can_pack(), activation, FUSED[activation]
        self.packed, self.small = lay_out(self.weight), SMALL_PRODUCT

    def forward(self, x: Tensor) -> Tensor:
        if self.packs and x.shape[0] * self.weight.numel() >= self.small:
            y: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, self.fused, [], "none")
            return y
        y = F.linear(x, self.weight, self.bias)
        if self.activation == "relu":
            return F.relu(y)
        if self.activation == "gelu":
            return F.gelu(y)
        if self.activation == "silu":
            return F.silu(y)
        return y


@no_type_check
class Mixer(nn.Module):
    """Attention over packed events: softmax(q . k / sqrt e) or silu(q . k + bias) / n.

    `query_side` are the rows of the querying event alone (queries, and the gate behind them),
    `key_side` keys and values of all events.
    """

    __constants__ = ("final", "silu", "gated", "rope", "timed", "placed")

    def __init__(self, attention: SoftmaxAttention | HSTUAttention, final: bool, max_length: int):
        super().__init__()
        self.final, self.heads, self.rope = final, attention.heads, attention.rope
        self.by_time, self.by_distance = torch.zeros(0), torch.zeros(0)
        self.norm: nn.Module = nn.Identity()
        if isinstance(attention, HSTUAttention):
            u, v, q, k = attention.uvqk.weight.split(attention.sizes)
            query_side, key_side, biases = torch.cat([q, u]), torch.cat([k, v]), None
            self.silu, self.gated = True, attention.gated
            self.divisor, activation = float(attention.max_length), "silu"
            if attention.norm is not None:
                self.norm = attention.norm
            if attention.by_distance is not None:
                self.by_distance = attention.by_distance.detach().clone()
            if attention.by_time is not None:
                self.by_time = attention.by_time.detach().clone()
        else:
            q, k, v = attention.qkv.weight.chunk(3)
            query_side, key_side, biases = q, torch.cat([k, v]), attention.qkv.bias
            self.silu, self.gated = False, False
            self.divisor, activation = 1.0, "none"
        self.timed, self.placed = len(self.by_time) > 0, len(self.by_distance) > 0
        self.most, self.least = max_length - 1, 0 if attention.causal else 1 - max_length
        self.query_width, self.key_width, self.sizes = len(q), len(k), [len(query_side), len(key_side)]
        self.bucket, self.scale = BUCKET_WIDTH, (self.query_width // self.heads) ** -0.5
        self.both: nn.Module = nn.Identity()
        self.query_side: nn.Module = nn.Identity()
        self.key_side: nn.Module = nn.Identity()
        if final:
            query_bias, key_bias = (None, None) if biases is None else biases.split(self.sizes)
            self.query_side = Dense(query_side, query_bias, activation)
            self.key_side = Dense(key_side, key_bias, activation)
        else:
            self.both = Dense(torch.cat([query_side, key_side]), biases, activation)
        self.output = Dense(attention.output.weight, attention.output.bias)
        half = max(self.query_width // self.heads // 2, 1)
        angle = torch.arange(max_length)[:, None] * 10_000.0 ** -(torch.arange(half) / half)
        self.cos, self.sin = angle.cos(), angle.sin()

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        """[N, D] -> [N, D]; of the final layer [B, D], for the last event of each row."""
        places, moments = layout.places, layout.query_times
        if self.final:
            key_side, query_side = self.key_side(x), self.query_side(x.index_select(0, layout.last))
            places = places.index_select(0, layout.last)
            moments = moments.index_select(0, layout.last) if self.timed else moments
        else:
            both = self.both(x)
            query_side, key_side = both[:, : self.sizes[0]], both[:, self.sizes[0] :]
        q = query_side[:, : self.query_width].unflatten(1, (self.heads, -1))
        k = key_side[:, : self.key_width].unflatten(1, (self.heads, -1))
        v = key_side[:, self.key_width :].unflatten(1, (self.heads, -1)).transpose(0, 1)
        if self.rope:
            q, k = self.turned(q, places), self.turned(k, layout.places)
        q, k = q.transpose(0, 1), k.permute(1, 2, 0)  # [H, queries, e] and [H, e, N]; v is [H, N, e]
        mixed: list[Tensor] = []
        for chunk in layout.chunks:
            first, end, seen = chunk.low, chunk.high, chunk.among
            if self.final:
                first, end, seen = chunk.first, chunk.end, chunk.behind
            asks, keys = q[:, first:end], k[:, :, chunk.low : chunk.high]
            if self.silu:
                scores = torch.bmm(asks, keys)
                if self.placed:
                    low, high = chunk.low, chunk.high
                    near, then = places[first:end], moments[first:end]
                    scores = scores + self.bias(near, then, layout.places[low:high], layout.times[low:high])
                visible = (seen == 0.0).to(scores.dtype) / self.divisor
                weights = F.silu(scores) * visible
            else:
                weights = torch.baddbmm(seen, asks, keys, alpha=self.scale).softmax(-1)
            mixed.append(torch.bmm(weights, v[:, chunk.low : chunk.high]).transpose(0, 1).flatten(1))
        y = mixed[0] if len(mixed) == 1 else torch.cat(mixed)
        if self.gated:
            y = query_side[:, self.query_width :] * self.norm(y)
        return self.output(y)

    def bias(self, places: Tensor, moments: Tensor, others: Tensor, times: Tensor) -> Tensor:
        """[queries, n] what distance and time add to the scores of queries and keys.

        Queries are at `places` and `moments`, keys at `others` and `times`.
        """
        added = self.by_distance[(places[:, None] - others).clamp(self.least, self.most) - self.least]
        if self.timed:
            seconds = (moments[:, None] - times).abs().clamp_min(1).float()
            at = (seconds.log() / self.bucket).long().clamp_max(len(self.by_time) - 1)
            added = added + self.by_time.index_select(0, at.flatten()).view(at.shape)
        return added

    def turned(self, x: Tensor, places: Tensor) -> Tensor:
        """[n, H, e] turned by position (RoPE)."""
        cos, sin = self.cos.index_select(0, places)[:, None], self.sin.index_select(0, places)[:, None]
        left, right = x.chunk(2, -1)
        return torch.cat([left * cos - right * sin, right * cos + left * sin], -1)
