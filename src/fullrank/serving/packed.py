"""Packed encoders: the events of a few histories behind each other, without padding, through the weights of a model.

What a service computes for a batch of 1 to 64 short histories. Differs from the model's own forward pass in what is
left out, not in what is computed: no padding; the last layer computes the last event of each history alone, all that
a list is made of; products by oneDNN over weights that are laid out for it once. TorchScript runs all of it as one
call: it holds no lock of Python meanwhile, so that an event loop in another thread goes on.

N events of all B histories; how signatures look is said in `serving/packed_attention.py`.
"""

from typing import cast, no_type_check

import torch
from torch import Tensor, nn

from fullrank.models.sequential.attention.hstu import HSTUAttention
from fullrank.models.sequential.attention.softmax import SoftmaxAttention
from fullrank.models.sequential.encoders.feed_forward import MLP, SwiGLU
from fullrank.models.sequential.encoders.gru import GRUEncoder
from fullrank.models.sequential.encoders.transformer import Block, TransformerEncoder
from fullrank.serving.packed_attention import CHUNK, Chunk, Dense, Layout, Mixer


@no_type_check
class PackedBlock(nn.Module):
    """A block of a transformer; the final one gives the last event of each row alone."""

    __constants__ = ("final", "pre", "feeds", "gate")

    def __init__(self, block: Block, final: bool, max_length: int):
        super().__init__()
        assert isinstance(block.attention, SoftmaxAttention | HSTUAttention)
        self.final, self.pre, self.mixer = final, block.pre, Mixer(block.attention, final, max_length)
        self.norm: nn.Module = block.attention_norm
        made = block.feed_forward
        self.feeds, self.gate = made is not None, isinstance(made, SwiGLU)
        self.opened: nn.Module = nn.Identity()
        self.up: nn.Module = nn.Identity()
        self.down: nn.Module = nn.Identity()
        self.fed_norm: nn.Module = nn.Identity()
        if isinstance(made, SwiGLU):
            self.opened = Dense(made.gate.weight, made.gate.bias, "silu")
            self.up = Dense(made.up.weight, made.up.bias)
        elif isinstance(made, MLP):
            self.up = Dense(made.up.weight, made.up.bias, made.activation.__name__)
        if isinstance(made, SwiGLU | MLP):
            self.down, self.fed_norm = Dense(made.down.weight, made.down.bias), block.feed_forward_norm

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
        """Where events stand, and the chunks that they are mixed in."""
        given = torch.tensor(lengths)
        ends = given.cumsum(0)
        starts, last = ends - given, ends - 1
        row = torch.arange(len(lengths)).repeat_interleave(given)
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
        asked = times.index_select(0, torch.minimum(numbers + 1, closed)) if self.timed else times
        return Layout(numbers - begun, closed - numbers, last, asked, times, chunks)


@no_type_check
class PackedGRU(nn.Module):
    """States of the last events: torch's own recurrence over packed rows."""

    def __init__(self, encoder: GRUEncoder):
        super().__init__()
        self.weights = [one.detach().clone() for one in encoder.gru.parameters()]
        self.layers, self.hidden = encoder.gru.num_layers, encoder.gru.hidden_size
        self.back = encoder.back

    def forward(self, x: Tensor, lengths: list[int], times: Tensor) -> Tensor:
        """[N, D] vectors of the events of histories of these lengths -> [B, D]."""
        given = torch.tensor(lengths)
        order = given.argsort(descending=True)
        rank = torch.empty_like(order)
        rank[order] = torch.arange(len(lengths))
        begun = (given.cumsum(0) - given).repeat_interleave(given)
        places = torch.arange(len(begun)) - begun
        by_step = (places * len(lengths) + rank.repeat_interleave(given)).argsort()
        start = torch.zeros(self.layers, len(lengths), self.hidden)
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


def pack_encoder(encoder: nn.Module) -> nn.Module | None:
    """A packed copy of an encoder's weights; None for an encoder of another kind."""
    if type(encoder) is GRUEncoder:
        return PackedGRU(encoder)
    if type(encoder) is not TransformerEncoder:
        return None
    if encoder.calendar is not None:
        return None
    for block in encoder.blocks:
        if type(block) is not Block or type(block.attention) not in (SoftmaxAttention, HSTUAttention):
            return None
    return PackedTransformer(encoder)
