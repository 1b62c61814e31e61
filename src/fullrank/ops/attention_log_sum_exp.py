"""`log_sum_exp` in bf16 on a CPU, as two runs of PyTorch's fused attention: scores never leave its blocks.

Attention of the queries x over the items w, with the items as values too, gives in one walk the
log-sum-exp of each row and its gradient, out_m = sum_v p_mv w_v. The gradient of the items is the
attention of w over x with the scores lowered by each query's log-sum-exp, so that a weight is
p_mv = exp(x_m . w_v - lse_m):

    dw_v = sum_m p_mv g_m x_m = exp(lse'_v) * attention(w, x, values=g x)_v,    lse'_v = log sum_m p_mv

Products read bf16, which AMX tiles multiply and add in fp32; scores, exponentials and sums are
fp32. Four products and two exponentials in a cache take less time than three and one through
memory (benchmarks.train_sequence).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from fullrank.ops.kernels import errors_of, multiplies_bf16, trusted

_attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
"""Called by `F.scaled_dot_product_attention` on a CPU; the public function gives no log-sum-exp."""


def attends(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether to compute by attention: bf16 on a CPU that multiplies it, where the trial met the reference."""
    return (
        device.type == "cpu"
        and dtype == torch.bfloat16
        and multiplies_bf16(device)
        and trusted("attention_log_sum_exp", device, dtype, (16,))
    )


def attention_log_sum_exp(x: Float[Tensor, "M D"], w: Float[Tensor, "V D"]) -> Float[Tensor, "M"]:
    """log sum_v exp(x @ w.T) for every row, in fp32, from products in bf16."""
    return _AttentionLogSumExp.apply(x, w)


def log_sum_exp_errors(
    function: Callable[[Tensor, Tensor], Tensor],
    device: torch.device,
    dtype: torch.dtype,
    blocks: tuple[int, ...],
    sizes: tuple[int, int] = (67, 141),
) -> dict[str, float]:
    """Distances of values and gradients from the reference, at odd sizes (rows,
    items) and a width in the block."""
    generator = torch.Generator().manual_seed(sum(sizes))
    width = blocks[0] - 3
    x, w = (torch.randn(n, width, generator=generator).to(device, dtype) / width**0.25 for n in sizes)
    return errors_of(lambda a, b: (function(a, b),), lambda a, b: ((a @ b.T).logsumexp(-1),), [x, w])


attention_log_sum_exp_errors = partial(log_sum_exp_errors, attention_log_sum_exp, sizes=(67, 541))


class _AttentionLogSumExp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.dtypes = x.dtype, w.dtype
        queries, items = (t.to(torch.bfloat16)[None, None] for t in (x, w))
        mean, lse = _attention(queries, items, items, scale=1.0)
        ctx.save_for_backward(queries, items, mean, lse)
        return lse[0, 0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, Tensor | None]:
        queries, items, mean, lse = ctx.saved_tensors
        dx = dw = None
        if ctx.needs_input_grad[0]:
            dx = (mean[0, 0] * upstream[:, None]).to(ctx.dtypes[0])
        if ctx.needs_input_grad[1]:
            values = (queries * upstream[:, None]).to(torch.bfloat16)
            pulled, mass = _attention(items, queries, values, scale=1.0, attn_mask=-lse[:, :, None])
            dw = (pulled[0, 0] * mass[0, 0].exp()[:, None]).to(ctx.dtypes[1])
        return dx, dw
