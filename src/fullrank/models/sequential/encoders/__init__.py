"""History of vectors -> States.

The room's contract: a Spec whose ``build(dim, max_length)`` gives an `Encoder`. A reasoner is an Encoder that holds
an Encoder; ``start`` and ``step`` are what it needs: the history is read once and never sees the latent tokens. They
are vectors as the encoder's own states are, so they get no item position and no scale of the input. An
encoder that reads `Batch.times` has the attribute ``reads_times = True``; the model then asks for them everywhere.
``flops(length)`` is what one row of that many positions costs forward, by part, or there is a sentence ``uncounted``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor

from fullrank.data.batch import Batch, States


@dataclass(frozen=True)
class Cache:
    """What an encoder remembers of a history and of latent tokens behind it. Every tensor's first axis is the row."""

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


@runtime_checkable
class Encoder(Protocol):
    causal: bool

    def __call__(self, x: Float[Tensor, "B T D"], batch: Batch) -> States: ...

    def start(self, x: Float[Tensor, "B T D"], batch: Batch) -> tuple[States, Cache]:
        """Read the history and remember it."""
        ...

    def step(self, x: Float[Tensor, "B M D"], cache: Cache) -> tuple[Float[Tensor, "B M D"], Cache]:
        """One more token in each of M isolated streams behind every row's last valid event.

        A token sees the history (all of it, also in a causal encoder), its stream's earlier tokens and itself. The
        first step of a cache says how many streams there are.
        """
        ...
