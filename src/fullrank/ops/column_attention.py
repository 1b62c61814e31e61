"""Softmax attention that also says how much every key received, without the [T, T] weights ever existing at once.

Column j of the weights A, summed over the valid queries, is c_j. A term f(c) has the derivative
g_j = df/dc_j by every A_ij, whatever the query i, so its gradient enters attention's own backward
pass as d A_ij += g_j: SPRINT's Eq. 4.3 needs no more than that, and leaves it as future work.
Queries are taken in blocks, and the backward pass makes the weights of a block again from the
log-sum-exp: memory is O(T) per head.

On a CUDA device, without dropout, a Triton kernel takes its place
(`ops/triton_column_attention.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from fullrank.ops.dropout import draws_here, factors, new_seed
from fullrank.ops.kernels import chosen_for_heads, kernel, product_dtype

BLOCK = 128
"""Queries of a row that are attended at once."""
BLOCK_ELEMENTS = 1_000_000
"""Weights alive at once on a CPU (4 MB in fp32: they stay in its cache)."""
GPU_ELEMENTS = 64_000_000
"""Weights alive at once on an accelerator (256 MB), where launches are dear. Not measured."""
LOG2_E = math.log2(math.e)
Attended = tuple[Float[Tensor, "B H T f"], Float[Tensor, "B H T"], Float[Tensor, "B H T"]]
"""Output, column sums over valid queries, and each query's log-sum-exp without gradient; sums in fp32."""


def column_attention(
    q: Float[Tensor, "B H T e"],
    k: Float[Tensor, "B H T e"],
    v: Float[Tensor, "B H T f"],
    valid: Bool[Tensor, "B T"],
    *,
    causal: bool,
    dropout: float = 0.0,
    dropped_columns: bool = False,
) -> Attended:
    """Attend, and add up what each key received.

    Rows are right-padded; the output of a padded query is unspecified. `dropout` is on the weights
    of the output; the sums are of the weights before it, or with `dropped_columns` after it.
    """
    if dropout == 0 and chosen_for_heads("triton_column_attention", q, v):
        return kernel("triton_column_attention")(q, k, v, valid, causal, product_dtype(q))
    return blocked_column_attention(q, k, v, valid, causal, dropout, dropped_columns)


def blocked_column_attention(
    q: Float[Tensor, "B H T e"],
    k: Float[Tensor, "B H T e"],
    v: Float[Tensor, "B H T f"],
    valid: Bool[Tensor, "B T"],
    causal: bool,
    dropout: float = 0.0,
    dropped_columns: bool = False,
) -> Attended:
    """Compute `column_attention` in blocks of queries, on any device and without a kernel."""
    seed = new_seed() if dropout > 0 else 0
    return _ColumnAttention.apply(q, k, v, valid, causal, dropout, seed, dropped_columns)


def column_attention_reference(
    q: Float[Tensor, "B H T e"],
    k: Float[Tensor, "B H T e"],
    v: Float[Tensor, "B H T f"],
    valid: Bool[Tensor, "B T"],
    *,
    causal: bool,
) -> Attended:
    """The reference: the definition as it reads, without dropout."""
    at = torch.arange(q.shape[2], device=q.device)
    # the first key is open to all, so that no query is left without
    seen = (at <= at[:, None])[None] if causal else (valid | (at == 0))[:, None]
    scores = (q @ k.mT).float() / q.shape[-1] ** 0.5
    scores = scores.masked_fill(~seen[:, None], -math.inf)
    weights = scores.softmax(-1)
    return weights.to(v.dtype) @ v, (weights * valid[:, None, :, None]).sum(2), scores.logsumexp(-1).detach()


@dataclass(frozen=True)
class _Part:
    """A slice of heads (users x heads) and the block of queries that is attended at once."""

    heads: slice
    rows: slice
    end: int
    """Keys from here on are seen by none of these queries."""
    index: int


