"""`log_sum_exp` as Triton kernels: a block of scores lives in registers, so that no part of [M, V] is ever in memory.

Cut Cross-Entropy's idea (Wijmans et al. 2024, arXiv:2411.09009, Sec. 4.2 and 4.3): the forward pass
keeps the log-sum-exp of each row, from which the backward pass makes each block of the softmax
again, p = exp(x . w - lse).

Differs: the gradients of queries and of items are made by two runs of one kernel, each with sums of
its own in a fixed order, where the paper adds both into memory by atomics: one product more, and
the same bits every time. Small probabilities are not skipped.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from fullrank.ops.attention_log_sum_exp import log_sum_exp_errors
from fullrank.ops.kernels import block_of, product_dtype, triton_dtype
from fullrank.ops.triton_blocks import LOG2_E, put_rows, rows_of

BITS = LOG2_E.value
PROGRAMS = 512
"""Programs that keep a large GPU busy; fewer blocks than this are cut along their sums."""


@triton.jit
def _forward(
    x, w, out, m, v, width, part,
    BLOCK_M: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_D: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """log2 sum 2^(score in bits) of a block of rows over `part` items from the program's own."""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    block = rows_of(x, rows, m, width, BLOCK_D, DTYPE)
    top = tl.full([BLOCK_M], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    first = tl.program_id(1) * part
    for low in range(first, tl.minimum(first + part, v), BLOCK_V):
        items = low + tl.arange(0, BLOCK_V)
        other = rows_of(w, items, v, width, BLOCK_D, DTYPE)
        scores = tl.dot(block, tl.trans(other), input_precision="ieee") * LOG2_E
        scores = tl.where((items < v)[None, :], scores, -float("inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        total = total * tl.exp2(top - higher) + tl.sum(tl.exp2(scores - higher[:, None]), 1)
        top = higher
    tl.store(out + tl.program_id(1).to(tl.int64) * m + rows, top + tl.log2(total), mask=rows < m)


@triton.jit
def _pull(
    a, b, out, lse, upstream, m, n, width, part, OF_ROWS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """sum_n p_mn g b_n for a block of the rows of a [m]; lse and g are
    those of a's rows, or of b's."""
    at = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    block = rows_of(a, at, m, width, BLOCK_D, DTYPE)
    total = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    if OF_ROWS:
        level = tl.load(lse + at, mask=at < m, other=0.0)[:, None]
        pull = tl.load(upstream + at, mask=at < m, other=0.0)[:, None]
    first = tl.program_id(1) * part
    for low in range(first, tl.minimum(first + part, n), BLOCK_N):
        beside = low + tl.arange(0, BLOCK_N)
        other = rows_of(b, beside, n, width, BLOCK_D, DTYPE)
        scores = tl.dot(block, tl.trans(other), input_precision="ieee") * LOG2_E
        if OF_ROWS:
            weights = tl.exp2(scores - level) * pull
        else:
            level = tl.load(lse + beside, mask=beside < n, other=0.0)[None, :]
            pull = tl.load(upstream + beside, mask=beside < n, other=0.0)[None, :]
            weights = tl.exp2(scores - level) * pull
        weights = tl.where((beside < n)[None, :], weights, 0.0)
        total += tl.dot(weights.to(DTYPE), other, input_precision="ieee")
    put_rows(out + tl.program_id(1).to(tl.int64) * m * width, at, m, width, total, BLOCK_D)


def triton_log_sum_exp(x: Float[Tensor, "M D"], w: Float[Tensor, "V D"]) -> Float[Tensor, "M"]:
    """log sum_v exp(x @ w.T) for every row, in fp32; products in autocast's dtype, or in that of x."""
    return _TritonLogSumExp.apply(x, w)


def triton_log_sum_exp_errors(*arguments: Any) -> dict[str, float]:
    """Distances of the kernel from its reference (`log_sum_exp_errors`)."""
    return log_sum_exp_errors(triton_log_sum_exp, *arguments)


class _TritonLogSumExp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        dtype = product_dtype(x)
        ctx.dtypes = x.dtype, w.dtype
        x, w = x.to(dtype).contiguous(), w.to(dtype).contiguous()
        with torch.cuda.device_of(x):
            bits = _log2_sum_exp(x, w)
        ctx.save_for_backward(x, w, bits)
        return bits / BITS

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, w, bits = ctx.saved_tensors
        upstream = upstream.float().contiguous()
        dx = _pulled(x, w, bits, upstream, of_rows=True).to(ctx.dtypes[0]) if ctx.needs_input_grad[0] else None
        dw = _pulled(w, x, bits, upstream, of_rows=False).to(ctx.dtypes[1]) if ctx.needs_input_grad[1] else None
        return dx, dw


def _log2_sum_exp(x: Tensor, w: Tensor) -> Float[Tensor, "M"]:
    """The log-sum-exp of every row in bits, put together from its parts."""
    (m, width), v = x.shape, len(w)
    rows, columns = _blocks(x)
    parts, part = _parts(m, v, rows, columns)
    out = torch.empty(parts, m, dtype=torch.float32, device=x.device)
    _forward[(triton.cdiv(m, rows), parts)](
        x,
        w,
        out,
        m,
        v,
        width,
        part,
        BLOCK_M=rows,
        BLOCK_V=columns,
        BLOCK_D=block_of(width),
        DTYPE=triton_dtype(x.dtype),
        num_warps=8,
    )
    return out[0] if parts == 1 else (out / BITS).logsumexp(0) * BITS


def _pulled(a: Tensor, b: Tensor, bits: Tensor, upstream: Tensor, *, of_rows: bool) -> Float[Tensor, "M D"]:
    """The gradient by `a`, summed over its parts (`_pull`)."""
    (m, width), n = a.shape, len(b)
    rows, columns = _blocks(a)
    parts, part = _parts(m, n, rows, columns)
    out = torch.empty(parts, m, width, dtype=torch.float32, device=a.device)
    _pull[(triton.cdiv(m, rows), parts)](
        a,
        b,
        out,
        bits,
        upstream,
        m,
        n,
        width,
        part,
        OF_ROWS=of_rows,
        BLOCK_M=rows,
        BLOCK_N=columns,
        BLOCK_D=block_of(width),
        DTYPE=triton_dtype(a.dtype),
        num_warps=8,
    )
    return out[0] if parts == 1 else out.sum(0)


def _blocks(x: Tensor) -> tuple[int, int]:
    """Rows of a program, and how many others it meets at a time: as many as fit shared memory, in fp32 too.

    Not measured.
    """
    wide = x.shape[1] > 128 or (x.shape[1] > 64 and x.dtype == torch.float32)
    return (64, 32) if wide else (64, 64)


def _parts(rows: int, others: int, block: int, beside: int) -> tuple[int, int]:
    """Parts that the others are cut into, and the size of each (whole blocks): enough
    programs, none without work."""
    wanted = max(1, min(PROGRAMS // triton.cdiv(rows, block), triton.cdiv(others, beside)))
    part = triton.cdiv(triton.cdiv(others, beside), wanted) * beside
    return triton.cdiv(others, part), part
