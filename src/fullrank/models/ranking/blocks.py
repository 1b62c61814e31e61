"""The frame of RankMixer and RankElastor: tokeniser, blocks of token mixing and per-token FFN, head.

    X_0 = tokens;  M_l = mixing_l(X_l);  X_{l+1} = ffn_l(M_l);  logit = head(X_n)

The two differ in mixing and FFN alone, so that an ablation changes one setting. Captures:
`embedding` [B, F, E], `tokens`, then `mixing_l` (before its last norm, as in RankElastor's code)
and `ffn_l` of each block.

Heads: `mlp` T D -> 2 T D -> ReLU -> 1; `flatten` T D -> 1; `mean` mean over tokens, D -> 1
(RankMixer); `mean_all` the mean of all numbers, no weights (the code's `noparam_mean`).

Starting values: `xavier` draws every matrix (FuxiCTR). A product of many such matrices passes few
directions. `identity` starts every block near the identity instead: W_r = I, the mixing's W is
multiplied by 0.1, the last map of the FFN divided by sqrt(2 blocks). The entropy rank of the
Jacobian of 16 blocks with T = 8 (mean of two seeds) is then

                                      xavier   identity
    RankElastor with Eq. 4, D = 16        12        108   of 128
    RankElastor's own block, D = 16       12         84   of 128
    RankMixer, D = 48                     89        192   of 384

The tokeniser makes T tokens of width D of the field vectors: [B, F, E] is flattened to F E numbers
and normalised (RMSNorm over all of them), then

    none    read as [T, D]; needs F E = T D. The paper's shapes are such plain reshapes (15 x 26 = 39 fields x 10).
    matrix  cut into T chunks, one perceptron (500 hidden, ReLU, dropout) shared by all of them -> D. A chunk may begin
            in the middle of a field.
    vector  one perceptron (800 hidden) on the whole vector -> T D.

With `event_tokens` = n the newest n events of each sequence follow as tokens of their own, the
newest first: one linear map, E -> D, of each event's vector (normalised as the fields are); a place
without an event gets the map of zeros. The paper's Table 4 has none: there a sequence is one field
vector like any other (`model.sequences`).
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fullrank.core.checks import divided
from fullrank.core.constraints import MOST_PARTS, DropoutRate, Parts, Several, Width, only_with
from fullrank.core.errors import UserError
from fullrank.core.spec import Spec, later
from fullrank.models.ranking import Fields, FieldTokens, LayerOutputs, Ranker, RankerOutput, RankerSpec
from fullrank.models.ranking.dnn import xavier
from fullrank.models.ranking.feed_forwards import AnyFeedForward
from fullrank.models.ranking.mixings import AnyMixing
from fullrank.ops.dropout import Dropout
from fullrank.ops.ranking_layers import wide_perceptron, wide_perceptron_reference

HIDDEN = {"matrix": 500, "vector": 800}
"""Default hidden width of the tokeniser's perceptron, by its mode."""
DROPOUT = 0.1
"""Default share of its hidden units dropped in training."""


class Tokeniser(Spec):
    """Fields to tokens."""

    mode: Literal["none", "matrix", "vector"] = "matrix"
    """Plain reshape, one perceptron for every chunk, or one for everything."""
    hidden: Annotated[Width | None, only_with("mode", "matrix", "vector")] = None
    """Hidden width of the perceptron; null takes 500 (matrix) or 800 (vector)."""
    dropout: Annotated[DropoutRate | None, only_with("mode", "matrix", "vector")] = None
    """Share of hidden units dropped in training; null is 0.1."""
    norm: bool = True
    """RMSNorm of the flattened fields, before anything else."""
    hidden_norm: Annotated[bool | None, only_with("mode", "matrix", "vector")] = None
    """RMSNorm of the hidden layer; null is off."""

    def build(self, inputs: int, tokens: int, width: int) -> Tokens:
        if self.mode == "none" and inputs != tokens * width:
            raise UserError(
                f"tokeniser mode=none reshapes {inputs} numbers (fields x embedding.dim) and cannot make {tokens} x "
                f"{width} of them: set tokens and width to factors of {inputs}, or use mode=matrix or vector",
                code="width-not-divisible",
            )
        if self.mode == "matrix":
            fitting = [n for n in range(2, 65) if inputs % n == 0]
            remedy = f"tokens: set tokens to one of {fitting}, or use mode=vector"
            divided(inputs, tokens, "tokeniser mode=matrix: fields x embedding.dim =", remedy)
        return Tokens(inputs, tokens, width, self)


