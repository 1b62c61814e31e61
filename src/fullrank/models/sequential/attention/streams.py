"""Latent tokens behind a history: what a cache holds of it, and one token in each of M isolated streams against that.

An attention that is `Streamed` notes its keys and values while it reads the history and never copies them. Any other
is served through `project` and `attend` alone: its keys are projected a second time, and every stream gets a copy.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fullrank.data.batch import Batch
from fullrank.models.sequential.attention import Placed, Places

Memory = tuple[Tensor, Tensor]
"""Keys and values by head: of a history [B, H, T, e], of streams [B, H, M, S, e]."""


@runtime_checkable
class Streamed(Protocol):
    """An attention with a cheap way to go on behind a history; it notes `Captures.memory` where that is wanted."""

    def think(self, q: Float[Tensor, "B H M e"], prefix: Memory, own: Memory, batch: Batch) -> Float[Tensor, "B M D"]:
        """The output of one token in each stream, which sees the history and its stream's S tokens, itself the last."""
        ...


def remembered(attention: Any, x: Float[Tensor, "B T D"], batch: Batch) -> Memory:
    """The keys and values of a history that the attention has just read."""
    memory = (batch.captures.memory if batch.captures else None) or {}
    if attention in memory:
        return memory[attention]
    _, k, v = attention.project(x, batch.positions(from_end=False))
    return k, v


def think(
    attention: Any, x: Float[Tensor, "B M D"], prefix: Memory, own: Memory | None, batch: Batch
) -> tuple[Float[Tensor, "B M D"], Memory]:
    """One more token in each stream: mixed, and what is remembered of the streams."""
    elders = 0 if own is None else own[0].shape[3]
    q, k, v = attention.project(x, (batch.lengths + elders)[:, None].expand(-1, x.shape[1]))
    k, v = k[:, :, :, None], v[:, :, :, None]
    grown = (k, v) if own is None else (torch.cat([own[0], k], 3), torch.cat([own[1], v], 3))
    if isinstance(attention, Streamed):
        return attention.think(q, prefix, grown, batch), grown
    return think_reference(attention, q, prefix, grown, batch), grown


def think_reference(
    attention: Any, q: Float[Tensor, "B H M e"], prefix: Memory, own: Memory, batch: Batch
) -> Float[Tensor, "B M D"]:
    """The twin of `Streamed.think`: each stream apart, behind a copy of the history."""
    s = own[0].shape[3]
    places = (Places.behind(batch, s - 1, 1),) if isinstance(attention, Placed) else ()
    allowed, mixed = seen(batch, s), []
    for m in range(q.shape[2]):
        k, v = (torch.cat([old, new[:, :, m]], 2) for old, new in zip(prefix, own, strict=True))
        mixed.append(attention.attend(q[:, :, m : m + 1], k, v, allowed, *places))
    return torch.cat(mixed, 1)


def seen(batch: Batch, own: int) -> Bool[Tensor, "B 1 1 n"]:
    """Which of n = T + S keys a latent token may see: the row's events, and its stream's tokens."""
    return torch.cat([batch.valid, batch.valid.new_ones(len(batch.lengths), own)], 1)[:, None, None]
