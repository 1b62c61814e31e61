"""Encoder and decoder (T5, Raffel et al. 2020, arXiv:1910.10683), with which TIGER generates (arXiv:2305.05065).

The encoder reads the history from both sides. The decoder starts from one learned token and goes on
with the codes of the answer; a block of it is attention to the decoder's tokens so far, attention
to what the encoder read, feed-forward, each behind a norm and a residual. What is remembered of a
history is read once, for any number of streams.

As everywhere, the state at a place predicts the token behind it: the last place of a history has
the decoder's state of its first token, those of the answer (`Batch.answer`) the decoder's of each
of them; the places before have the encoder's.

Differs from T5: the decoder ends with a norm and no factor 1 / sqrt(D), and
attention divides by sqrt(e).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal, cast

import torch
from jaxtyping import Bool, Float
from pydantic import model_validator
from torch import Tensor, nn

from fullrank.core.constraints import DropoutRate, Parts, Width, only_with
from fullrank.core.errors import UserError, no_effect
from fullrank.core.registry import Room
from fullrank.data.batch import Batch, Captures
from fullrank.models import States
from fullrank.models.sequential.attention import AttentionSpec, Memory
from fullrank.models.sequential.attention.relative import Relative
from fullrank.models.sequential.encoders import Cache, Encoder, EncoderSpec, Stepped
from fullrank.models.sequential.encoders.transformer import Block, Transformer, TransformerEncoder, make_norm
from fullrank.ops.dropout import Dropout
from fullrank.ops.starting_values import small

SHARED = 4
"""Tensors of a cached block that all streams of a row share: keys and values of the first token and of the history."""


class Seq2Seq(EncoderSpec):
    """Encoder and decoder with attention between them; for tasks that generate."""

    kind: Literal["seq2seq"] = "seq2seq"
    layers: Parts = 2
    """Blocks of the encoder."""
    decoder_layers: Parts | None = None
    """Blocks of the decoder; default as many."""
    attention: Annotated[AttentionSpec, Room("attention")] = Relative()
    """Token mixer of every block: of the encoder from both sides, of the decoder causal, and between them."""
    norm: Literal["rms", "layer"] = "rms"
    """RMSNorm or LayerNorm, before each sublayer and at the end of both."""
    feed_forward: Literal["mlp", "swiglu"] = "mlp"
    """Feed-forward of every block."""
    inner: Width | None = None
    """Inner width of the feed-forward; default four times the width."""
    activation: Annotated[Literal["relu", "gelu", "silu"] | None, only_with("feed_forward", "mlp")] = None
    """Activation of the MLP; default relu."""
    dropout: DropoutRate = 0.1
    """Dropout on both inputs, on each sublayer's output and inside the feed-forward."""

    @model_validator(mode="after")
    def _every_setting_has_effect(self) -> Seq2Seq:
        if not self.attention.causal:
            why = "since its encoder sees both sides and its decoder what came before"
            raise no_effect("seq2seq: attention.causal", why)
        return self

    def build(self, dim: int, max_length: int) -> Seq2SeqEncoder:
        return Seq2SeqEncoder(dim, max_length, self)

    def stack(self, layers: int, *, causal: bool) -> Transformer:
        """The blocks of the encoder, or those that the decoder is made of."""
        return Transformer(
            layers=layers,
            attention=self.attention.override(f"causal={str(causal).lower()}"),
            norm=self.norm,
            feed_forward=self.feed_forward,
            inner=self.inner,
            activation=self.activation,
            positions="none",
            dropout=self.dropout,
        )


class DecoderBlock(Block):
    """A block that looks at the history between its attention and its feed-forward."""

    def __init__(self, dim: int, max_length: int, spec: Transformer):
        super().__init__(dim, max_length, spec)
        self.cross = spec.attention.across().build(dim, max_length)
        self.cross.between = True
        self.cross_norm = make_norm(spec, dim)

    def decode(
        self, x: Float[Tensor, "B S D"], batch: Batch, history: Memory, valid: Bool[Tensor, "B T"]
    ) -> Float[Tensor, "B S D"]:
        """Tokens of the answer, each after those before it."""
        y = x + self.drop(self.attention(self._before(x), batch))
        return self._after_history(y, history, valid, batch.captures)

    def decode_step(
        self, x: Float[Tensor, "B P D"], memory: tuple[Tensor, ...], first: Batch, valid: Bool[Tensor, "B T"]
    ) -> tuple[Float[Tensor, "B P D"], tuple[Tensor, ...]]:
        """One more token in each stream: its state, and the block's memory with it."""
        streams = (memory[SHARED], memory[SHARED + 1]) if len(memory) > SHARED else None
        mixed, streams = self.attention.step(self._before(x), (memory[0], memory[1]), streams, first)
        y = self._after_history(x + self.drop(mixed), (memory[2], memory[3]), valid, None)
        return y, (*memory[:SHARED], *streams)

    def _after_history(self, x: Tensor, history: Memory, valid: Tensor, captures: Captures | None) -> Tensor:
        """Look at the history, then go through the feed-forward, each with its residual."""
        return self._after_feed_forward(x + self.drop(self.cross.across(self.cross_norm(x), history, valid, captures)))


