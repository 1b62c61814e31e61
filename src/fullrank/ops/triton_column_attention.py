"""`column_attention` as Triton kernels: softmax attention, what every key received, and the gradients of both.

The output is FlashAttention's (Dao 2023, arXiv:2307.08691, Algorithms 1 and 2). A second walk,
along the queries of a block of keys, makes the column sums from the log-sum-exps. The backward pass
has d A_ij = d_out_i . v_j + g_j for the valid queries i, g_j being the gradient of the sum of
column j, and d S = A (d A - sum_j A d A).

Differs: there is no dropout here; `ops/column_attention.py` computes that.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from fullrank.ops.kernels import errors_of
from fullrank.ops.triton_blocks import LOG2_E, launch, put_rows, rows_of, trial_heads

BITS = LOG2_E.value


@triton.jit
def _visible(valid, rows, keys, t, CAUSAL: tl.constexpr):
    """Which keys [1, k] the queries [q, 1] may see: those up to their own, or
    the valid ones and the first."""
    if CAUSAL:
        return (keys <= rows) & (keys < t)
    return ((tl.load(valid + keys, mask=keys < t, other=0) != 0) | (keys == 0)) & (rows >= 0)


@triton.jit
def _forward(
    q, k, v, valid, out, lse, t, e, f, heads, scale, CAUSAL: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_F: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """Output and log-sum-exps of a block of queries, by a softmax whose
    maximum is corrected on the way."""
    head = tl.program_id(0).to(tl.int64) * t
    valid += (tl.program_id(0) // heads).to(tl.int64) * t
    rows = tl.program_id(1) * BLOCK_T + tl.arange(0, BLOCK_T)
    queries = rows_of(q + head * e, rows, t, e, BLOCK_E, DTYPE)
    mixed = tl.zeros([BLOCK_T, BLOCK_F], tl.float32)
    top = tl.full([BLOCK_T], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK_T], tl.float32)
    end = tl.minimum((tl.program_id(1) + 1) * BLOCK_T, t) if CAUSAL else t
    for low in range(0, end, BLOCK_T):
        keys = low + tl.arange(0, BLOCK_T)
        scores = tl.dot(queries, tl.trans(rows_of(k + head * e, keys, t, e, BLOCK_E, DTYPE)), input_precision="ieee")
        seen = _visible(valid, rows[:, None], keys[None, :], t, CAUSAL)
        scores = tl.where(seen, scores * scale, -float("inf"))
        # the first key is open to all, so that from the first block on there is a finite maximum
        higher = tl.maximum(top, tl.max(scores, 1))
        mass = tl.exp2(scores - higher[:, None])
        shrunk = tl.exp2(top - higher)
        total = total * shrunk + tl.sum(mass, 1)
        values = rows_of(v + head * f, keys, t, f, BLOCK_F, DTYPE)
        mixed = mixed * shrunk[:, None] + tl.dot(mass.to(DTYPE), values, input_precision="ieee")
        top = higher
    put_rows(out + head * f, rows, t, f, mixed / total[:, None], BLOCK_F)
    tl.store(lse + head + rows, top + tl.log2(total), mask=rows < t)


@triton.jit
def _columns(
    q, k, valid, lse, columns, t, e, heads, scale, CAUSAL: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_E: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """Column sums of a block of keys. Scores stand transposed, keys x queries."""
    head = tl.program_id(0).to(tl.int64) * t
    valid += (tl.program_id(0) // heads).to(tl.int64) * t
    keys = tl.program_id(1) * BLOCK_T + tl.arange(0, BLOCK_T)
    own_keys = rows_of(k + head * e, keys, t, e, BLOCK_E, DTYPE)
    total = tl.zeros([BLOCK_T], tl.float32)
    start = tl.program_id(1) * BLOCK_T if CAUSAL else 0
    for low in range(start, t, BLOCK_T):
        rows = low + tl.arange(0, BLOCK_T)
        counted = tl.load(valid + rows, mask=rows < t, other=0)
        level = tl.load(lse + head + rows, mask=rows < t, other=0.0)
        scores = tl.dot(own_keys, tl.trans(rows_of(q + head * e, rows, t, e, BLOCK_E, DTYPE)), input_precision="ieee")
        seen = _visible(valid, rows[None, :], keys[:, None], t, CAUSAL) & (counted != 0)[None, :]
        total += tl.sum(tl.where(seen, tl.exp2(scores * scale - level[None, :]), 0.0), 1)
    tl.store(columns + head + keys, total, mask=keys < t)


@triton.jit
def _backward_queries(
    q, k, v, valid, lse, d_out, pulls, mean, dq, t, e, f, heads, scale, CAUSAL: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_F: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """Adds (A g)_i to the mean of a valid query, which has d_out . out in
    it already, then makes d q."""
    head = tl.program_id(0).to(tl.int64) * t
    valid += (tl.program_id(0) // heads).to(tl.int64) * t
    rows = tl.program_id(1) * BLOCK_T + tl.arange(0, BLOCK_T)
    queries = rows_of(q + head * e, rows, t, e, BLOCK_E, DTYPE)
    upstream = rows_of(d_out + head * f, rows, t, f, BLOCK_F, DTYPE)
    level = tl.load(lse + head + rows, mask=rows < t, other=0.0)
    counted = tl.load(valid + rows, mask=rows < t, other=0).to(tl.float32)
    end = tl.minimum((tl.program_id(1) + 1) * BLOCK_T, t) if CAUSAL else t
    pulled = tl.zeros([BLOCK_T], tl.float32)
    for low in range(0, end, BLOCK_T):
        keys = low + tl.arange(0, BLOCK_T)
        scores = tl.dot(queries, tl.trans(rows_of(k + head * e, keys, t, e, BLOCK_E, DTYPE)), input_precision="ieee")
        seen = _visible(valid, rows[:, None], keys[None, :], t, CAUSAL)
        pull = tl.load(pulls + head + keys, mask=keys < t, other=0.0)
        pulled += tl.sum(tl.where(seen, tl.exp2(scores * scale - level[:, None]) * pull[None, :], 0.0), 1)
    middle = tl.load(mean + head + rows, mask=rows < t, other=0.0) + counted * pulled
    tl.store(mean + head + rows, middle, mask=rows < t)
    gradient = tl.zeros([BLOCK_T, BLOCK_E], tl.float32)
    for low in range(0, end, BLOCK_T):
        keys = low + tl.arange(0, BLOCK_T)
        block_keys = rows_of(k + head * e, keys, t, e, BLOCK_E, DTYPE)
        scores = tl.dot(queries, tl.trans(block_keys), input_precision="ieee")
        seen = _visible(valid, rows[:, None], keys[None, :], t, CAUSAL)
        values = rows_of(v + head * f, keys, t, f, BLOCK_F, DTYPE)
        pull = tl.load(pulls + head + keys, mask=keys < t, other=0.0)
        d_weights = tl.dot(upstream, tl.trans(values), input_precision="ieee") + counted[:, None] * pull[None, :]
        d_scores = tl.exp2(scores * scale - level[:, None]) * (d_weights - middle[:, None])
        gradient += tl.dot(tl.where(seen, d_scores, 0.0).to(DTYPE), block_keys, input_precision="ieee")
    put_rows(dq + head * e, rows, t, e, gradient * (scale / LOG2_E), BLOCK_E)


@triton.jit
def _backward_keys(
    q, k, v, valid, lse, d_out, pulls, mean, dk, dv, t, e, f, heads, scale, CAUSAL: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_F: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """d k and d v of a block of keys. Scores stand transposed, keys x queries."""
    head = tl.program_id(0).to(tl.int64) * t
    valid += (tl.program_id(0) // heads).to(tl.int64) * t
    keys = tl.program_id(1) * BLOCK_T + tl.arange(0, BLOCK_T)
    own_keys = rows_of(k + head * e, keys, t, e, BLOCK_E, DTYPE)
    values = rows_of(v + head * f, keys, t, f, BLOCK_F, DTYPE)
    pull = tl.load(pulls + head + keys, mask=keys < t, other=0.0)
    of_keys = tl.zeros([BLOCK_T, BLOCK_E], tl.float32)
    of_values = tl.zeros([BLOCK_T, BLOCK_F], tl.float32)
    start = tl.program_id(1) * BLOCK_T if CAUSAL else 0
    for low in range(start, t, BLOCK_T):
        rows = low + tl.arange(0, BLOCK_T)
        queries = rows_of(q + head * e, rows, t, e, BLOCK_E, DTYPE)
        upstream = rows_of(d_out + head * f, rows, t, f, BLOCK_F, DTYPE)
        level = tl.load(lse + head + rows, mask=rows < t, other=0.0)
        middle = tl.load(mean + head + rows, mask=rows < t, other=0.0)
        counted = tl.load(valid + rows, mask=rows < t, other=0).to(tl.float32)
        scores = tl.dot(own_keys, tl.trans(queries), input_precision="ieee")
        seen = _visible(valid, rows[None, :], keys[:, None], t, CAUSAL) & (rows < t)[None, :]
        weights = tl.where(seen, tl.exp2(scores * scale - level[None, :]), 0.0)
        of_values += tl.dot(weights.to(DTYPE), upstream, input_precision="ieee")
        d_weights = tl.dot(values, tl.trans(upstream), input_precision="ieee") + pull[:, None] * counted[None, :]
        d_scores = weights * (d_weights - middle[None, :])
        of_keys += tl.dot(d_scores.to(DTYPE), queries, input_precision="ieee")
    put_rows(dk + head * e, keys, t, e, of_keys * (scale / LOG2_E), BLOCK_E)
    put_rows(dv + head * f, keys, t, f, of_values, BLOCK_F)


def triton_column_attention(
    q: Float[Tensor, "B H T e"],
    k: Float[Tensor, "B H T e"],
    v: Float[Tensor, "B H T f"],
    valid: Bool[Tensor, "B T"],
    causal: bool,
    dtype: torch.dtype,
) -> tuple[Float[Tensor, "B H T f"], Float[Tensor, "B H T"], Float[Tensor, "B H T"]]:
    """As `column_attention` without dropout; products read `dtype`, sums and softmax are fp32."""
    return _TritonColumnAttention.apply(q.to(dtype), k.to(dtype), v.to(dtype), valid, causal)


def triton_column_attention_errors(
    device: torch.device, dtype: torch.dtype, blocks: tuple[int, ...], sizes: tuple[int, int, int] = (3, 2, 77)
) -> dict[str, float]:
    """How far values and gradients are from the reference, at odd sizes (rows, heads, length), widths in the blocks.

    The last row has no valid query; both masks are tried.
    """
    from fullrank.ops.column_attention import column_attention_reference

    b, _, t = sizes
    inputs = trial_heads(device, dtype, blocks, sizes)
    lengths = torch.linspace(t, 0, b).long() if b > 1 else torch.tensor([t])
    valid = (torch.arange(t) < lengths[:, None]).to(device)
    errors: dict[str, float] = {}
    for causal in (True, False):
        distances = errors_of(
            lambda q, k, v, causal=causal: triton_column_attention(q, k, v, valid, causal, dtype)[:2],
            lambda q, k, v, causal=causal: column_attention_reference(q, k, v, valid, causal=causal)[:2],
            inputs,
        )
        errors |= {f"{name}, {'causal' if causal else 'both sides'}": error for name, error in distances.items()}
    return errors


class _TritonColumnAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, valid: Tensor, causal: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = (x.contiguous() for x in (q, k, v))
        marks = valid.to(torch.int8).contiguous()
        out, lse = torch.empty_like(v), torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
        columns = torch.empty_like(lse)
        grid, (t, e, f), fixed = launch(q, v, CAUSAL=causal)
        heads, scale = q.shape[1], BITS / e**0.5
        narrow = {name: value for name, value in fixed.items() if name != "BLOCK_F"}
        with torch.cuda.device_of(q):
            _forward[grid](q, k, v, marks, out, lse, t, e, f, heads, scale, **fixed)
            _columns[grid](q, k, marks, lse, columns, t, e, heads, scale, **narrow)
        ctx.save_for_backward(q, k, v, marks, out, lse)
        ctx.causal = causal
        natural = lse / BITS
        ctx.mark_non_differentiable(natural)
        return out, columns, natural

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor, d_columns: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, marks, out, lse = ctx.saved_tensors
        d_out, pulls = d_out.to(v.dtype).contiguous(), d_columns.float().contiguous()
        mean = (d_out.float() * out.float()).sum(-1)
        dq, dk, dv = (torch.empty_like(x) for x in (q, k, v))
        grid, (t, e, f), fixed = launch(q, v, CAUSAL=ctx.causal)
        sizes = t, e, f, q.shape[1], BITS / e**0.5
        inputs = q, k, v, marks, lse, d_out, pulls, mean
        _backward_queries[grid](*inputs, dq, *sizes, **fixed)
        _backward_keys[grid](*inputs, dk, dv, *sizes, **fixed)
        return dq, dk, dv, None, None
