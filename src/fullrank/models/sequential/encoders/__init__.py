"""History of vectors -> States.

The room's contract: an `EncoderSpec` that builds an `Encoder`. ``start`` and ``step`` are what a reasoner needs of it:
the history is read once and never sees the latent tokens. They are vectors as the encoder's own states are, so they get
no item position and no scale of the input.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

from jaxtyping import Float, Int
from torch import Tensor, nn

from fullrank.core.spec import Spec
from fullrank.data.batch import Batch, States


@dataclass(frozen=True)
class Cache:
    """What an encoder remembers of a history and of latent tokens after it. Every tensor's first axis is the row."""

    layers: tuple[tuple[Tensor, ...], ...]
    batch: Batch
    steps: int = 0
    """Latent tokens in each stream."""

    def grown(self, layers: tuple[tuple[Tensor, ...], ...]) -> Cache:
        """After one more token in each stream."""
        return replace(self, layers=layers, steps=self.steps + 1)

    def select(self, rows: Int[Tensor, "b"]) -> Cache:
        """Some of the rows."""
        return replace(self, layers=tuple(tuple(x[rows] for x in kept) for kept in self.layers),
                       batch=self.batch.select(rows))  # fmt: skip


class EncoderSpec(Spec):
    """Settings of an encoder."""

    kind: str

    @abstractmethod
    def build(self, dim: int, max_length: int) -> Encoder:
        """The module for vectors of this width, in rows of at most this length."""


class Encoder(nn.Module, ABC):
    """History of vectors -> States. ``flops(length)`` is what one row costs forward, by part (None where unknown)."""

    causal: bool
    reads_times: bool = False
    """It needs `Batch.times`: the loader and `recommend` then provide them."""
    uncounted: str = ""
    """Why there is no `flops`; empty where there is."""

    @abstractmethod
    def forward(self, x: Float[Tensor, "B T D"], batch: Batch) -> States:
        """Read the history."""

    @abstractmethod
    def start(self, x: Float[Tensor, "B T D"], batch: Batch) -> tuple[States, Cache]:
        """Read the history and remember it."""

    @abstractmethod
    def step(self, x: Float[Tensor, "B P D"], cache: Cache) -> tuple[Float[Tensor, "B P D"], Cache]:
        """One more token in each of P isolated streams after every row's last valid event.

        A token sees the history (all of it, also in a causal encoder), its stream's earlier tokens and itself. The
        first step of a cache says how many streams there are.
        """