class Seq2SeqEncoder(Encoder):
    """Reads a history whole, and goes on behind it."""

    causal, continues, decodes = False, True, True
    branching = SHARED, 2
    featureless = "its decoder answers from a token that knows no request"
    flop_parts = {"source": "encoder", "": "decoder"}

    def __init__(self, dim: int, max_length: int, spec: Seq2Seq):
        super().__init__()
        self.dim = dim
        self.source: TransformerEncoder = spec.stack(spec.layers, causal=False).build(dim, max_length)
        if self.source.reads_times:
            raise UserError(
                f"seq2seq: the attention {spec.attention.kind!r} reads times, and the decoder's tokens have none: "
                "set model.encoder.attention.rel_bias=positions, or choose another attention",
                code="generated-codes-have-no-times",
            )
        decoder = spec.stack(spec.decoder_layers or spec.layers, causal=True)
        self.decoder = nn.ModuleList(DecoderBlock(dim, max_length, decoder) for _ in range(decoder.layers))
        self.first = small(dim)
        self.norm_output, self.drop = make_norm(decoder, dim), Dropout(spec.dropout)

    def forward(self, x: Float[Tensor, "B T D"], batch: Batch) -> States:
        source = self.source(x, replace(batch, lengths=batch.history, answer=0))
        # the last token of the history, whose place is the first token's, and those of the answer
        at = (batch.history - 1).clamp_min(0)[:, None] + torch.arange(batch.answer + 1, device=x.device)
        places = at.clamp_max(x.shape[1] - 1)[..., None].expand(-1, -1, x.shape[2])
        decoded = self._decoded(x.gather(1, places)[:, 1:], source.tokens, batch)
        return replace(source, tokens=source.tokens.scatter(1, places, decoded.to(source.tokens.dtype)))

    def start(self, x: Float[Tensor, "B T D"], batch: Batch) -> tuple[States, Cache]:
        memory: dict[nn.Module, Memory] = {}
        captures = replace(batch.captures or Captures(), memory=memory)
        states: States = self(x, replace(batch, captures=captures, answer=0))
        layers = tuple((*memory[block.attention], *memory[block.cross]) for block in self._blocks())
        return states, Cache(layers, batch)

    def step(self, x: Float[Tensor, "B P D"], cache: Cache) -> Stepped:
        x, layers, first = self.drop(x), [], _decoder_batch(len(x), 1, cache.batch)
        for block, memory in zip(self._blocks(), cache.layers, strict=True):
            x, memory = block.decode_step(x, memory, first, cache.batch.valid)
            layers.append(memory)
        return self.norm_output(x), cache.grown(tuple(layers))

    def _decoded(
        self, answer: Float[Tensor, "B S D"], history: Float[Tensor, "B T D"], batch: Batch
    ) -> Float[Tensor, "B n D"]:
        """The decoder's states of its first token and of those of the answer."""
        x = self.drop(torch.cat([self.first.expand(len(answer), 1, -1), answer], 1))
        inputs = replace(_decoder_batch(len(x), x.shape[1], batch), captures=batch.captures)
        valid = torch.arange(history.shape[1], device=x.device) < batch.history[:, None]
        for block in self._blocks():
            seen = block.cross.remember(history)
            if batch.captures is not None and batch.captures.memory is not None:
                batch.captures.memory[block.cross] = seen
            x = block.decode(x, inputs, seen, valid)
        return self.norm_output(x)

    def _blocks(self) -> list[DecoderBlock]:
        return cast(list[DecoderBlock], list(self.decoder))


def _decoder_batch(rows: int, tokens: int, batch: Batch) -> Batch:
    """The decoder's own rows, which are all as long."""
    places = batch.lengths.new_zeros(rows, tokens)
    return Batch(places, torch.full_like(places[:, 0], tokens), rows=batch.rows, seed=batch.seed, step=batch.step)
