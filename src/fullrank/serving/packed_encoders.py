"""Packed encoders: copies of trained encoders that read the events of all histories behind each other, without padding.

Each gives the state of the last event of each history, all that a list is made of: its final layer
computes no other. `serving/fast.py` compiles them with what is around. Letters: N events of all B
histories; `serving/packed_attention.py` says why signatures look as they do.

No `from __future__ import annotations` here: TorchScript reads the annotations of what it compiles.
"""

from typing import cast, no_type_check

import torch
from torch import Tensor, nn

from fullrank.models.sequential.attention.hstu import HSTUAttention
from fullrank.models.sequential.attention.softmax import SoftmaxAttention
from fullrank.models.sequential.encoders.fmlp import FMLPBlock, FMLPEncoder
from fullrank.models.sequential.encoders.gru import GRUEncoder
from fullrank.models.sequential.encoders.transformer import MLP, Block, SwiGLU, TransformerEncoder
from fullrank.serving.packed_attention import CHUNK, Chunk, Dense, Layout, Mixer


@no_type_check
def event_places(lengths: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    """[N] the row, the events before and the events behind of each event of histories of these lengths."""
    counts = torch.tensor(lengths)
    row = torch.arange(len(lengths)).repeat_interleave(counts)
    ends, numbers = counts.cumsum(0), torch.arange(len(row))
    return row, numbers - (ends - counts).index_select(0, row), ends.index_select(0, row) - 1 - numbers


@no_type_check
class PackedBlock(nn.Module):
    """A block of a transformer; the final one gives the last event of each row alone."""

    __constants__ = ("final", "pre", "feeds", "gate")

    def __init__(self, block: Block, final: bool, max_length: int):
        super().__init__()
        assert isinstance(block.attention, SoftmaxAttention | HSTUAttention)
        self.final, self.pre, self.mixer = final, block.pre, Mixer(block.attention, final, max_length)
        self.norm: nn.Module = block.attention_norm
        feed_forward = block.feed_forward
        self.feeds, self.gate = feed_forward is not None, isinstance(feed_forward, SwiGLU)
        self.opened: nn.Module = nn.Identity()  # the gate of SwiGLU
        self.up: nn.Module = nn.Identity()
        self.down: nn.Module = nn.Identity()
        self.fed_norm: nn.Module = nn.Identity()
        if isinstance(feed_forward, SwiGLU):
            self.opened = Dense(feed_forward.gate.weight, feed_forward.gate.bias, "silu")
            self.up = Dense(feed_forward.up.weight, feed_forward.up.bias)
        elif isinstance(feed_forward, MLP):
            self.up = Dense(feed_forward.up.weight, feed_forward.up.bias, feed_forward.activation.__name__)
        if isinstance(feed_forward, SwiGLU | MLP):
            self.down, self.fed_norm = Dense(feed_forward.down.weight, feed_forward.down.bias), block.feed_forward_norm

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        mixed = self.mixer(self.norm(x) if self.pre else x, layout)
        if self.final:
            x = x.index_select(0, layout.last)
        y = x + mixed
        if not self.pre:
            y = self.norm(y)
        if not self.feeds:
            return y
        z = self.fed_norm(y) if self.pre else y
        z = self.opened(z) * self.up(z) if self.gate else self.up(z)
        z = y + self.down(z)
        return z if self.pre else self.fed_norm(z)


@no_type_check
class PackedTransformer(nn.Module):
    """States of the last events."""

    __constants__ = ("positioned", "from_end", "causal", "timed", "several")

    def __init__(self, encoder: TransformerEncoder):
        super().__init__()
        blocks, most = cast(list[Block], list(encoder.blocks)), encoder.max_length
        self.blocks = nn.ModuleList(PackedBlock(b, b is blocks[-1], most) for b in blocks)
        self.chunk, self.positioned, self.from_end = CHUNK, encoder.position is not None, encoder.from_end
        self.causal, self.timed, self.several = encoder.causal, encoder.reads_times, len(blocks) > 1
        self.position = torch.zeros(0) if encoder.position is None else encoder.position.weight.detach().clone()
        self.scale, self.norm_input, self.norm_output = encoder.scale, encoder.norm_input, encoder.norm_output

    def forward(self, x: Tensor, lengths: list[int], times: Tensor) -> Tensor:
        """[N, D] vectors of the events of histories of these lengths, [N] times (or none) -> [B, D]."""
        layout = self.layout(lengths, times)
        if self.positioned:
            at = layout.to_come if self.from_end else layout.places
            x = torch.add(self.position.index_select(0, at), x, alpha=self.scale)
        else:
            x = x * self.scale
        x = self.norm_input(x)
        for block in self.blocks:
            x = block(x, layout)
        return self.norm_output(x)

    def layout(self, lengths: list[int], times: Tensor) -> Layout:
        """Positions of the events, and the chunks in which they are mixed.

        A chunk is as many whole histories, from row `first` on, as have `chunk` events together (a
        longer history is a chunk alone). Its events are low .. high-1. What lies outside of an
        event's own history, or behind the event where attention is causal, is hidden by -inf."""
        counts = torch.tensor(lengths)
        ends = counts.cumsum(0)
        starts, last = ends - counts, ends - 1
        row = torch.arange(len(lengths)).repeat_interleave(counts)
        numbers, begun, closed = torch.arange(len(row)), starts.index_select(0, row), last.index_select(0, row)
        chunks: list[Chunk] = []
        low, first, high, hide = 0, 0, 0, -float("inf")
        for at in range(len(lengths)):
            high += lengths[at]
            end = at + 1
            if end < len(lengths) and high + lengths[end] - low <= self.chunk:
                continue
            keys = numbers[low:high]
            outside = (keys < starts[first:end, None]) | (keys > last[first:end, None])
            behind = torch.zeros(outside.shape).masked_fill_(outside, hide)
            among = behind
            if self.several:
                seen_up_to = keys if self.causal else closed[low:high]
                outside = (keys < begun[low:high, None]) | (keys > seen_up_to[:, None])
                among = torch.zeros(outside.shape).masked_fill_(outside, hide)
            chunks.append(Chunk(low, high, first, end, among, behind))
            low, first = high, end
        query_times = times.index_select(0, torch.minimum(numbers + 1, closed)) if self.timed else times
        return Layout(numbers - begun, closed - numbers, last, query_times, times, chunks)


@no_type_check
class PackedGRU(nn.Module):
    """States of the last events: torch's own recurrence over packed rows.

    `torch.gru` takes events step by step, at each step those of the histories that are still going
    on, the longest first. So the events of histories behind each other are sorted by (position,
    rank of the history by length).
    """

    def __init__(self, encoder: GRUEncoder):
        super().__init__()
        self.weights = [parameter.detach().clone() for parameter in encoder.gru.parameters()]
        self.layers, self.hidden = encoder.gru.num_layers, encoder.gru.hidden_size
        self.back = encoder.back

    def forward(self, x: Tensor, lengths: list[int], times: Tensor) -> Tensor:
        """[N, D] vectors of the events of histories of these lengths -> [B, D]."""
        row, places, _ = event_places(lengths)
        order = torch.tensor(lengths).argsort(descending=True)
        rank = torch.empty_like(order)
        rank[order] = torch.arange(len(lengths))
        # [N] the events step by step, and within a step those of the longest history first
        by_step = (places * len(lengths) + rank.index_select(0, row)).argsort()
        start = torch.zeros(self.layers, len(lengths), self.hidden)
        # behind the weights: has biases, layers, dropout, training, bidirectional
        _, state = torch.gru(
            x.index_select(0, by_step),
            torch.bincount(places),
            start,
            self.weights,
            True,
            self.layers,
            0.0,
            False,
            False,
        )
        y: Tensor = self.back(state[-1].index_select(0, rank))
        return y


@no_type_check
class PackedFilter(nn.Module):
    """A block of FMLP-Rec; the final one gives the last event of each row alone.

    Distance by distance: event t gets w_d x_(t - d) of each d below its place in its history, and
    of a filter that is not causal w_(N - d) x_(t + d) of each event behind it.
    """

    __constants__ = ("final", "causal")

    def __init__(self, block: FMLPBlock, final: bool):
        super().__init__()
        self.final, self.causal, self.kernel = final, block.filter.causal, block.filter.kernel().detach().clone()
        self.filter_norm, self.norm = block.filter_norm, block.feed_forward_norm
        feed_forward = block.feed_forward
        self.up = Dense(feed_forward.up.weight, feed_forward.up.bias, feed_forward.activation.__name__)
        self.down = Dense(feed_forward.down.weight, feed_forward.down.bias)

    def forward(self, x: Tensor, row: Tensor, places: Tensor, to_come: Tensor) -> Tensor:
        """[N, D] -> [N, D], or of the final block [B, D]; `row`, events before and events behind of each event [N]."""
        if self.final:
            weighted = self.kernel.index_select(0, to_come) * x
            x = x.index_select(0, (to_come == 0).nonzero().flatten())
            y = torch.zeros_like(x).index_add_(0, row, weighted)
        else:
            y = self.kernel[0] * x
            at, before = torch.arange(len(x)), places
            for distance in range(1, int(places.max()) + 1):
                at = at[before >= distance]
                before = places.index_select(0, at)
                earlier = at - distance
                y.index_add_(0, at, self.kernel[distance] * x.index_select(0, earlier))
                if not self.causal:
                    y.index_add_(0, earlier, self.kernel[-distance] * x.index_select(0, at))
        y = self.filter_norm(x + y)
        z: Tensor = self.norm(y + self.down(self.up(y)))
        return z


@no_type_check
class PackedFMLP(nn.Module):
    """States of the last events: filters over packed rows."""

    __constants__ = ("positioned",)

    def __init__(self, encoder: FMLPEncoder):
        super().__init__()
        blocks = cast(list[FMLPBlock], list(encoder.blocks))
        self.blocks = nn.ModuleList(PackedFilter(block, block is blocks[-1]) for block in blocks)
        self.positioned, self.norm_input = encoder.position is not None, encoder.norm_input
        self.position = torch.zeros(0) if encoder.position is None else encoder.position.weight.detach().clone()

    def forward(self, x: Tensor, lengths: list[int], times: Tensor) -> Tensor:
        """[N, D] vectors of the events of histories of these lengths -> [B, D]."""
        row, places, to_come = event_places(lengths)
        if self.positioned:
            x = x + self.position.index_select(0, to_come)
        x = self.norm_input(x)
        for block in self.blocks:
            x = block(x, row, places, to_come)
        return x


def pack_encoder(encoder: nn.Module) -> nn.Module | None:
    """A packed copy of an encoder's weights; None for an encoder of another kind."""
    if type(encoder) is GRUEncoder:
        return PackedGRU(encoder)
    if type(encoder) is FMLPEncoder:
        return PackedFMLP(encoder)
    if type(encoder) is not TransformerEncoder:
        return None
    if encoder.calendar is not None:
        return None
    for block in encoder.blocks:
        if type(block) is not Block or type(block.attention) not in (SoftmaxAttention, HSTUAttention):
            return None
    return PackedTransformer(encoder)
