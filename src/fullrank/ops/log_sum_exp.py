"""log sum_v exp(x_m . w_v) over a whole catalogue, without the [M, V] scores ever existing at once.

The derivative of the log-sum-exp is the softmax, which the forward pass has at hand: it makes both
gradients while a chunk of scores is still in cache, so an exact softmax costs three matrix products
(scores, d x, d w) and one exponential. The gradients are made for a weight of one per row; a
backward pass whose upstream gradient is the same for every row scales them, any other recomputes
the chunks with its own weights.

On a CUDA device half precision takes the Triton kernel (`ops/triton_log_sum_exp.py`), on a CPU with
AMX bf16 takes PyTorch's fused attention (`ops/attention_log_sum_exp.py`): no chunk is in memory
there. In fp32 chunks stay.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from fullrank.ops.attention_log_sum_exp import attends, attention_log_sum_exp
from fullrank.ops.kernels import chosen, kernel, product_dtype

CHUNK_ELEMENTS = 1_500_000
"""Scores alive at once (6 MB in fp32): best between 1 and 3 million on CPUs with a few MB of cache."""
MOST_WIDTH = 256
"""Widest vectors that the kernel takes: a block of them with its sum has to fit the registers."""
LOG2_E = math.log2(math.e)


def log_sum_exp(
    x: Float[Tensor, "M D"], w: Float[Tensor, "V D"], *, chunk_elements: int = CHUNK_ELEMENTS, ahead: bool = True
) -> Float[Tensor, "M"]:
    """log sum_v exp(x @ w.T) for every row, in fp32, in chunks of `chunk_elements` scores.

    `ahead`: make gradients in the forward pass already. Not where the weights of
    rows are known to differ.
    """
    dtype = product_dtype(x)
    if dtype.itemsize == 2 and len(x):
        if chosen("triton_log_sum_exp", x.device, dtype, x.shape[1], most=MOST_WIDTH):
            return kernel("triton_log_sum_exp")(x, w)
        if attends(x.device, dtype):
            return attention_log_sum_exp(x, w)
    return chunked_log_sum_exp(x, w, chunk_elements=chunk_elements, ahead=ahead)


def chunked_log_sum_exp(
    x: Float[Tensor, "M D"], w: Float[Tensor, "V D"], *, chunk_elements: int = CHUNK_ELEMENTS, ahead: bool = True
) -> Float[Tensor, "M"]:
    """Compute `log_sum_exp` in chunks of queries, on any device and without a kernel."""
    return _LogSumExp.apply(x, w, rows_at_once(chunk_elements, len(w)), ahead and torch.is_grad_enabled())


def rows_at_once(chunk_elements: int, items: int) -> int:
    """Queries whose scores of so many items are alive together."""
    return max(16, min(4096, chunk_elements // max(1, items)))


def log_sum_exp_reference(x: Float[Tensor, "M D"], w: Float[Tensor, "V D"]) -> Float[Tensor, "M"]:
    """The reference: the definition as it reads."""
    return (x @ w.T).float().logsumexp(-1)


class _LogSumExp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, rows: int, ahead: bool) -> Tensor:
        kind, dtype = x.device.type, product_dtype(x)
        wanted = ahead and any(ctx.needs_input_grad[:2])
        with torch.autocast(kind, enabled=False):
            out, dx, dw = chunked_pass(x.to(dtype), w.to(dtype), None, rows, wanted)
        ctx.save_for_backward(x, w, *((dx, dw) if wanted else ()))
        ctx.rows, ctx.dtype = rows, dtype
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        x, w, *gradients = ctx.saved_tensors
        if gradients and len(upstream) and bool((upstream == upstream[0]).all()):
            dx, dw = (gradient * upstream[0] for gradient in gradients)
        else:
            with torch.autocast(x.device.type, enabled=False):
                _, dx, dw = chunked_pass(x.to(ctx.dtype), w.to(ctx.dtype), upstream, ctx.rows, True)
        return dx.to(x.dtype), dw.to(w.dtype), None, None


def chunked_pass(
    x: Tensor, w: Tensor, weights: Tensor | None, rows: int, gradients: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Values, and on request the gradients of their weighted sum, one chunk of rows after another.

    Scores are kept in bits (times log2 e): the CPU's exp2 takes a third of the time of its exp.
    """
    top = x.new_empty(len(x), 1, dtype=torch.float32)
    total = torch.empty_like(top)
    dx = torch.empty_like(x) if gradients else None
    dw = torch.zeros(w.shape, dtype=torch.float32, device=w.device) if gradients else None
    full = x.dtype == torch.float32
    scores = x.new_empty(min(rows, len(x)), len(w), dtype=torch.float32) if full else None
    for low in range(0, len(x), rows):
        at = slice(low, low + rows)
        part = x[at]
        if scores is not None:
            chunk = torch.mm(part * LOG2_E, w.T, out=scores[: len(part)])
        else:
            chunk = (part @ w.T).float().mul_(LOG2_E)
        torch.amax(chunk, 1, keepdim=True, out=top[at])
        torch.sum(chunk.sub_(top[at]).exp2_(), 1, keepdim=True, out=total[at])
        if dx is None or dw is None:
            continue
        factor = total[at].reciprocal() if weights is None else weights[at, None].float() / total[at]
        mass = chunk.to(x.dtype)
        if full:
            torch.mm(mass, w, out=dx[at]).mul_(factor)
            dw.addmm_(mass.T, part * factor)
        else:
            factor = factor.to(x.dtype)
            dx[at] = (mass @ w) * factor
            dw += mass.T @ (part * factor)
    return ((top + total.log2()) / LOG2_E)[:, 0], dx, dw
