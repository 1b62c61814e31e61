"""Batch norm, ReLU and dropout in one step, with a backward pass written by hand, on a CPU.

One after the other they walk seven times over tensors that no cache holds, and keep three of them. What they give says
already where a gradient passes (it is 0 elsewhere), so only that and the norm's input are kept; ReLU and dropout run
over a few rows at a time, while those are in the cache; and the factor of what dropout keeps is one of the norm's.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from fullrank.ops.dropout import drawn_here, draws, dropout, is_kept, kept_share

GRAIN = 1 << 15
"""Numbers for each thread at a time: fewer would not be shared out by torch."""


def norm_relu_dropout(x: Float[Tensor, "B H"], norm: nn.BatchNorm1d, p: float) -> Float[Tensor, "B H"]:
    """In training; `norm` keeps its moving averages as ever."""
    if not drawn_here(x) or len(x) < 2:  # of one row, which the norm refuses, it says so
        return norm_relu_dropout_reference(x, norm, p)
    assert norm.num_batches_tracked is not None
    norm.num_batches_tracked.add_(1)
    averages = norm.running_mean, norm.running_var, norm.momentum, norm.eps
    out: Tensor = _NormReluDropout.apply(x, norm.weight, norm.bias, averages, p)
    return out


def norm_relu_dropout_reference(x: Float[Tensor, "B H"], norm: nn.BatchNorm1d, p: float) -> Float[Tensor, "B H"]:
    """The same, one after the other."""
    return dropout(F.relu(norm(x)), p)


class _NormReluDropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, averages: tuple[Any, ...], p: float) -> Tensor:
        running_mean, running_var, momentum, eps = averages
        kept = kept_share(p)
        factor = weight / kept
        out, mean, deviation = torch.native_batch_norm(
            x, factor, bias / kept, running_mean, running_var, True, momentum, eps
        )
        if p:
            mask = torch.empty_like(_blocks(out)[0])
            for rows, drawn in zip(_blocks(out), _blocks(draws(out.shape)), strict=True):
                rows.relu_().mul_(is_kept(drawn, kept, mask[: len(rows)]))
        else:
            out.relu_()
        ctx.save_for_backward(x, factor, mean, deviation, out)
        ctx.kept, ctx.eps = kept, eps
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, factor, mean, deviation, out = ctx.saved_tensors
        passed = torch.ops.aten.threshold_backward(grad, out, 0)
        dx, dweight, dbias = torch.ops.aten.native_batch_norm_backward(
            passed, x, factor, None, None, mean, deviation, True, ctx.eps, [True, True, True]
        )
        return dx, dweight / ctx.kept, dbias / ctx.kept, None, None


def _blocks(x: Tensor) -> tuple[Tensor, ...]:
    """A few rows at a time."""
    return x.split(max(1, GRAIN * torch.get_num_threads() // x.shape[1]))