class Tokens(nn.Module):
    """[B, F, E] -> [B, T, D]."""

    def __init__(self, inputs: int, tokens: int, width: int, spec: Tokeniser):
        super().__init__()
        self.tokens, self.width = tokens, width
        self.norm = nn.RMSNorm(inputs, eps=1e-12) if spec.norm else None
        self.chunks = {"none": 0, "matrix": tokens, "vector": 1}[spec.mode]
        if self.chunks:
            hidden = spec.hidden or HIDDEN[spec.mode]
            self.up = xavier(nn.Linear(inputs // self.chunks, hidden))
            self.hidden_norm = nn.RMSNorm(hidden, eps=1e-12) if spec.hidden_norm else None
            self.down = xavier(nn.Linear(hidden, tokens * width // self.chunks))
        self.dropout = DROPOUT if spec.dropout is None else spec.dropout

    def forward(self, fields: Float[Tensor, "B F E"]) -> Float[Tensor, "B T D"]:
        x = fields.flatten(1)
        if self.norm is not None:
            x = self.norm(x)
        if self.chunks:
            perceptron = wide_perceptron if self.training else wide_perceptron_reference
            p = self.dropout if self.training else 0.0
            x = perceptron(x.unflatten(1, (self.chunks, -1)), self.up, self.hidden_norm, self.down, p)
        return x.reshape(-1, self.tokens, self.width)


Heads = Literal["mlp", "flatten", "mean", "mean_all"]


class Blocks(RankerSpec):
    """Settings that RankMixer and RankElastor share; each declares its own defaults."""

    tokens: Several = 16
    """T, tokens."""
    width: Width | None = None
    """D, width of a token; null is (fields x embedding.dim) / tokens, rounded up to what the mixing can divide."""
    event_tokens: int = later(0, ge=0, le=MOST_PARTS)
    """Newest events of each sequence that are tokens of their own, behind the T of the fields."""
    blocks: Parts = 2
    """Blocks, each a mixing and a feed-forward."""
    tokeniser: Tokeniser = Tokeniser()
    """Fields -> tokens."""
    mixing: AnyMixing
    """Across tokens."""
    feed_forward: AnyFeedForward
    """Within each token."""
    head: Heads
    """Tokens -> logit."""
    head_dropout: Annotated[DropoutRate, only_with("head", "mlp")] = later(0.0)
    """Share of the hidden units of the head dropped in training; of `mlp`, the only one that has any."""
    head_batch_norm: Annotated[bool, only_with("head", "mlp")] = later(False)
    """Normalise each hidden unit of the head `mlp` over the batch, before its ReLU."""
    initial: Literal["xavier", "identity"] = later("xavier")
    """Starting values: every matrix at random, or blocks that pass what they are given, for deep stacks."""

    @property
    def reads_events(self) -> int:
        return self.event_tokens

    def build(self, fields: Fields, dim: int) -> BlocksRanker:
        sequences = sum(field.kind == "sequence" for field in fields)
        if self.event_tokens and not sequences:
            raise UserError(
                f"event_tokens={self.event_tokens} needs a sequence and this store has none: leave it out",
                code="no-sequences",
            )
        events = sequences * self.event_tokens
        width, tokens = self.width, self.tokens + events
        if width is None:
            # (fields x embedding.dim) / tokens, rounded up, and up again to what the mixing can
            # divide
            width = -(-len(fields) * dim // self.tokens)
            width = -(-width // tokens) * tokens if self.mixing.divides else width
        return BlocksRanker(len(fields), dim, width, events, self)


class BlocksRanker(Ranker):
    flop_parts = {
        "tokenise": "tokens",
        "event_map": "event_tokens",
        "mixings.*": "mixing_*",
        "feed_forwards.*": "ffn_*",
        "head": "head",
    }

    def __init__(self, fields: int, dim: int, width: int, events: int, spec: Blocks):
        super().__init__()
        tokens, self.events = spec.tokens + events, events
        self.tokenise = spec.tokeniser.build(fields * dim, spec.tokens, width)
        mixings = [spec.mixing.build(tokens, width) for _ in range(spec.blocks)]
        feed_forwards = [spec.feed_forward.build(tokens, width) for _ in range(spec.blocks)]
        self.mixings, self.feed_forwards = nn.ModuleList(mixings), nn.ModuleList(feed_forwards)
        self.head = Head(spec, tokens * width, width)
        if spec.initial == "identity":
            for mixing, feed_forward in zip(mixings, feed_forwards, strict=True):
                mixing.start_near_identity()
                feed_forward.start_near_identity(spec.blocks)
        if events:
            # a place without an event is zeros, and exporters drop a term as small as the
            # tokeniser's 1e-12: 0 / 0
            norm: nn.Module = nn.RMSNorm(dim, eps=1e-7) if spec.tokeniser.norm else nn.Identity()
            self.event_map = nn.Sequential(norm, xavier(nn.Linear(dim, width)))

    def forward(self, x: FieldTokens) -> RankerOutput:
        outputs = x.layer_outputs()
        tokens = self.tokenise(x.tokens)
        if self.events:
            tokens = torch.cat([tokens, self.event_map(x.events)], 1)
        outputs("tokens", tokens)
        tokens, aux = self.pass_blocks(tokens, outputs)
        return RankerOutput(self.head(tokens), outputs, aux)

    def pass_blocks(
        self, tokens: Float[Tensor, "B T D"], outputs: LayerOutputs
    ) -> tuple[Float[Tensor, "B T D"], dict[str, Tensor]]:
        """The tokens behind the last block, and what the blocks add to the loss."""
        aux: dict[str, Tensor] = {}
        for number, (mixing, feed_forward) in enumerate(zip(self.mixings, self.feed_forwards, strict=True)):
            mixed, tokens = mixing(tokens)
            outputs(f"mixing_{number}", mixed)
            tokens, more = feed_forward(tokens)
            outputs(f"ffn_{number}", tokens)
            for name, term in more.items():
                aux[name] = aux[name] + term if name in aux else term
        return tokens, aux


class Head(nn.Module):
    """[B, T, D] -> [B]."""

    def __init__(self, spec: Blocks, whole: int, width: int):
        super().__init__()
        self.kind = spec.head
        if spec.head == "mlp":
            layers: list[nn.Module] = [xavier(nn.Linear(whole, 2 * whole))]
            layers += [nn.BatchNorm1d(2 * whole)] if spec.head_batch_norm else []
            layers += [nn.ReLU(inplace=True)]
            layers += [Dropout(spec.head_dropout)] if spec.head_dropout else []
            self.map: nn.Module = nn.Sequential(*layers, xavier(nn.Linear(2 * whole, 1)))
        elif spec.head != "mean_all":
            self.map = xavier(nn.Linear(whole if spec.head == "flatten" else width, 1))

    def forward(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B"]:
        if self.kind == "mean_all":
            return x.mean((1, 2))
        out: Tensor = self.map(x.mean(1) if self.kind == "mean" else x.flatten(1))
        return torch.squeeze(out, -1)
