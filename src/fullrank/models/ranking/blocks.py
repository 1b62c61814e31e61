"""The frame of RankMixer and RankElastor: tokeniser, blocks of token mixing and per-token FFN, head.

    X_0 = tokens;  M_l = mixing_l(X_l);  X_{l+1} = ffn_l(M_l);  logit = head(X_n)

The two differ in mixing and FFN alone, so that an ablation changes one setting. Taps: `embedding` [B, F, E], `tokens`,
then `mixing_l` (before its last norm, as in RankElastor's code) and `ffn_l` of each block.

Heads: `mlp` T D -> 2 T D -> ReLU -> 1; `flatten` T D -> 1; `mean` mean over tokens, D -> 1 (RankMixer);
`mean_all` the mean of all numbers, no weights (the code's `noparam_mean`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from fullrank.core.registry import Room
from fullrank.core.spec import Spec
from fullrank.data.impressions.fields import FieldInfo
from fullrank.models.ranking import FieldTokens, RankerOutput
from fullrank.models.ranking.deep import xavier
from fullrank.models.ranking.size import Flops, of_linear, of_part
from fullrank.models.ranking.tokeniser import Tokeniser

Heads = Literal["mlp", "flatten", "mean", "mean_all"]


class Blocks(Spec):
    """What RankMixer and RankElastor have in common; each declares its own defaults."""

    tokens: int = Field(16, ge=2)
    """T, tokens."""
    width: int | None = Field(None, ge=1)
    """D, width of a token; null is (fields x embedding.dim) / tokens, rounded up to what the mixing can divide."""
    blocks: int = Field(2, ge=1)
    """Blocks, each a mixing and a feed-forward."""
    tokeniser: Tokeniser = Tokeniser()
    """Fields -> tokens."""
    mixing: Annotated[Spec, Room("rankers.mixings")]
    """Across tokens."""
    feed_forward: Annotated[Spec, Room("rankers.feed_forwards")]
    """Within each token."""
    head: Heads
    """Tokens -> logit."""

    def build(self, fields: Sequence[FieldInfo], dim: int) -> BlocksRanker:
        inputs = len(fields) * dim
        return BlocksRanker(inputs, self.width or self._width(inputs), self)

    def _width(self, inputs: int) -> int:
        width = -(-inputs // self.tokens)
        return -(-width // self.tokens) * self.tokens if getattr(self.mixing, "divides", False) else width


class BlocksRanker(nn.Module):
    def __init__(self, inputs: int, width: int, spec: Blocks):
        super().__init__()
        self.tokenise = spec.tokeniser.build(inputs, spec.tokens, width)
        self.mixings = nn.ModuleList(
            spec.mixing.build(spec.tokens, width)  # type: ignore[attr-defined]
            for _ in range(spec.blocks)
        )
        self.feed_forwards = nn.ModuleList(
            spec.feed_forward.build(spec.tokens, width)  # type: ignore[attr-defined]
            for _ in range(spec.blocks)
        )
        self.head = Head(spec.head, spec.tokens, width)

    def forward(self, x: FieldTokens) -> RankerOutput:
        notes = x.notes()
        tokens = self.tokenise(x.tokens)
        notes("tokens", tokens)
        aux: dict[str, Tensor] = {}
        for number, (mixing, feed_forward) in enumerate(zip(self.mixings, self.feed_forwards, strict=True)):
            mixed, tokens = mixing(tokens)
            notes(f"mixing_{number}", mixed)
            tokens, more = feed_forward(tokens)
            notes(f"ffn_{number}", tokens)
            for name, value in more.items():
                aux[name] = aux[name] + value if name in aux else value
        return RankerOutput(self.head(tokens), notes, aux)

    def flops(self) -> Flops:
        found: Flops = {"tokens": self.tokenise.flops()}
        for number, (mixing, feed_forward) in enumerate(zip(self.mixings, self.feed_forwards, strict=True)):
            found |= {f"mixing_{number}": of_part(mixing), f"ffn_{number}": of_part(feed_forward)}
        return {**found, "head": self.head.flops()}


class Head(nn.Module):
    """[B, T, D] -> [B]."""

    def __init__(self, kind: Heads, tokens: int, width: int):
        super().__init__()
        self.kind, whole = kind, tokens * width
        if kind == "mlp":
            self.map: nn.Module = nn.Sequential(
                xavier(nn.Linear(whole, 2 * whole)), nn.ReLU(inplace=True), xavier(nn.Linear(2 * whole, 1))
            )
        elif kind != "mean_all":
            self.map = xavier(nn.Linear(whole if kind == "flatten" else width, 1))

    def forward(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B"]:
        if self.kind == "mean_all":
            return x.mean((1, 2))
        out: Tensor = self.map(x.mean(1) if self.kind == "mean" else x.flatten(1))
        return torch.squeeze(out, -1)

    def flops(self) -> int:
        return sum(of_linear(layer) for layer in self.modules() if isinstance(layer, nn.Linear))
