"""Token mixers. An attention turns a sequence of vectors into another of the same shape.

The room's contract: a Spec whose ``build(dim, max_length)`` gives a module that satisfies `Attention`. The encoder
around it owns norms, residuals and feed-forward; the attention owns its projections. Rows are right-padded, and the
mask of a causal attention hides the future; a padded key is never seen by a valid query.

An attention that compares where queries and keys stand, in the row or in time, is `Placed` as well.

``flops(length)`` is what one row of that many positions costs forward, or the module has a sentence ``uncounted``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fullrank.data.batch import Batch

Projection = tuple[Float[Tensor, "H e D"], Float[Tensor, "D De"]]
"""Value projection by head, and the output projection."""


class Attention(Protocol):
    causal: bool
    heads: int

    def project(self, x: Float[Tensor, "B T D"], positions: Int[Tensor, "B T"]) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values by head, [B, H, T, e] each; keys and values are what a cache holds."""
        ...

    def attend(self, q: Tensor, k: Tensor, v: Tensor, allowed: Bool[Tensor, "B 1 T S"] | None) -> Tensor:
        """[B, T, D] from projected tokens. Without a mask the attention is causal over equal lengths."""
        ...

    def __call__(self, x: Float[Tensor, "B T D"], batch: Batch) -> Float[Tensor, "B T D"]:
        """The mixed tokens. Rows past a length are unspecified."""
        ...

    def weights(self, x: Float[Tensor, "B T D"], batch: Batch) -> Float[Tensor, "B H T T"]:
        """The slow reference and diagnostic tap: rows are queries, columns keys, zero where the mask hides."""
        ...

    def apply_weights(self, weights: Float[Tensor, "B H T T"], x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """What the module makes of given weights: ``apply_weights(weights(x), x)`` equals its output."""
        ...

    def matrices(self) -> Projection:
        """The value projection of each head and the output projection, as views of the parameters."""
        ...


def of_mixing(length: int, widths: int, *, causal: bool, block: int | None = None) -> int:
    """FLOPs of products of queries and keys, and of weights and values, whose widths over all heads add up to `widths`.

    The whole square is counted, as it is computed; blocks of causal queries read the keys up to their own end alone.
    """
    if block is None or not causal:
        return 2 * widths * length * length
    ends = range(0, length, block)
    return 2 * widths * sum((min(low + block, length) - low) * min(low + block, length) for low in ends)


@dataclass(frozen=True)
class Places:
    """Where queries and keys stand: positions in the row from its first event, and times where there are any."""

    queries: Int[Tensor, "#B T"]
    keys: Int[Tensor, "#B S"]
    asked: Int[Tensor, "B T"] | None = None
    """The time that a query asks about: that of the next event, of the row's last event where none follows."""
    times: Int[Tensor, "B S"] | None = None
    """The time of each key."""

    @staticmethod
    def of(batch: Batch) -> Places:
        """Every token of a batch as query and key."""
        at = torch.arange(batch.items.shape[1], device=batch.items.device)
        if batch.times is None:
            return Places(at[None], at[None])
        following = torch.minimum(at + 1, (batch.lengths[:, None] - 1).clamp_min(0))
        return Places(at[None], at[None], batch.times.gather(1, following), batch.times)

    @staticmethod
    def behind(batch: Batch, elders: int, new: int) -> Places:
        """`new` latent tokens as queries, after `elders` others, behind each row's last event.

        A latent token has no time of its own: the last event's is repeated.
        """
        prefix = torch.arange(batch.items.shape[1], device=batch.items.device).expand(batch.items.shape)
        latent = batch.lengths[:, None] + torch.arange(elders + new, device=prefix.device)
        queries, keys = latent[:, elders:], torch.cat([prefix, latent], 1)
        if batch.times is None:
            return Places(queries, keys)
        last = batch.times.gather(1, (batch.lengths - 1).clamp_min(0)[:, None])
        return Places(queries, keys, last.expand(-1, new), torch.cat([batch.times, last.expand_as(latent)], 1))


@runtime_checkable
class Placed(Protocol):
    """An attention whose `attend` is told where its tokens stand."""

    reads_times: bool
    """It needs `Batch.times`; the loader and `recommend` then provide them. False: positions are enough."""

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, allowed: Bool[Tensor, "B 1 T S"] | None, places: Places | None = None
    ) -> Tensor:
        """As `Attention.attend`."""
        ...


def mask(batch: Batch, *, causal: bool) -> Bool[Tensor, "B 1 T T"]:
    """True where a query may look. A padded query sees the first key, so that no row is empty."""
    t = batch.items.shape[1]
    keys = batch.valid[:, None, None, :].expand(-1, 1, t, t)
    if causal:
        keys = keys & torch.ones(t, t, dtype=torch.bool, device=keys.device).tril()
    first = torch.zeros(t, dtype=torch.bool, device=keys.device)
    first[:1] = True
    return keys | (first & ~batch.valid[:, None, :, None])
