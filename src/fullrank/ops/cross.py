"""One cross layer, y = x + first * (x W^T + b), with a backward pass written by hand.

Autograd multiplies twice for each factor of addcmul and adds the skip in a pass of its own; here the skip is the
matrix product's third argument.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor


def cross(
    first: Float[Tensor, "B W"], x: Float[Tensor, "B W"], weight: Float[Tensor, "W W"], bias: Float[Tensor, "W"]
) -> Float[Tensor, "B W"]:
    """x + first * (x W^T + b)."""
    if not x.is_meta and torch.is_autocast_enabled(x.device.type):  # torch refuses to be asked of meta tensors
        return cross_reference(first, x, weight, bias)
    out: Tensor = _Cross.apply(first, x, weight, bias)
    return out


def cross_reference(
    first: Float[Tensor, "B W"], x: Float[Tensor, "B W"], weight: Float[Tensor, "W W"], bias: Float[Tensor, "W"]
) -> Float[Tensor, "B W"]:
    """The same as it is written; also what mixed precision takes."""
    return torch.addcmul(x, first, F.linear(x, weight, bias))


class _Cross(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, first: Tensor, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        moved = torch.addmm(bias, x, weight.T)
        ctx.save_for_backward(first, x, weight, moved)
        return torch.addcmul(x, first, moved)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        first, x, weight, moved = ctx.saved_tensors
        inner = grad * first
        return grad * moved, torch.addmm(grad, inner, weight), inner.T @ x, inner.sum(0)
