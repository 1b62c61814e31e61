"""Products of each query with rows of a table that were picked for it, without a copy of those rows.

    out[m, n] = <queries[m], table[place[m, n]]>

Gathering the picked rows first takes M x N x D numbers, forward and backward. Here the table is read in place: forward
is the product that gives the gradient of the weights of a bag, the gradient of the queries is a bag of rows that the
incoming gradient weighs, and that of the table is a bag of queries for each row.
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
            flat = place.flatten()
            order = flat.int().argsort(stable=True)  # so that sums have one order, in one process and in several
            counts = torch.bincount(flat, minlength=len(table))
            weights = grad.flatten()[order]
            by = torch.div(order, place.shape[1], rounding_mode="floor")
            starts = counts.cumsum(0) - counts
            to_table = F.embedding_bag(by, queries, starts, per_sample_weights=weights, mode="sum")
        return to_queries, to_table, None
