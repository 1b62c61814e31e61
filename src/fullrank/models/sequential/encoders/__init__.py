"""History of vectors -> States.

The room's contract: an `EncoderSpec` that builds an `Encoder`. ``start`` and ``step`` are what a
reasoner needs of it: the history is read once and never sees the latent tokens. Latent tokens are
vectors like the encoder's own states, so they get no item position and no scale of the input. FLOPs
are counted by the base class, for vectors of width `Encoder.dim`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from fullrank.core.errors import UserError
from fullrank.core.spec import Spec
from fullrank.data.batch import Batch
from fullrank.models import Flops, States
from fullrank.ops.model_cost import by_part, forward_flops


@dataclass(frozen=True)
class Cache:
    """The memory of an encoder: of a history and of latent tokens after it. Every tensor's first axis is the row."""

    layers: tuple[tuple[Tensor, ...], ...]
    batch: Batch
    steps: int = 0
    """Latent tokens in each stream."""

    def grown(self, layers: tuple[tuple[Tensor, ...], ...]) -> Cache:
        """The cache after one more token in each stream."""
        return replace(self, layers=layers, steps=self.steps + 1)

    def select(self, rows: Int[Tensor, "b"]) -> Cache:
        """The cache of some of the rows."""
        layers = tuple(tuple(x[rows] for x in layer) for layer in self.layers)
        return replace(self, layers=layers, batch=self.batch.select(rows))

    def branched(self, parents: Int[Tensor, "B P"], shared: int, axis: int) -> Cache:
        """The cache of other streams: stream p of a row goes on from ``parents[row, p]``.

        The first tensors of each layer, as many as are `shared`, are the row's; the others have one
        part for each stream along `axis`.
        """

        def taken(x: Tensor) -> Tensor:
            # parents as [B, 1, .., P, 1, ..] with P at `axis`, then as wide as x everywhere
            # else, as gather needs it
            at = parents.view(len(parents), *[1] * (axis - 1), parents.shape[1], *[1] * (x.ndim - axis - 1))
            return x.gather(axis, at.expand(*x.shape[:axis], -1, *x.shape[axis + 1 :]))

        layers = tuple((*layer[:shared], *map(taken, layer[shared:])) for layer in self.layers)
        return replace(self, layers=layers)


Stepped = tuple[Float[Tensor, "B P D"], Cache]
"""The states of one more token in each stream, and what is remembered with it."""


class EncoderSpec(Spec):
    """Settings of an encoder."""

    kind: str

    @abstractmethod
    def build(self, dim: int, max_length: int) -> Encoder:
        """The module for vectors of this width, in rows of at most this length."""

    @property
    def mask(self) -> str:
        """The setting that says whether it sees what comes later."""
        within = [name for name, part in self if isinstance(part, EncoderSpec)]
        if within:
            return " and ".join(f"model.encoder.{name}.attention.causal" for name in within)
        return "model.encoder.causal" if "causal" in type(self).model_fields else "model.encoder.attention.causal"

    @property
    def without_positions(self) -> str:
        """The settings with which no positions are added to its input."""
        rotary = " and model.encoder.attention.rope=true" if "attention" in type(self).model_fields else ""
        return f"model.encoder.positions=none{rotary}"


def require_length(rows: Tensor, most: int) -> None:
    """Raise `UserError` for histories, [B, T] or [B, T, D], of more events than an encoder has places for."""
    if rows.shape[1] > most:
        raise UserError(f"a history of {rows.shape[1]} events exceeds max_length={most}", code="history-too-long")


class Encoder(nn.Module, ABC):
    """History of vectors -> States."""

    causal: bool
    dim: int = 0
    """Width of the vectors; FLOPs are counted where it is set."""
    reads_times: bool = False
    """It needs `Batch.times`: the loader and `recommend` then provide them."""
    continues: bool = False
    """`step` gives a token the state that `forward` gives it as the next position of its row (where
    it is part of the answer, `Batch.answer`), so that a task may go on with a history token by
    token. An encoder that adds position vectors to its input does not."""
    branching: tuple[int, int] | None = None
    """How its cache branches: the first tensors of a layer that all streams of a row share, and the
    axis along which the others have a part for each stream; None where it cannot."""
    decodes: bool = False
    """It reads a history from both sides and answers behind it with a decoder, so that a row has one answer."""
    featureless: str = "it does not say that it reads them"
    """Why features may not be part of its vectors (`items/event_features.py`); empty where they may."""
    uncounted: str = ""
    """Why its FLOPs cannot be counted on shapes; empty where they can."""
    flop_parts: ClassVar[Mapping[str, str]] = {"": "encoder"}
    """The parts of `flops` by the submodules that compute them (`fullrank.ops.model_cost.by_part`)."""

    @abstractmethod
    def forward(self, x: Float[Tensor, "B T D"], batch: Batch) -> States:
        """Read the history."""

    @abstractmethod
    def start(self, x: Float[Tensor, "B T D"], batch: Batch) -> tuple[States, Cache]:
        """Read the history and remember it."""

    @abstractmethod
    def step(self, x: Float[Tensor, "B P D"], cache: Cache) -> Stepped:
        """One more token in each of P isolated streams after every row's last valid event.

        A token sees the history (all of it, also in a causal encoder), its stream's earlier tokens
        and itself. The first step of a cache says how many streams there are.
        """

    def branch(self, cache: Cache, parents: Int[Tensor, "B P"]) -> Cache:
        """The cache after a step with other streams: stream p of a row goes on from its stream ``parents[row, p]``.

        Raises `UserError` for an encoder that cannot (`branching`).
        """
        if self.branching is None:
            raise UserError(
                f"{type(self).__name__} has no streams that branch, so nothing can be generated with it: use "
                "transformer, gru, seq2seq, caser, hgn or fmlp",
                code="encoder-does-not-continue",
            )
        return cache.branched(parents, *self.branching)

    def flops(self, length: int, answer: int = 0) -> Flops:
        """FLOPs of one row of that many positions, forward, by part; None for all where they cannot be counted.

        The last `answer` positions of the row are its answer (`Batch.answer`).
        """
        if self.uncounted or not self.dim:
            return dict.fromkeys(self.flop_parts.values())
        return row_flops(self, self.dim, length, self.flop_parts, answer)


def row_flops(module: nn.Module, dim: int, length: int, parts: Mapping[str, str], answer: int = 0) -> Flops:
    """FLOPs of a module (an encoder, or a block of one) on one row, counted on shapes; None where that fails."""
    batch = replace(Batch.shapes(1, length), answer=answer)
    by_path = forward_flops(module, torch.empty(1, length, dim, device="meta"), batch)
    if by_path is None:
        return dict.fromkeys(parts.values())
    return {**dict.fromkeys(parts.values(), 0), **by_part(by_path, parts)}
