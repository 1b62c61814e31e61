"""Rows of a table that ids pick: which they are, their sums, and their products with queries, without a copy of them.

`distinct`: marking the ids in a table of truth values and reading it takes time linear in its size,
which is less than a sort while the table has not many more rows than there are ids.

    picked_dots:  out[m, n] = <queries[m], table[rows[m, n]]>
    shared_dots:  out[r, t, n] = <queries[r, t], table[rows[r, n]]>, for queries that share what was picked
    packed_bags:  sums or means of some rows' tokens, flat[offsets[i]:offsets[i + 1]] of row i, without padding
    code_scores:  s[i, b] = sum_k levels[rows[i, k], b], the scores of items from those of their codes

Gathering the picked rows first takes M x N x D numbers, forward and backward. Here the table is
read in place, by torch's embedding bag, which adds in registers. The forward pass of dots is the
product that gives the gradient of the weights of a bag, the gradient of the queries is a bag of
rows that the incoming gradient weighs, and that of the table is a bag of queries for each row.

What queries share is copied, since it makes matrix products. Copied and multiplied in bf16 it
is half as much to read, and a bag of bf16 adds up in fp32 and rounds once. (Without matrix
products bf16 was no quicker.)
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
    """The ids that occur, in rising order, and where among them each id of `ids` stands.

    Marking needs a table of ranks besides, so sorting is taken sooner: in tables with more
    rows than there are ids.
    """
    if size > ids.numel():
        return torch.unique(ids, return_inverse=True)
    unique = distinct(ids.flatten(), size)
    ranks = torch.empty(size, dtype=torch.long, device=ids.device)
    ranks[unique] = torch.arange(len(unique), device=ids.device)
    return unique, ranks[ids]


def picked_dots(
    queries: Float[Tensor, "M D"], table: Float[Tensor, "R D"], rows: Int[Tensor, "M N"]
) -> Float[Tensor, "M N"]:
    """The products in fp32. On devices other than the CPU the rows are gathered."""
    if not queries.is_cpu or not rows.numel():
        return picked_dots_reference(queries, table, rows).float()
    return _PickedDots.apply(queries.float(), table.float(), rows)


def picked_dots_reference(
    queries: Float[Tensor, "M D"], table: Float[Tensor, "R D"], rows: Int[Tensor, "M N"]
) -> Float[Tensor, "M N"]:
    """Compute `picked_dots` with a copy of the rows: the reference."""
    return torch.einsum("md,mnd->mn", queries, table[rows])


def shared_dots(
    queries: Float[Tensor, "R T D"], table: Float[Tensor, "U D"], rows: Int[Tensor, "R N"]
) -> Float[Tensor, "R T N"]:
    """The products, in bf16 on a CPU, where everything is added up in fp32."""
    return _SharedDots.apply(queries, table, rows)


class _PickedDots(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, queries: Tensor, table: Tensor, rows: Tensor) -> Tensor:
        m, n = rows.shape
        ctx.save_for_backward(queries, table, rows)
        starts = torch.arange(0, m * n, n)
        query_of = torch.arange(m).repeat_interleave(n)
        dots = torch.ops.aten._embedding_bag_per_sample_weights_backward
        return dots(queries, table, rows.flatten(), starts, query_of, 0, -1).view(m, n)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        queries, table, rows = ctx.saved_tensors
        to_queries = to_table = None
        if ctx.needs_input_grad[0]:
            to_queries = F.embedding_bag(rows, table, per_sample_weights=grad.contiguous(), mode="sum")
        if ctx.needs_input_grad[1]:
            order, starts = _by_row(rows, len(table))
            weights = grad.flatten()[order]
            query_of = torch.div(order, rows.shape[1], rounding_mode="floor")
            to_table = F.embedding_bag(query_of, queries, starts, per_sample_weights=weights, mode="sum")
        return to_queries, to_table, None


class _SharedDots(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, queries: Tensor, table: Tensor, rows: Tensor) -> Tensor:
        ctx.dtypes, ctx.size = (queries.dtype, table.dtype), len(table)
        x, picked = queries.bfloat16(), F.embedding(rows, table.bfloat16())
        ctx.save_for_backward(x, picked, rows)
        return (picked @ x.mT).mT

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        x, picked, rows = ctx.saved_tensors
        order, starts = _by_row(rows, ctx.size)
        to_table = F.embedding_bag(order, (grad.mT @ x).flatten(0, 1), starts, mode="sum")
        return (grad @ picked).to(ctx.dtypes[0]), to_table.to(ctx.dtypes[1]), None


def _by_row(picked: Int[Tensor, "M N"], size: int) -> tuple[Int[Tensor, "MN"], Int[Tensor, "rows"]]:
    """The picks of each row of a table of `size` rows, row behind row, and where each row's picks start.

    A pick is an index into the flattened `picked`.
    """
    flat = picked.flatten()
    order = flat.int().argsort(stable=True)  # so that sums have one order, in one process and in several
    counts = torch.bincount(flat, minlength=size)
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
    # token n of all, the (n - begin)-th of its row, lies at start + n - begin in
    # `flat`; begin = ends - counts
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
    """Compute `packed_bags` row by row: the reference."""
    bags = []
    for row in rows.tolist():
        tokens = flat[int(offsets[row]) : int(offsets[row + 1])]
        total = table[tokens.long()].sum(0)
        bags.append(total / max(1, len(tokens)) if mean else total)
    return torch.stack(bags) if bags else table[:0]


def code_scores(levels: Float[Tensor, "N B"], rows: Int[Tensor, "n K"]) -> Float[Tensor, "n B"]:
    """Sums of the rows of `levels` that each item's `rows` name (int32 or int64), in the type of `levels`.

    A sum over K in a fixed order: an item's score does not depend on the items or the users beside
    it.
    """
    return F.embedding_bag(rows, levels, mode="sum")


def code_scores_reference(levels: Float[Tensor, "N B"], rows: Int[Tensor, "n K"]) -> Float[Tensor, "n B"]:
    """Compute `code_scores` with a copy of every row that is added: the reference."""
    return torch.stack([levels[row] for row in rows.T.long()]).sum(0)
