"""Rows of a table that ids pick: which they are, their sums, and their products with queries, without a copy of them.

`distinct`: marking the ids in a table of truth values and reading it takes time linear in its size, which is less than
a sort while the table has not many more rows than there are ids.

    picked_dots:  out[m, n] = <queries[m], table[place[m, n]]>
    shared_dots:  out[r, t, n] = <queries[r, t], table[place[r, n]]>, for queries that share what was picked
    packed_bags:  sums or means of some rows' tokens, flat[offsets[i]:offsets[i + 1]] of row i, without padding
    code_scores:  s[i, b] = sum_k levels[rows[i, k], b], the scores of items from those of their codes

Gathering the picked rows first takes M x N x D numbers, forward and backward. Here the table is read in place, by
torch's embedding bag, which adds in registers. The forward pass of dots is the product that gives the gradient of the
weights of a bag, the gradient of the queries is a bag of rows that the incoming gradient weighs, and that of the table
is a bag of queries for each row.

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

ROWS_PER_ID = 64
"""Rows of the table for each id, above which sorting is taken."""


def distinct(ids: Int[Tensor, "n"], size: int) -> Int[Tensor, "m"]:
    """The ids that occur, each once; all are in 0 .. size - 1."""
    if size > ROWS_PER_ID * len(ids):
        return torch.unique(ids)
    seen = torch.zeros(size, dtype=torch.bool, device=ids.device)
    seen[ids] = True
    return seen.nonzero().squeeze(1)


def distinct_and_places(ids: Int[Tensor, "*n"], size: int) -> tuple[Int[Tensor, "m"], Int[Tensor, "*n"]]:
    """The ids that occur, in rising order, and where among them each given one stands.

    Marking needs a table of places besides, so sorting is taken sooner: in tables with more rows than there are ids.
    """
    if size > ids.numel():
        return torch.unique(ids, return_inverse=True)
    found = distinct(ids.flatten(), size)
    places = torch.empty(size, dtype=torch.long, device=ids.device)
    places[found] = torch.arange(len(found), device=ids.device)
    return found, places[ids]


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


def packed_bags(
    table: Float[Tensor, "N D"],
    flat: Int[Tensor, "E"],
    offsets: Int[Tensor, "V1"],
    rows: Int[Tensor, "m"],
    *,
    mean: bool = False,
) -> Float[Tensor, "m D"]:
    """Sums or means of the vectors of some rows' tokens, one for each of `rows`."""
    starts = offsets[rows]
    counts = offsets[rows + 1] - starts
    ends = counts.cumsum(0)
    places = torch.repeat_interleave(starts - (ends - counts), counts)
    places += torch.arange(len(places), device=places.device)
    bounds = torch.cat([ends.new_zeros(1), ends])
    return F.embedding_bag(flat[places].long(), table, bounds, mode="mean" if mean else "sum", include_last_offset=True)


def packed_bags_reference(
    table: Float[Tensor, "N D"],
    flat: Int[Tensor, "E"],
    offsets: Int[Tensor, "V1"],
    rows: Int[Tensor, "m"],
    *,
    mean: bool = False,
) -> Float[Tensor, "m D"]:
    """The same, row by row."""
    found = []
    for row in rows.tolist():
        tokens = flat[int(offsets[row]) : int(offsets[row + 1])]
        total = table[tokens.long()].sum(0)
        found.append(total / max(1, len(tokens)) if mean else total)
    return torch.stack(found) if found else table[:0]


def code_scores(levels: Float[Tensor, "N B"], rows: Int[Tensor, "n K"]) -> Float[Tensor, "n B"]:
    """Sums of the rows of `levels` that each item's `rows` name (int32 or int64), in the type of `levels`.

    A sum over K in a fixed order: an item's score does not depend on the items or the users beside it.
    """
    return F.embedding_bag(rows, levels, mode="sum")


def code_scores_reference(levels: Float[Tensor, "N B"], rows: Int[Tensor, "n K"]) -> Float[Tensor, "n B"]:
    """The reference, which makes everything that it adds."""
    return torch.stack([levels[row] for row in rows.T.long()]).sum(0)
