"""Packed encoders: the events of a few histories behind each other, without padding, through the weights of a model.

What a service computes for a batch of 1 to 64 short histories. Differs from the model's own forward pass in what is
left out, not in what is computed: no padding; the last layer computes the last event of each history alone, all that
a list is made of; products by oneDNN over weights that are laid out for it once.

Letters: N events of all B histories, n those of one chunk (a few whole histories, whose events see each other only
within their own), H heads, e their width.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any, NamedTuple, cast

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from fullrank.models.sequential.attention.hstu import HSTUAttention, buckets
from fullrank.models.sequential.attention.positions import rotate
from fullrank.models.sequential.attention.softmax import SoftmaxAttention
from fullrank.models.sequential.encoders.feed_forward import MLP, SwiGLU
from fullrank.models.sequential.encoders.gru import GRUEncoder
from fullrank.models.sequential.encoders.transformer import Block, TransformerEncoder

CHUNK = 64
"""Events whose attention is computed at once: of 36 to 200 the least time per event, on one core."""
SMALL_PRODUCT = 600_000
"""Multiplications below which MKL's call is quicker than oneDNN's, which costs 10 microseconds more to make."""
FUSED = {"none": "none", "relu": "relu", "gelu": "gelu", "silu": "swish"}
"""oneDNN's names of activations."""
LAYS_OUT = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
"""Whether oneDNN lays out weights here (builds for x86 do)."""
PRODUCT: Any = torch.ops.mkldnn._linear_pointwise.default if LAYS_OUT else None


class Dense:
    """activation(x W^T + b)."""

    def __init__(self, weight: Float[Tensor, "O D"], bias: Float[Tensor, "O"] | None = None, activation: str = "none"):
        self.weight, self.bias = weight.detach().contiguous(), None if bias is None else bias.detach()
        self.columns = self.weight.T  # F.linear would transpose at every call
        self.fused, self.activation = FUSED[activation], getattr(F, activation, None)
        self.laid_out = torch.ops.mkldnn._reorder_linear_weight(self.weight, CHUNK) if LAYS_OUT else None
        self.least_rows = SMALL_PRODUCT / self.weight.numel()

    def __call__(self, x: Float[Tensor, "n D"]) -> Float[Tensor, "n O"]:
        if self.laid_out is not None and len(x) >= self.least_rows:
            y: Tensor = PRODUCT(x, self.laid_out, self.bias, self.fused, [], "none")
            return y
        y = torch.mm(x, self.columns) if self.bias is None else torch.addmm(self.bias, x, self.columns)
        return y if self.activation is None else self.activation(y)


class Chunk(NamedTuple):
    """Some whole histories."""

    events: slice
    rows: slice
    among: Float[Tensor, "n n"]
    """What is added to the scores of their events: 0, or -inf where one does not see the other."""
    behind: Float[Tensor, "rows n"]
    """The same of each row's last event as the query."""


class Layout(NamedTuple):
    """Where the events of a batch stand."""

    places: Int[Tensor, "N"]
    """Position in its history, from 0."""
    to_come: Int[Tensor, "N"]
    """Events of the history behind it."""
    last: Int[Tensor, "B"]
    """Which event is the last of each row."""
    asked: Int[Tensor, "N"] | None
    """The time that an event asks about: the next one's, of the last event its own."""
    times: Int[Tensor, "N"] | None
    chunks: list[Chunk]


def lay_out_events(
    lengths: Int[np.ndarray, "B"], times: Int[np.ndarray, "N"] | None, *, causal: bool
) -> Layout:  # fmt: skip
    """The layout of histories of these lengths, and the chunks that their events are mixed in."""
    ends = np.cumsum(lengths)
    begun, last = np.repeat(ends - lengths, lengths), np.repeat(ends - 1, lengths)
    events = np.arange(len(begun))
    seen_up_to = events if causal else last
    chunks, low, first = [], 0, 0
    for end, high in enumerate(ends.tolist(), 1):
        if end < len(ends) and ends[end] - low <= CHUNK:
            continue
        keys, inside = events[low:high], slice(low, high)
        hidden = (keys < begun[inside, None]) | (keys > seen_up_to[inside, None])
        among = np.where(hidden, np.float32(-np.inf), np.float32(0))
        behind = among[ends[first:end] - 1 - low]
        chunks.append(Chunk(inside, slice(first, end), torch.from_numpy(among), torch.from_numpy(behind)))
        low, first = high, end
    asked = None if times is None else torch.from_numpy(times[np.minimum(events + 1, last)])
    places, to_come, last_events = (torch.from_numpy(part) for part in (events - begun, last - events, ends - 1))
    return Layout(places, to_come, last_events, asked, None if times is None else torch.from_numpy(times), chunks)


