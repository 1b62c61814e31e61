"""History of vectors -> States.

The room's contract: a Spec whose ``build(dim, max_length)`` gives an `Encoder`. A reasoner is an Encoder that holds
an Encoder; ``start`` and ``step`` are what it needs: the prefix is read once and never sees the latent tokens. An
encoder that reads `Batch.times` has the attribute ``reads_times = True``; the model then asks for them everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from jaxtyping import Float
from torch import Tensor

from fullrank.batch import Batch, States


@dataclass(frozen=True)
class Cache:
    """What an encoder remembers of a prefix: one entry a layer, how many latent tokens followed, and the prefix."""

    layers: tuple[tuple[Tensor, ...], ...]
    batch: Batch
    steps: int = 0

    def grown(self, layers: tuple[tuple[Tensor, ...], ...], steps: int) -> Cache:
        return replace(self, layers=layers, steps=self.steps + steps)


class Encoder(Protocol):
    causal: bool

    def __call__(self, x: Float[Tensor, "B T D"], batch: Batch) -> States: ...

    def start(self, x: Float[Tensor, "B T D"], batch: Batch) -> tuple[States, Cache]:
        """Read the prefix and remember it."""
        ...

    def step(self, x: Float[Tensor, "B M D"], cache: Cache) -> tuple[Float[Tensor, "B M D"], Cache]:
        """M more tokens behind every row's last valid event; each sees the prefix, its elders and itself."""
        ...
