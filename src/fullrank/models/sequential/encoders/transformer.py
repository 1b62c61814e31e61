"""Transformer around any attention: pre- or post-norm, RMSNorm or LayerNorm, MLP, SwiGLU or no feed-forward.

Sources: post-norm of Vaswani et al. (arXiv:1706.03762), pre-norm with RMSNorm and SwiGLU as in
Llama (arXiv:2302.13971). Positions are learned here or rotated in the attention (`rope`), counted
from the start or the end. With ``context: calendar`` an event is its item and its moment (MOJITO,
arXiv:2304.08158); latent tokens have none.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal, cast

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from fullrank.core.constraints import DropoutRate, Parts, PositiveShare, Width, only_with
from fullrank.core.registry import Room
from fullrank.core.spec import later
from fullrank.data.batch import Batch, Captures
from fullrank.models import Flops, States
from fullrank.models.sequential.attention import Attention, AttentionSpec, Memory, require_times
from fullrank.models.sequential.attention.calendar import CalendarCodes
from fullrank.models.sequential.attention.softmax import Softmax
from fullrank.models.sequential.encoders import Cache, Encoder, EncoderSpec, Stepped, require_length, row_flops
from fullrank.ops.dropout import Dropout
from fullrank.ops.starting_values import start_otherwise, start_small


class Transformer(EncoderSpec):
    """Blocks of attention and feed-forward, each behind a residual."""

    kind: Literal["transformer"] = "transformer"
    layers: Parts = 2
    """Blocks."""
    attention: Annotated[AttentionSpec, Room("attention")] = Softmax()
    """Token mixer of every block."""
    norm: Literal["rms", "layer"] = "rms"
    """RMSNorm or LayerNorm."""
    norm_at: Literal["pre", "post"] = "pre"
    """Before each sublayer, or after each residual sum."""
    norm_eps: PositiveShare = 1e-6
    """Added to the variance."""
    norm_affine: bool = True
    """The norms have gains (and LayerNorm biases) that are learned."""
    norm_input: bool = False
    """Normalise the embedded history before the first block."""
    norm_output: Annotated[bool | None, only_with("norm_at", "pre")] = None
    """Normalise after the last block; default yes (pre-norm only: a post-norm block ends with one)."""
    feed_forward: Literal["mlp", "swiglu", "none"] = "swiglu"
    """Feed-forward of every block."""
    inner: Annotated[Width | None, only_with("feed_forward", "mlp", "swiglu")] = None
    """Inner width of the feed-forward; default four times the width."""
    activation: Annotated[Literal["relu", "gelu", "silu"] | None, only_with("feed_forward", "mlp")] = None
    """Activation of the MLP; default relu."""
    bias: Annotated[bool, only_with("feed_forward", "mlp", "swiglu")] = False
    """Biases in the feed-forward."""
    positions: Literal["learned", "none"] = "learned"
    """Learned position vectors added to the input."""
    positions_from: Annotated[Literal["start", "end"] | None, only_with("positions", "learned")] = None
    """Learned positions count from the row's first event or back from its last; default from the start."""
    position_std: Annotated[PositiveShare | None, only_with("positions", "learned")] = later(None)
    """Standard deviation that learned positions start with; default 0.02 (HSTU's authors: sqrt(1 / width))."""
    scale_input: bool = False
    """Multiply the embedded history by the square root of the width."""
    context: Literal["none", "calendar"] = later("none")
    """Added to each event: nothing, or a vector of its moment in the calendar (MOJITO; needs times)."""
    dropout: DropoutRate = 0.1
    """Dropout on each sublayer's output and inside the feed-forward."""
    input_dropout: DropoutRate | None = None
    """Dropout on the embedded history; null is `dropout`."""

    def build(self, dim: int, max_length: int) -> TransformerEncoder:
        return TransformerEncoder(dim, max_length, self)


class MLP(nn.Module):
    """down(dropout(activation(up(x))))."""

    def __init__(self, dim: int, inner: int, activation: str, bias: bool, dropout: float):
        super().__init__()
        self.up, self.down = nn.Linear(dim, inner, bias=bias), nn.Linear(inner, dim, bias=bias)
        self.activation, self.drop = getattr(F, activation), Dropout(dropout)
        start_small(self)

    def forward(self, x: Float[Tensor, "*n D"]) -> Float[Tensor, "*n D"]:
        return self.down(self.drop(self.activation(self.up(x))))

    def matrices(self) -> tuple[Tensor, Tensor]:
        """The up- and the down-projection."""
        return self.up.weight, self.down.weight


class SwiGLU(nn.Module):
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, dim: int, inner: int, bias: bool, dropout: float):
        super().__init__()
        self.gate, self.up = nn.Linear(dim, inner, bias=bias), nn.Linear(dim, inner, bias=bias)
        self.down, self.drop = nn.Linear(inner, dim, bias=bias), Dropout(dropout)
        start_small(self)

    def forward(self, x: Float[Tensor, "*n D"]) -> Float[Tensor, "*n D"]:
        return self.down(self.drop(F.silu(self.gate(x)) * self.up(x)))

    def matrices(self) -> tuple[Tensor, Tensor]:
        """The up- and the down-projection; the gate is not among them (SPRINT's code leaves it out)."""
        return self.up.weight, self.down.weight


def make_norm(spec: Transformer, dim: int) -> nn.Module:
    """A norm as the settings say."""
    kind = nn.RMSNorm if spec.norm == "rms" else nn.LayerNorm
    return kind(dim, eps=spec.norm_eps, elementwise_affine=spec.norm_affine)


