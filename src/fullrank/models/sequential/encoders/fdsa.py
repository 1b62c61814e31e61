"""FDSA: two streams, of ids and of features, joined by a linear layer (Zhang et al., IJCAI 2019).

The vectors that are read hold the item's id in their first half and its features in the second
(``model.items={kind: features, combine: beside}``). Each half has a transformer of its own, and the
state is W [ids; features] + b.

Differs: the blocks are those of `transformer`, in any setting, both causal or neither. An item is
searched by both halves, in the paper by its id alone. No norm or dropout behind W.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from fullrank.core.checks import halved
from fullrank.core.errors import UserError
from fullrank.data.batch import Batch
from fullrank.models import States
from fullrank.models.sequential.encoders import Cache, Encoder, EncoderSpec, Stepped
from fullrank.models.sequential.encoders.transformer import Block, Transformer
from fullrank.ops.starting_values import start_small


class FDSA(EncoderSpec):
    """A transformer of ids and one of features."""

    kind: Literal["fdsa"] = "fdsa"
    ids: Transformer = Transformer()
    """Reads the first half of the vectors."""
    features: Transformer = Transformer()
    """Reads the second half."""

    def build(self, dim: int, max_length: int) -> FDSAEncoder:
        return FDSAEncoder(dim, max_length, self)


class FDSAEncoder(Encoder):
    featureless = "it reads ids and item features apart, and these are neither"
    flop_parts = {"ids": "ids", "features": "features", "join": "projections"}

    def __init__(self, dim: int, max_length: int, spec: FDSA):
        super().__init__()
        half = halved(dim, "model.encoder=fdsa")
        self.dim, self.cut = dim, dim - half
        self.ids = spec.ids.build(self.cut, max_length)
        self.features = spec.features.build(half, max_length)
        if self.ids.causal != self.features.causal:
            raise UserError(
                "fdsa: one of the encoders sees what comes later and the other does not; set both alike, as in "
                "model.encoder.ids.attention.causal=true and model.encoder.features.attention.causal=true",
                code="encoders-disagree",
            )
        self.join = nn.Linear(dim, dim)
        self.causal, self.continues = self.ids.causal, self.ids.continues and self.features.continues
        self.reads_times = self.ids.reads_times or self.features.reads_times
        mixers = [cast(Block, encoder.blocks[0]).attention for encoder in (self.ids, self.features)]
        self.uncounted = mixers[0].uncounted or mixers[1].uncounted
        start_small(self)

    def forward(self, x: Float[Tensor, "B T D"], batch: Batch) -> States:
        ids, features = (encoder(x[..., part], batch) for encoder, part in self.streams())
        return self._joined(x, ids, features)

    def start(self, x: Float[Tensor, "B T D"], batch: Batch) -> tuple[States, Cache]:
        (ids, first), (features, second) = (encoder.start(x[..., part], batch) for encoder, part in self.streams())
        return self._joined(x, ids, features), Cache((*first.layers, *second.layers), batch)

    def step(self, x: Float[Tensor, "B P D"], cache: Cache) -> Stepped:
        first, second = self._apart(cache)
        ids, first = self.ids.step(x[..., : self.cut], first)
        features, second = self.features.step(x[..., self.cut :], second)
        return self.join(torch.cat([ids, features], -1)), cache.grown((*first.layers, *second.layers))

    def branch(self, cache: Cache, parents: Int[Tensor, "B P"]) -> Cache:
        first, second = self._apart(cache)
        layers = (*self.ids.branch(first, parents).layers, *self.features.branch(second, parents).layers)
        return replace(cache, layers=layers)

    def streams(self) -> tuple[tuple[Encoder, slice], ...]:
        """Each encoder with the part of a vector that it reads."""
        return (self.ids, slice(self.cut)), (self.features, slice(self.cut, None))

    def _joined(self, x: Tensor, ids: States, features: States) -> States:
        """The states of both streams through the linear layer."""
        y = self.join(torch.cat([ids.tokens, features.tokens], -1))
        return States(y, (x, y), (self,))

    def _apart(self, cache: Cache) -> tuple[Cache, Cache]:
        """The cache of each encoder: a layer for each of its blocks."""
        depth = len(self.ids.blocks)
        return replace(cache, layers=cache.layers[:depth]), replace(cache, layers=cache.layers[depth:])
