"""Products of queries with rows of a table that were picked for them.

    picked_dots:  out[m, n] = <queries[m], table[place[m, n]]>, without a copy of those rows
    shared_dots:  out[r, t, n] = <queries[r, t], table[place[r, n]]>, for queries that share what was picked

Gathering the picked rows first takes M x N x D numbers, forward and backward. Here the table is read in place: forward
is the product that gives the gradient of the weights of a bag, the gradient of the queries is a bag of rows that the
incoming gradient weighs, and that of the table is a bag of queries for each row.

What queries share is copied: there are matrix products then. Copied and multiplied in bf16 it is half as much to read,
and a bag of bf16 adds up in fp32 and rounds once. (Without matrix products bf16 was no quicker.)
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable


def picked_dots(
    queries: Float[Tensor, "M D"], table: Float[Tensor, "R D"], place: Int[Tensor, "M N"]
) -> Float[Tensor, "M N"]:
    """The products in fp32. On devices other than the CPU the rows are gathered."""
    if not queries.is_cpu or not place.numel():
        return picked_dots_reference(queries, table, place).float()
    found: Tensor = _PickedDots.apply(queries.float(), table.float(), place)
    return found


def picked_dots_reference(
    queries: Float[Tensor, "M D"], table: Float[Tensor, "R D"], place: Int[Tensor, "M N"]
) -> Float[Tensor, "M N"]:
    """The same with a copy of the rows."""
    return torch.einsum("md,mnd->mn", queries, table[place])


def shared_dots(
    queries: Float[Tensor, "R T D"], table: Float[Tensor, "U D"], place: Int[Tensor, "R N"]
) -> Float[Tensor, "R T N"]:
    """The products, in bf16 on a CPU, where everything is added up in fp32."""
    found: Tensor = _SharedDots.apply(queries, table, place)
    return found


class _PickedDots(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, queries: Tensor, table: Tensor, place: Tensor) -> Tensor:
        m, n = place.shape
        ctx.save_for_backward(queries, table, place)
        starts = torch.arange(0, m * n, n)
        of = torch.arange(m).repeat_interleave(n)
        dots = torch.ops.aten._embedding_bag_per_sample_weights_backward
        found: Tensor = dots(queries, table, place.flatten(), starts, of, 0, -1)
        return found.view(m, n)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        queries, table, place = ctx.saved_tensors
        to_queries = to_table = None
        if ctx.needs_input_grad[0]:
            to_queries = F.embedding_bag(place, table, per_sample_weights=grad.contiguous(), mode="sum")
        if ctx.needs_input_grad[1]:
            order, starts = _by_row(place, len(table))
            weights = grad.flatten()[order]
            by = torch.div(order, place.shape[1], rounding_mode="floor")
            to_table = F.embedding_bag(by, queries, starts, per_sample_weights=weights, mode="sum")
        return to_queries, to_table, None


class _SharedDots(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, queries: Tensor, table: Tensor, place: Tensor) -> Tensor:
        ctx.dtypes, ctx.size = (queries.dtype, table.dtype), len(table)
        x, picked = queries.bfloat16(), F.embedding(place, table.bfloat16())
        ctx.save_for_backward(x, picked, place)
        return (picked @ x.mT).mT

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        x, picked, place = ctx.saved_tensors
        order, starts = _by_row(place, ctx.size)
        to_table = F.embedding_bag(order, (grad.mT @ x).flatten(0, 1), starts, mode="sum")
        return (grad @ picked).to(ctx.dtypes[0]), to_table.to(ctx.dtypes[1]), None


def _by_row(place: Int[Tensor, "M N"], rows: int) -> tuple[Int[Tensor, "MN"], Int[Tensor, "rows"]]:
    """Where each row of the table was picked, row behind row, and where each row's places start."""
    flat = place.flatten()
    order = flat.int().argsort(stable=True)  # so that sums have one order, in one process and in several
    counts = torch.bincount(flat, minlength=rows)
    return order, counts.cumsum(0) - counts