class Block(nn.Module):
    """One attention and at most one feed-forward."""

    attention: Attention

    def __init__(self, dim: int, max_length: int, spec: Transformer):
        super().__init__()
        self.attention = spec.attention.build(dim, max_length)
        self.attention_norm = make_norm(spec, dim)
        self.pre, self.drop = spec.norm_at == "pre", Dropout(spec.dropout)
        inner = spec.inner or 4 * dim
        self.feed_forward: nn.Module | None = None
        if spec.feed_forward == "mlp":
            self.feed_forward = MLP(dim, inner, spec.activation or "relu", spec.bias, spec.dropout)
        elif spec.feed_forward == "swiglu":
            self.feed_forward = SwiGLU(dim, inner, spec.bias, spec.dropout)
        if self.feed_forward is not None:
            self.feed_forward_norm = make_norm(spec, dim)

    def forward(self, x: Float[Tensor, "B T D"], batch: Batch) -> Float[Tensor, "B T D"]:
        return self._after_mixing(x, self.attention(self._before(x), batch))

    def step(self, x: Float[Tensor, "B P D"], memory: tuple[Tensor, ...], batch: Batch) -> tuple[Tensor, Memory]:
        """One more token in each stream: its state, and the keys and values of the streams."""
        streams = (memory[2], memory[3]) if len(memory) > 2 else None
        y, streams = self.attention.step(self._before(x), (memory[0], memory[1]), streams, batch)
        return self._after_mixing(x, y), streams

    def _before(self, x: Tensor) -> Tensor:
        """The input of the attention: normalised where norms stand before it."""
        return self.attention_norm(x) if self.pre else x

    def _after_mixing(self, x: Tensor, mixed: Tensor) -> Tensor:
        """The residual around the attention, and all that follows."""
        y = x + self.drop(mixed)
        return self._after_feed_forward(y if self.pre else self.attention_norm(y))

    def _after_feed_forward(self, x: Tensor) -> Tensor:
        """The feed-forward with its residual and norm, where there is one."""
        if self.feed_forward is None:
            return x
        if self.pre:
            return x + self.drop(self.feed_forward(self.feed_forward_norm(x)))
        return self.feed_forward_norm(x + self.drop(self.feed_forward(x)))


class TransformerEncoder(Encoder):
    """Learned positions, blocks, and the norms around them."""

    flop_parts = {"attention.*": "projections", "attention": "mixing", "feed_forward": "feed_forward"}
    """The parts of one block."""
    branching, featureless = (2, 2), ""

    def __init__(self, dim: int, max_length: int, spec: Transformer):
        super().__init__()
        self.dim = dim
        self.causal = spec.attention.causal
        self.blocks = nn.ModuleList(Block(dim, max_length, spec) for _ in range(spec.layers))
        self.calendar = CalendarCodes().build(dim, short=True) if spec.context == "calendar" else None
        attends = any(block.attention.reads_times for block in self._stack())
        self.reads_times = attends or self.calendar is not None
        self.position = nn.Embedding(max_length, dim) if spec.positions == "learned" else None
        self.from_end, self.max_length = spec.positions_from == "end", max_length
        self.scale = dim**0.5 if spec.scale_input else 1.0
        self.norm_input = make_norm(spec, dim) if spec.norm_input else nn.Identity()
        closed = spec.norm_at == "pre" and spec.norm_output is not False
        self.norm_output = make_norm(spec, dim) if closed else nn.Identity()
        self.drop = Dropout(spec.dropout if spec.input_dropout is None else spec.input_dropout)
        # a latent token has no time, so an attention that reads times would see
        # another than in training
        self.continues = self.causal and not (spec.positions == "learned" or spec.scale_input or self.reads_times)
        start_small(self)
        if self.position is not None and spec.position_std is not None:
            nn.init.normal_(self.position.weight, std=spec.position_std)
            start_otherwise(self.position.weight)

    def forward(self, x: Float[Tensor, "B T D"], batch: Batch) -> States:
        layers = [self._embedded(x, batch)]
        for block in self.blocks:
            layers.append(block(layers[-1], batch))
        return States(self.norm_output(layers[-1]), tuple(layers), tuple(self.blocks))

    def start(self, x: Float[Tensor, "B T D"], batch: Batch) -> tuple[States, Cache]:
        memory: dict[nn.Module, Memory] = {}
        states = self(x, replace(batch, captures=replace(batch.captures or Captures(), memory=memory)))
        return states, Cache(tuple(memory[block.attention] for block in self._stack()), batch)

    def step(self, x: Float[Tensor, "B P D"], cache: Cache) -> Stepped:
        x, layers = self.drop(self.norm_input(x)), []
        for block, memory in zip(self._stack(), cache.layers, strict=True):
            x, streams = block.step(x, memory, cache.batch)
            layers.append((*memory[:2], *streams))
        return self.norm_output(x), cache.grown(tuple(layers))

    def flops(self, length: int, answer: int = 0) -> Flops:
        """FLOPs of one block times their number, since all are alike; None for the
        parts of an uncounted attention."""
        blocks = self._stack()
        parts = row_flops(blocks[0], self.dim, length, self.flop_parts)
        if blocks[0].attention.uncounted:
            parts |= {"projections": None, "mixing": None}
        return {part: None if count is None else len(blocks) * count for part, count in parts.items()}

    def _stack(self) -> list[Block]:
        return cast(list[Block], list(self.blocks))

    def _embedded(self, x: Tensor, batch: Batch) -> Tensor:
        """The input of the first block: the history scaled, with positions
        and moments added, normalised."""
        x, positions = x * self.scale, batch.positions(from_end=self.from_end)
        if self.position is not None:
            require_length(positions, self.max_length)
            x = x + self.position(positions.clamp_max(self.max_length - 1))
        if self.calendar is not None:
            x = x + self.calendar(require_times(batch.times, "context=none"))
        return self.drop(self.norm_input(x))