class Mixer:
    """Attention over packed events: softmax(q . k / sqrt e) or silu(q . k + bias) / n.

    `asking` is what the querying event alone is asked for (queries, and the gate behind them), `telling` keys and
    values.
    """

    def __init__(self, attention: SoftmaxAttention | HSTUAttention, *, final: bool):
        self.final, self.heads, self.rope = final, attention.heads, attention.rope
        self.hstu = attention if isinstance(attention, HSTUAttention) else None
        self.placed = self.rope or (self.hstu is not None and self.hstu.by_distance is not None)
        if isinstance(attention, HSTUAttention):
            u, v, q, k = attention.uvqk.weight.split(attention.sizes)
            asking, telling, bias, activation = torch.cat([q, u]), torch.cat([k, v]), None, "silu"
        else:
            q, k, v = attention.qkv.weight.chunk(3)
            asking, telling, bias, activation = q, torch.cat([k, v]), attention.qkv.bias, "none"
        self.asked, self.keyed, self.sizes = len(q), len(k), [len(asking), len(telling)]
        self.scale = (self.asked // self.heads) ** -0.5
        if final:
            own, others = (None, None) if bias is None else bias.split(self.sizes)
            self.asking, self.telling = Dense(asking, own, activation), Dense(telling, others, activation)
        else:
            self.both = Dense(torch.cat([asking, telling]), bias, activation)
        self.output = Dense(attention.output.weight, attention.output.bias)

    def __call__(self, x: Float[Tensor, "N D"], layout: Layout) -> Float[Tensor, "M D"]:
        """[N, D] of all events; of the final layer [B, D], for the last event of each row."""
        places, moments = layout.places, layout.asked
        if self.final:
            asking, telling = self.asking(x.index_select(0, layout.last)), self.telling(x)
            if self.placed:
                places = places.index_select(0, layout.last)
                moments = None if moments is None else moments.index_select(0, layout.last)
        else:
            both = self.both(x)
            asking, telling = both[:, : self.sizes[0]], both[:, self.sizes[0] :]
        q = asking[:, : self.asked].view(len(asking), self.heads, -1).transpose(0, 1)
        k = telling[:, : self.keyed].view(len(x), self.heads, -1).transpose(0, 1)
        v = telling[:, self.keyed :].view(len(x), self.heads, -1).transpose(0, 1)
        if self.rope:
            q, k = rotate(q[None], places[None])[0], rotate(k[None], layout.places[None])[0]
        k = k.transpose(1, 2)
        mixed = []
        for chunk in layout.chunks:
            queries, hidden = (chunk.rows, chunk.behind) if self.final else (chunk.events, chunk.among)
            asks, keys = q[:, queries], k[:, :, chunk.events]
            if self.hstu is not None:
                scores = torch.bmm(asks, keys)
                if self.hstu.by_distance is not None:
                    since = None if moments is None else moments[queries]
                    scores = scores + self._bias(places[queries], since, layout, chunk.events)
                weights = (F.silu(scores) / self.hstu.max_length).masked_fill(hidden < 0, 0.0)
            else:
                weights = torch.baddbmm(hidden, asks, keys, alpha=self.scale).softmax(-1)
            mixed.append(torch.bmm(weights, v[:, chunk.events]).transpose(0, 1).flatten(1))
        y = mixed[0] if len(mixed) == 1 else torch.cat(mixed)
        if self.hstu is not None and self.hstu.norm is not None:
            y = asking[:, self.asked :] * self.hstu.norm(y)
        return self.output(y)

    def _bias(
        self, places: Int[Tensor, "m"], moments: Int[Tensor, "m"] | None, layout: Layout, keys: slice
    ) -> Float[Tensor, "m n"]:
        """What distance and time add to the scores of HSTU."""
        attention = self.hstu
        assert attention is not None and attention.by_distance is not None
        most = attention.max_length - 1
        apart = places[:, None] - layout.places[keys]
        added = attention.by_distance.take(
            apart.clamp(0, most) if attention.causal else apart.clamp(-most, most) + most
        )  # fmt: skip
        if attention.by_time is None:
            return added
        assert moments is not None and layout.times is not None
        return added + attention.by_time.take(buckets(moments[:, None] - layout.times[keys]))


class PackedBlock:
    """A block of a transformer; the final one gives the last event of each row alone."""

    def __init__(self, block: Block, *, final: bool):
        attention = cast(SoftmaxAttention | HSTUAttention, block.attention)
        self.final, self.pre, self.mixer = final, block.pre, Mixer(attention, final=final)
        self.norm, self.feeds = block.attention_norm, block.feed_forward is not None
        self.gate: Dense | None = None
        parts = block.feed_forward
        if isinstance(parts, SwiGLU):
            self.gate = Dense(parts.gate.weight, parts.gate.bias, "silu")
            self.up = Dense(parts.up.weight, parts.up.bias)
        elif isinstance(parts, MLP):
            self.up = Dense(parts.up.weight, parts.up.bias, parts.activation.__name__)
        if isinstance(parts, SwiGLU | MLP):
            self.down, self.fed_norm = Dense(parts.down.weight, parts.down.bias), block.feed_forward_norm

    def __call__(self, x: Float[Tensor, "N D"], layout: Layout) -> Float[Tensor, "M D"]:
        mixed = self.mixer(self.norm(x) if self.pre else x, layout)
        y = (x.index_select(0, layout.last) if self.final else x) + mixed
        if not self.pre:
            y = self.norm(y)
        if not self.feeds:
            return y
        z = self.fed_norm(y) if self.pre else y
        z = y + self.down(self.up(z) if self.gate is None else self.gate(z) * self.up(z))
        return z if self.pre else self.fed_norm(z)


class PackedTransformer:
    """States of the last events."""

    def __init__(self, encoder: TransformerEncoder):
        blocks = cast(list[Block], list(encoder.blocks))
        self.encoder, self.blocks = encoder, [PackedBlock(block, final=block is blocks[-1]) for block in blocks]

    def __call__(
        self, x: Float[Tensor, "N D"], lengths: Int[np.ndarray, "B"], times: Int[np.ndarray, "N"] | None
    ) -> Float[Tensor, "B D"]:
        """Of the vectors of the events of histories of these lengths, and their times where they are read."""
        encoder = self.encoder
        layout = lay_out_events(lengths, times, causal=encoder.causal)
        if encoder.position is None:
            x = x * encoder.scale
        else:
            positions = layout.to_come if encoder.from_end else layout.places
            x = torch.add(encoder.position.weight.index_select(0, positions), x, alpha=encoder.scale)
        x = encoder.norm_input(x)
        for block in self.blocks:
            x = block(x, layout)
        y: Tensor = encoder.norm_output(x)
        return y


class PackedGRU:
    """States of the last events: torch's own recurrence over packed rows."""

    def __init__(self, encoder: GRUEncoder):
        self.encoder = encoder

    def __call__(
        self, x: Float[Tensor, "N D"], lengths: Int[np.ndarray, "B"], times: Int[np.ndarray, "N"] | None
    ) -> Float[Tensor, "B D"]:
        rows = nn.utils.rnn.pack_sequence(list(x.split(lengths.tolist())), enforce_sorted=False)
        y: Tensor = self.encoder.back(self.encoder.gru(rows)[1][-1])
        return y


def pack_encoder(encoder: nn.Module) -> PackedTransformer | PackedGRU | None:
    """A packed copy of an encoder as it is now; None for an encoder of another kind."""
    if type(encoder) is GRUEncoder:
        return PackedGRU(deepcopy(encoder).eval())
    if type(encoder) is not TransformerEncoder or encoder.calendar is not None:
        return None
    for block in encoder.blocks:
        if type(block) is not Block or type(block.attention) not in (SoftmaxAttention, HSTUAttention):
            return None
    return PackedTransformer(deepcopy(encoder).eval())
