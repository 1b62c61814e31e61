"""Where tokens stand: positions in the row and times, of a history or behind it, and rotary position embedding."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fullrank.core.errors import UserError
from fullrank.data.batch import Batch


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
    def ending(q: Float[Tensor, "B H T e"], k: Float[Tensor, "B H S f"]) -> Places:
        """Those of rows of as many tokens as there are keys, of which the last are the queries; without times."""
        at = torch.arange(k.shape[2], device=k.device)[None]
        return Places(at[:, k.shape[2] - q.shape[2] :], at)

    @staticmethod
    def nowhere(asking: Tensor, seen: Tensor) -> Places:
        """Queries and keys of different sequences, which have no distance: [B, T, D] tokens, [B, H, S, e] keys."""
        at = torch.zeros(1, max(asking.shape[1], seen.shape[2]), dtype=torch.long, device=seen.device)
        return Places(at[:, : asking.shape[1]], at[:, : seen.shape[2]])

    @staticmethod
    def behind(batch: Batch, earlier: int, new: int) -> Places:
        """`new` latent tokens as queries, after `earlier` others, behind each row's last event.

        A latent token has no time of its own: the last event's is repeated.
        """
        prefix = torch.arange(batch.items.shape[1], device=batch.items.device).expand(batch.items.shape)
        latent = batch.lengths[:, None] + torch.arange(earlier + new, device=prefix.device)
        queries, keys = latent[:, earlier:], torch.cat([prefix, latent], 1)
        if batch.times is None:
            return Places(queries, keys)
        last = batch.times.gather(1, (batch.lengths - 1).clamp_min(0)[:, None])
        return Places(queries, keys, last.expand(-1, new), torch.cat([batch.times, last.expand_as(latent)], 1))


def even_width(kind: str, width: int) -> None:
    """Raise `UserError` for a width of queries and keys that `rotate` cannot halve."""
    if width % 2:
        raise UserError(f"{kind} attention: RoPE needs an even width per head, not {width}", code="width-not-even")


def rotate(
    x: Float[Tensor, "B H T e"], positions: Int[Tensor, "B T"], *, base: float = 10_000.0
) -> Float[Tensor, "B H T e"]:
    """Rotary position embedding, rotate-half form (RoFormer, arXiv:2104.09864, Eq. 34).

    The inner product of two rotated vectors depends on their distance alone.
    """
    half = x.shape[-1] // 2
    speed = base ** -(torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angle = positions[:, None, :, None].float() * speed
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    left, right = x[..., :half], x[..., half:]
    return torch.cat([left * cos - right * sin, right * cos + left * sin], -1)
