"""Rotary position embedding, rotate-half form (RoFormer, arXiv:2104.09864, Eq. 34)."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor


def rotate(
    x: Float[Tensor, "B H T e"], positions: Int[Tensor, "B T"], *, base: float = 10_000.0
) -> Float[Tensor, "B H T e"]:
    """x turned by its position: the inner product of two rotated vectors depends on their distance alone."""
    half = x.shape[-1] // 2
    speed = base ** -(torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angle = positions[:, None, :, None].float() * speed
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    left, right = x[..., :half], x[..., half:]
    return torch.cat([left * cos - right * sin, right * cos + left * sin], -1)
