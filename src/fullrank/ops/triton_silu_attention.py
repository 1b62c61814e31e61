"""Causal SiLU attention without bias as Triton kernels: y_i = sum_{j <= i} silu(q_i . k_j) v_j, divided outside.

HSTU's pointwise attention (Zhai et al. 2024, arXiv:2402.17152, Eq. 2) in the form that `rope`
or no position leaves: no sum of exponentials is kept, so a block of weights is made from its
scores alone, in both passes.

Differs from HSTU's own kernels: no relative bias by position or time (`ops/silu_attention.py`
computes those), and rows are padded, not jagged.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from fullrank.ops.kernels import errors_of
from fullrank.ops.triton_blocks import LOG2_E, launch, put_rows, rows_of, trial_heads


@triton.jit
def _gate(scores):
    """1 / (1 + e^-s)."""
    return 1.0 / (1.0 + tl.exp2(-scores * LOG2_E))


@triton.jit
def _forward(
    q, k, v, out, t, e, f,
    BLOCK_T: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_F: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """Output of a block of queries."""
    head = tl.program_id(0).to(tl.int64) * t
    rows = tl.program_id(1) * BLOCK_T + tl.arange(0, BLOCK_T)
    queries = rows_of(q + head * e, rows, t, e, BLOCK_E, DTYPE)
    mixed = tl.zeros([BLOCK_T, BLOCK_F], tl.float32)
    for low in range(0, tl.minimum((tl.program_id(1) + 1) * BLOCK_T, t), BLOCK_T):
        keys = low + tl.arange(0, BLOCK_T)
        scores = tl.dot(queries, tl.trans(rows_of(k + head * e, keys, t, e, BLOCK_E, DTYPE)), input_precision="ieee")
        weights = tl.where(keys[None, :] <= rows[:, None], scores * _gate(scores), 0.0)
        values = rows_of(v + head * f, keys, t, f, BLOCK_F, DTYPE)
        mixed += tl.dot(weights.to(DTYPE), values, input_precision="ieee")
    put_rows(out + head * f, rows, t, f, mixed, BLOCK_F)


@triton.jit
def _backward_queries(
    q, k, v, d_out, dq, t, e, f,
    BLOCK_T: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_F: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """d q of a block of queries, by the derivative of SiLU, gate (1 + s (1 - gate))."""
    head = tl.program_id(0).to(tl.int64) * t
    rows = tl.program_id(1) * BLOCK_T + tl.arange(0, BLOCK_T)
    queries = rows_of(q + head * e, rows, t, e, BLOCK_E, DTYPE)
    pull = rows_of(d_out + head * f, rows, t, f, BLOCK_F, DTYPE)
    gradient = tl.zeros([BLOCK_T, BLOCK_E], tl.float32)
    for low in range(0, tl.minimum((tl.program_id(1) + 1) * BLOCK_T, t), BLOCK_T):
        keys = low + tl.arange(0, BLOCK_T)
        block_keys = rows_of(k + head * e, keys, t, e, BLOCK_E, DTYPE)
        scores = tl.dot(queries, tl.trans(block_keys), input_precision="ieee")
        gate = _gate(scores)
        d_weights = tl.dot(pull, tl.trans(rows_of(v + head * f, keys, t, f, BLOCK_F, DTYPE)), input_precision="ieee")
        d_scores = d_weights * gate * (1.0 + scores * (1.0 - gate))
        d_scores = tl.where(keys[None, :] <= rows[:, None], d_scores, 0.0)
        gradient += tl.dot(d_scores.to(DTYPE), block_keys, input_precision="ieee")
    put_rows(dq + head * e, rows, t, e, gradient, BLOCK_E)


@triton.jit
def _backward_keys(
    q, k, v, d_out, dk, dv, t, e, f,
    BLOCK_T: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_F: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """d k and d v of a block of keys. Scores stand transposed, keys x queries."""
    head = tl.program_id(0).to(tl.int64) * t
    keys = tl.program_id(1) * BLOCK_T + tl.arange(0, BLOCK_T)
    own_keys = rows_of(k + head * e, keys, t, e, BLOCK_E, DTYPE)
    values = rows_of(v + head * f, keys, t, f, BLOCK_F, DTYPE)
    of_keys = tl.zeros([BLOCK_T, BLOCK_E], tl.float32)
    of_values = tl.zeros([BLOCK_T, BLOCK_F], tl.float32)
    for low in range(tl.program_id(1) * BLOCK_T, t, BLOCK_T):
        rows = low + tl.arange(0, BLOCK_T)
        queries = rows_of(q + head * e, rows, t, e, BLOCK_E, DTYPE)
        pull = rows_of(d_out + head * f, rows, t, f, BLOCK_F, DTYPE)
        scores = tl.dot(own_keys, tl.trans(queries), input_precision="ieee")
        seen = keys[:, None] <= rows[None, :]
        gate = _gate(scores)
        weights = tl.where(seen, scores * gate, 0.0)
        of_values += tl.dot(weights.to(DTYPE), pull, input_precision="ieee")
        d_weights = tl.dot(values, tl.trans(pull), input_precision="ieee")
        d_scores = tl.where(seen, d_weights * gate * (1.0 + scores * (1.0 - gate)), 0.0)
        of_keys += tl.dot(d_scores.to(DTYPE), queries, input_precision="ieee")
    put_rows(dk + head * e, keys, t, e, of_keys, BLOCK_E)
    put_rows(dv + head * f, keys, t, f, of_values, BLOCK_F)


def triton_silu_attention(
    q: Float[Tensor, "B H T e"],
    k: Float[Tensor, "B H T e"],
    v: Float[Tensor, "B H T f"],
    divisor: Float[Tensor, "#B 1 #T 1"],
    dtype: torch.dtype,
) -> Float[Tensor, "B H T f"]:
    """y in `dtype`, which products read too; sums are fp32. Query i sees the keys up to i."""
    out: Tensor = _TritonSiluAttention.apply(q.to(dtype), k.to(dtype), v.to(dtype))
    return (out / divisor).to(dtype)


def triton_silu_attention_errors(
    device: torch.device, dtype: torch.dtype, blocks: tuple[int, ...], sizes: tuple[int, int, int] = (2, 2, 77)
) -> dict[str, float]:
    """How far values and gradients are from the reference, at odd sizes (rows, heads,
    length), widths in the blocks."""
    from fullrank.ops.silu_attention import silu_attention_reference

    b, _, t = sizes
    inputs = [x / x.shape[-1] ** 0.25 for x in trial_heads(device, dtype, blocks, sizes)]
    divisor = torch.arange(1.0, t + 1, device=device)[None, None, :, None]
    seen = torch.ones(1, 1, t, t, dtype=torch.bool, device=device).tril()
    counted = torch.ones(b, t, dtype=torch.bool, device=device)
    return errors_of(
        lambda q, k, v: (triton_silu_attention(q, k, v, divisor, dtype),),
        lambda q, k, v: silu_attention_reference(q, k, v, divisor, seen, counted=counted)[:1],
        inputs,
    )


class _TritonSiluAttention(torch.autograd.Function):
    """SiLU attention before its division, in fp32."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (x.contiguous() for x in (q, k, v))
        out = torch.empty(v.shape, dtype=torch.float32, device=v.device)
        grid, sizes, fixed = launch(q, v)
        with torch.cuda.device_of(q):
            _forward[grid](q, k, v, out, *sizes, **fixed)
        ctx.save_for_backward(q, k, v)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = ctx.saved_tensors
        d_out = d_out.to(v.dtype).contiguous()
        dq, dk, dv = (torch.empty_like(x) for x in (q, k, v))
        grid, sizes, fixed = launch(q, v)
        _backward_queries[grid](q, k, v, d_out, dq, *sizes, **fixed)
        _backward_keys[grid](q, k, v, d_out, dk, dv, *sizes, **fixed)
        return dq, dk, dv
