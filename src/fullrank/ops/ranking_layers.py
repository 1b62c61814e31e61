"""Layers of ranking models in fewer passes over memory: norm with ReLU, wide perceptrons, crosses, networks per token.

Batch norm, ReLU and dropout one after the other walk seven times over tensors that no cache holds,
and keep three of them. What they give says already where a gradient passes (it is 0 elsewhere), so
only that and the norm's input are kept; ReLU and dropout run over a few rows at a time, while those
are in the cache; and the factor of what dropout keeps is one of the norm's.

A cross layer is y = x + first * (x W^T + b). Autograd multiplies twice for each factor of addcmul
and adds the skip in a pass of its own; here the skip is the matrix product's third argument.

A perceptron shared by chunks has a hidden layer that is many times wider than what goes in and comes
out, and that no cache holds. It is computed a few rows at a time, and again in the backward pass, so
that nothing of it is kept: half of the seconds of a step that is 500 wide, for a third of its products more.

A network per token is the same function with other weights on each of T tokens. A loop over tokens
keeps one token's activations in cache: faster on a CPU. One batched product launches T times fewer
kernels: faster on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from fullrank.ops.dropout import draws, draws_here, drop, factors, keep_mask, keep_probability, new_seed

GRAIN = 1 << 15
"""Numbers for each thread at a time: fewer would not be shared out by torch."""
ROWS_GRAIN = 1 << 17
"""The same where matrix products lie between."""


def norm_relu_dropout(x: Float[Tensor, "B H"], norm: nn.BatchNorm1d, p: float) -> Float[Tensor, "B H"]:
    """Batch norm, ReLU and dropout at rate `p`, in training; `norm` updates its moving averages as ever."""
    if not draws_here(x) or len(x) < 2:  # of one row, which the norm refuses, it says so
        return norm_relu_dropout_reference(x, norm, p)
    assert norm.num_batches_tracked is not None
    norm.num_batches_tracked.add_(1)
    averages = norm.running_mean, norm.running_var, norm.momentum, norm.eps
    return _NormReluDropout.apply(x, norm.weight, norm.bias, averages, p)


def norm_relu_dropout_reference(x: Float[Tensor, "B H"], norm: nn.BatchNorm1d, p: float) -> Float[Tensor, "B H"]:
    """Norm, ReLU and dropout one after the other: the reference."""
    return drop(F.relu(norm(x)), p)


class _NormReluDropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, averages: tuple[Any, ...], p: float) -> Tensor:
        running_mean, running_var, momentum, eps = averages
        keep = keep_probability(p)
        factor = weight / keep
        out, mean, deviation = torch.native_batch_norm(
            x, factor, bias / keep, running_mean, running_var, True, momentum, eps
        )
        if p:
            mask = torch.empty_like(_blocks(out)[0])
            for rows, drawn in zip(_blocks(out), _blocks(draws(out.shape)), strict=True):
                rows.relu_().mul_(keep_mask(drawn, keep, mask[: len(rows)]))
        else:
            out.relu_()
        ctx.save_for_backward(x, factor, mean, deviation, out)
        ctx.kept, ctx.eps = keep, eps
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
    """Split into blocks of rows that stay in the cache."""
    return x.split(max(1, GRAIN * torch.get_num_threads() // x.shape[1]))


def wide_perceptron(
    x: Float[Tensor, "B C I"], up: nn.Linear, norm: nn.RMSNorm | None, down: nn.Linear, p: float
) -> Float[Tensor, "B C O"]:
    """down(dropout(relu(norm(up(x))))) in training."""
    if not draws_here(x):
        return wide_perceptron_reference(x, up, norm, down, p)
    scale, eps = (None, None) if norm is None else (norm.weight, norm.eps)
    return _WidePerceptron.apply(x, up.weight, up.bias, scale, down.weight, down.bias, eps, p, new_seed() if p else 0)


def wide_perceptron_reference(
    x: Float[Tensor, "B C I"], up: nn.Linear, norm: nn.RMSNorm | None, down: nn.Linear, p: float
) -> Float[Tensor, "B C O"]:
    """Its layers one after the other: the reference."""
    hidden = up(x)
    return down(drop(F.relu(hidden if norm is None else norm(hidden)), p))


class _WidePerceptron(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, *rest: Any) -> Tensor:
        *weights, ctx.eps, ctx.p, ctx.seed = rest
        ctx.autocast = torch.get_autocast_dtype("cpu"), torch.is_autocast_enabled("cpu")
        ctx.save_for_backward(x, *weights)
        masks = _masks(ctx, x, weights[0])
        return torch.cat([_rows_through(rows, weights, ctx.eps, next(masks)) for rows in _rows(x, weights[0])])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, up, *others = ctx.saved_tensors
        weights = [weight if weight is None else weight.detach().requires_grad_() for weight in (up, *others)]
        masks, dx = _masks(ctx, x, up), list[Any]()
        with torch.enable_grad(), torch.autocast("cpu", *ctx.autocast):
            for rows, above in zip(_rows(x, up), _rows(grad, up), strict=True):
                rows = rows.detach().requires_grad_()
                _rows_through(rows, weights, ctx.eps, next(masks)).backward(above)
                dx.append(rows.grad)
        return torch.cat(dx), *(weight if weight is None else weight.grad for weight in weights), None, None, None


def _rows(x: Tensor, up: Tensor) -> tuple[Tensor, ...]:
    """Split into blocks of rows whose hidden layer stays in the cache; of a multiple of four numbers, as draws come."""
    return x.split(4 * max(1, ROWS_GRAIN * torch.get_num_threads() // (4 * x.shape[1] * len(up))))


def _masks(ctx: Any, x: Tensor, up: Tensor) -> Iterator[Tensor | None]:
    """Factors of the hidden layer of each block: those that `drop` draws for the whole layer at this seed."""
    source = np.random.SFC64(ctx.seed)
    for rows in _rows(x, up):
        yield factors((*rows.shape[:-1], len(up)), ctx.p, x.dtype, source) if ctx.p else None


def _rows_through(x: Tensor, weights: Sequence[Any], eps: float | None, mask: Tensor | None) -> Tensor:
    up, up_bias, scale, down, down_bias = weights
    hidden = F.linear(x, up, up_bias)
    hidden = F.relu(hidden if scale is None else F.rms_norm(hidden, (hidden.shape[-1],), scale, eps))
    return F.linear(hidden if mask is None else hidden * mask, down, down_bias)


def cross(
    first: Float[Tensor, "B W"], x: Float[Tensor, "B W"], weight: Float[Tensor, "W W"], bias: Float[Tensor, "W"]
) -> Float[Tensor, "B W"]:
    """x + first * (x W^T + b)."""
    if not x.is_meta and torch.is_autocast_enabled(x.device.type):  # torch refuses to be asked of meta tensors
        return cross_reference(first, x, weight, bias)
    return _Cross.apply(first, x, weight, bias)


def cross_reference(
    first: Float[Tensor, "B W"], x: Float[Tensor, "B W"], weight: Float[Tensor, "W W"], bias: Float[Tensor, "W"]
) -> Float[Tensor, "B W"]:
    """`cross` as it is written: the reference, and the layer of mixed precision."""
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


How = Literal["loop", "batched"]
Network = Callable[..., Tensor]
"""(x[..., B, D], *weights) -> [..., B, H]; with matrices [..., D, H] and biases [..., 1, H], built from `affine`."""


def per_token(
    network: Network, x: Float[Tensor, "B T D"], weights: Sequence[Tensor], how: How | None = None
) -> Float[Tensor, "B T H"]:
    """`network` on token t with `weights[...][t]`, for every t; `how` None is the faster one on x's device."""
    if how is None:
        how = "batched" if x.is_cuda else "loop"
    if how == "batched":
        return network(x.transpose(0, 1), *weights).transpose(0, 1)
    each = zip(x.unbind(1), *(weight.unbind(0) for weight in weights), strict=True)
    return torch.stack([network(*token) for token in each], 1)


def affine(x: Float[Tensor, "*T B D"], weight: Float[Tensor, "*T D H"], bias: Tensor | None) -> Float[Tensor, "*T B H"]:
    """x W + b, of one token or of all at once."""
    if bias is None:
        return x @ weight
    return torch.addmm(bias, x, weight) if x.ndim == 2 else torch.baddbmm(bias, x, weight)


def stack_of(tokens: int, inner: int, outer: int) -> torch.nn.Parameter:
    """[T, inner, outer] with the Xavier-normal values of one token's matrix (its
    fans, not those of the stack)."""
    weight = torch.empty(tokens, inner, outer)
    for matrix in weight:
        torch.nn.init.xavier_normal_(matrix)
    return torch.nn.Parameter(weight)


def biases(tokens: int, outer: int) -> torch.nn.Parameter:
    """[T, 1, outer] zeros."""
    return torch.nn.Parameter(torch.zeros(tokens, 1, outer))