@dataclass(frozen=True)
class _Plan:
    """Mask, dropout and blocks, as both passes read them. Users and heads are one axis N = B * H."""

    valid: Bool[Tensor, "N T"]
    causal: bool
    drop: float
    seed: int
    dropped: bool

    def parts(self) -> Iterator[_Part]:
        """The parts in a fixed order: as many heads at once as the budget allows, in
        blocks of nearly equal size."""
        n, t = self.valid.shape
        size = -(-t // max(1, -(-t // BLOCK)))
        budget = BLOCK_ELEMENTS if self.valid.device.type == "cpu" else GPU_ELEMENTS
        group = max(1, budget // max(1, size * t))
        index = 0
        for first in range(0, n, group):
            for low in range(0, t, size):
                high = min(low + size, t)
                yield _Part(slice(first, first + group), slice(low, high), high if self.causal else t, index)
                index += 1

    def hide(self, scores: Float[Tensor, "n t S"], part: _Part) -> None:
        """Minus infinity where a query may not look; the first key is open to all."""
        if self.causal:
            t = scores.shape[1]
            later = torch.ones(t, t, dtype=torch.bool, device=scores.device).triu(1)
            scores[:, :, part.rows].masked_fill_(later, -math.inf)
        else:
            closed = ~self.valid[part.heads, None, :]
            closed[..., 0] = False
            scores.masked_fill_(closed, -math.inf)

    def dropout(self, like: Float[Tensor, "n t S"], part: _Part) -> Float[Tensor, "n t S"]:
        """Dropout factors of a part, a function of its number, so that the backward pass draws them again."""
        if draws_here(like):
            return factors(like.shape, self.drop, like.dtype, np.random.SFC64(self.seed + part.index))
        generator = torch.Generator(like.device).manual_seed(self.seed + part.index)
        return torch.empty_like(like).bernoulli_(1 - self.drop, generator=generator).div_(1 - self.drop)

    def counted(self, part: _Part) -> Float[Tensor, "n t 1"]:
        """1 for a valid query, 0 for a padded one."""
        return self.valid[part.heads, part.rows, None].float()


class _ColumnAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, valid: Tensor, causal: bool, drop: float, seed: int, dropped: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        shape, ctx.dtype = v.shape, v.dtype
        plan = _Plan(valid.repeat_interleave(shape[1], 0), causal, drop, seed, dropped)
        q, k, v = (x.float().flatten(0, 1).contiguous() for x in (q, k, v))
        out, columns, lse = torch.empty_like(v), q.new_zeros(q.shape[:2]), q.new_empty(q.shape[:2])
        with torch.autocast(q.device.type, enabled=False):
            for part in plan.parts():
                _attend(plan, part, (q, k, v), (out, columns, lse))
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.plan = plan
        natural = (lse / LOG2_E).view(shape[:3])
        ctx.mark_non_differentiable(natural)
        return out.view(shape).to(ctx.dtype), columns.view(shape[:3]), natural

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor, d_columns: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse = ctx.saved_tensors
        shape = d_out.shape
        d_out, d_columns = d_out.float().flatten(0, 1).contiguous(), d_columns.flatten(0, 1)
        gradients = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        with torch.autocast(q.device.type, enabled=False):
            for part in ctx.plan.parts():
                _differentiate(ctx.plan, part, (q, k, v, out, lse), (d_out, d_columns), gradients)
        dq, dk, dv = (x.view(*shape[:3], x.shape[-1]).to(ctx.dtype) for x in gradients)
        return dq, dk, dv, None, None, None, None, None


def _attend(plan: _Plan, part: _Part, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...]) -> None:
    """Attend one part and write it into `outputs`: output, column sums and log-sum-exps.

    Scores are in bits (times log2 e): the CPU's exp2 takes a third of the time of its exp.
    """
    (q, k, v), (out, columns, lse) = inputs, outputs
    n, rows, keys = part.heads, part.rows, slice(0, part.end)
    # scores, which become their exponentials in place
    mass = torch.bmm(q[n, rows] * (LOG2_E / q.shape[-1] ** 0.5), k[n, keys].mT)
    plan.hide(mass, part)
    top = mass.amax(-1, keepdim=True)
    total = mass.sub_(top).exp2_().sum(-1, keepdim=True)
    lse[n, rows] = (top + total.log2())[..., 0]
    share = plan.counted(part) / total
    if plan.drop == 0:
        columns[n, keys] += torch.bmm(share.mT, mass)[:, 0]
    else:
        dropped = mass * plan.dropout(mass, part)
        columns[n, keys] += torch.bmm(share.mT, dropped if plan.dropped else mass)[:, 0]
        mass = dropped
    out[n, rows] = torch.bmm(mass, v[n, keys]).div_(total)


def _differentiate(
    plan: _Plan, part: _Part, saved: tuple[Tensor, ...], upstream: tuple[Tensor, Tensor], gradients: tuple[Tensor, ...]
) -> None:
    """Write a part's rows of d q and add its share to d k and d v.

    d A = d_out v^T + g for valid queries; d S = A (d A - sum_j A d A), that sum is d_out . out + A
    g.
    """
    (q, k, v, out, lse), (dq, dk, dv) = saved, gradients
    n, rows, keys = part.heads, part.rows, slice(0, part.end)
    scale, counted = q.shape[-1] ** -0.5, plan.counted(part)
    d_out, pull = upstream[0][n, rows], upstream[1][n, keys, None]
    weights = torch.baddbmm(-lse[n, rows, None], q[n, rows] * (LOG2_E * scale), k[n, keys].mT)
    plan.hide(weights, part)
    weights.exp2_()
    drop = plan.dropout(weights, part) if plan.drop else None
    mixed = weights if drop is None else weights * drop
    pulled = counted * torch.bmm(mixed if plan.dropped else weights, pull)
    mean = (d_out * out[n, rows]).sum(-1, keepdim=True) + pulled
    # one product makes d_out v^T + counted pull^T
    wide_d, wide_v = torch.cat([d_out, counted], -1), torch.cat([v[n, keys], pull], -1)
    if drop is None:
        d_scores = torch.baddbmm(-mean, wide_d, wide_v.mT)
    elif plan.dropped:
        d_scores = torch.bmm(wide_d, wide_v.mT).mul_(drop).sub_(mean)
    else:
        d_scores = torch.bmm(d_out, v[n, keys].mT).mul_(drop).sub_(mean).add_(counted * pull.mT)
    d_scores.mul_(weights)
    torch.bmm(d_scores, k[n, keys], out=dq[n, rows]).mul_(scale)
    dk[n, keys].baddbmm_(d_scores.mT, q[n, rows], alpha=scale)
    dv[n, keys].baddbmm_(mixed.mT, d_out)
