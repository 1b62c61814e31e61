"""A table whose rows several processes hold together: look-ups, pieces of the whole, and the log-sum-exp over all rows.

Process r of W holds the rows r V / W .. (r + 1) V / W - 1. A look-up sends each distinct id to the
process that holds its row and gets the vector back; the backward pass sends the gradients the same
way, and each owner adds those of all processes in order of their rank. All processes call each
function here together, as often and in the same order.

log sum_v exp(x_m . w_v) is vocabulary parallel: every process sums over its own rows for the
queries of all processes (`log_sum_exp.py`); the sums are put together by a maximum and a sum over
processes, of one number per query each. Backward, a query's weight on a process is its upstream
gradient times the share exp(own sum - whole sum) that these rows have; the queries' gradients are
summed over processes, those of the rows stay where the rows are. The idea is that of Megatron-LM's
parallel cross-entropy (arXiv:1909.08053, Sec. 3). Differs: there the queries are the same on every
process; here each has its own, which are gathered first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float, Int, Shaped
from torch import Tensor
from torch.autograd.function import once_differentiable

from fullrank.ops.log_sum_exp import CHUNK_ELEMENTS, log_sum_exp

PIECE = 1 << 22
"""Numbers in a piece of a table that goes from one process to another: 16 MB in fp32."""


@dataclass(frozen=True)
class RowShard:
    """Which rows of a table of `size` rows are this process's."""

    size: int
    rank: int
    world: int
    group: Any = None
    """The processes' own group (`torch.distributed`): its messages never meet those of DDP. None: the group of all."""

    def bounds(self, rank: int) -> tuple[int, int]:
        """The first row of a process, and the one behind its last."""
        return rank * self.size // self.world, (rank + 1) * self.size // self.world

    @property
    def low(self) -> int:
        return self.bounds(self.rank)[0]

    @property
    def high(self) -> int:
        return self.bounds(self.rank)[1]

    def __len__(self) -> int:
        return self.high - self.low


def gather_rows(rows: Shaped[Tensor, "n *d"], group: Any = None) -> tuple[Shaped[Tensor, "N *d"], slice]:
    """The rows of every process behind each other, and where this process's own are among them; no gradient."""
    count = torch.tensor([len(rows)], device=rows.device)
    counts = [torch.zeros_like(count) for _ in range(dist.get_world_size(group))]
    dist.all_gather(counts, count, group=group)
    sizes = [int(size) for size in counts]
    padded = rows.new_zeros(max(sizes), *rows.shape[1:])
    padded[: len(rows)] = rows
    parts = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(parts, padded, group=group)
    start = sum(sizes[: dist.get_rank(group)])
    return torch.cat([part[:n] for part, n in zip(parts, sizes, strict=True)]), slice(start, start + len(rows))


def sharded_rows(held: Float[Tensor, "v D"], ids: Int[Tensor, "n"], shard: RowShard) -> Float[Tensor, "n D"]:
    """The rows `ids` (distinct, rising) of the table of which `held` are this process's rows.

    The gradient of `held` is sparse, and the mean over the processes of what each would have alone:
    DDP averages the gradients of other parameters, and this one must have their scale.
    """
    return _Rows.apply(held, ids, shard)


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, held: Tensor, ids: Tensor, shard: RowShard) -> Tensor:
        edges = torch.tensor([shard.bounds(rank)[0] for rank in range(shard.world)] + [shard.size], device=ids.device)
        wanted = torch.searchsorted(ids, edges).diff()  # how many of the ids each process holds
        requested = torch.empty_like(wanted)
        dist.all_to_all_single(requested, wanted, group=shard.group)
        ctx.requested, ctx.wanted, ctx.shard, ctx.size = requested.tolist(), wanted.tolist(), shard, held.shape
        rows = _exchange(ids, ctx.requested, ctx.wanted, shard) - shard.low
        ctx.save_for_backward(rows)
        return _exchange(held.detach()[rows], ctx.wanted, ctx.requested, shard)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (rows,) = ctx.saved_tensors
        values = _exchange(grad, ctx.requested, ctx.wanted, ctx.shard) / ctx.shard.world
        return torch.sparse_coo_tensor(rows[None], values, ctx.size, check_invariants=False).coalesce(), None, None


def _exchange(rows: Tensor, received: list[int], sent: list[int], shard: RowShard) -> Tensor:
    """Send each process the rows that are for it: `sent` of them to each, `received` from each."""
    out = rows.new_empty(sum(received), *rows.shape[1:])
    dist.all_to_all_single(out, rows.contiguous(), received, sent, group=shard.group)
    return out


def pieces_on_first(held: Shaped[Tensor, "v *d"], shard: RowShard) -> Iterator[Shaped[Tensor, "p *d"]]:
    """On process 0 all rows of the table in order, a piece at a time; on the others nothing, theirs are sent.

    Every process must iterate to the end. No process holds more than its own rows and one piece.
    """
    at_once = max(1, PIECE // max(1, held[:1].numel()))
    for rank in range(shard.world):
        low, high = shard.bounds(rank)
        for start in range(0, high - low, at_once):
            count = min(at_once, high - low - start)
            if shard.rank == rank:
                piece = held[start : start + count].contiguous()
                if rank == 0:
                    yield piece
                else:
                    dist.send(piece, group=shard.group, group_dst=0)
            elif shard.rank == 0:
                piece = held.new_empty(count, *held.shape[1:])
                dist.recv(piece, group=shard.group, group_src=rank)
                yield piece


def sharded_log_sum_exp(
    x: Float[Tensor, "M D"], held: Float[Tensor, "v D"], shard: RowShard, *, chunk_elements: int = CHUNK_ELEMENTS
) -> Float[Tensor, "M"]:
    """`log_sum_exp` of this process's queries over the rows of all processes, of which `held` are this one's.

    The gradient of `held` is the mean over the processes of what each would have alone
    (`sharded_rows`).
    """
    return _ShardedLogSumExp.apply(x, held, shard, chunk_elements)


class _ShardedLogSumExp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, held: Tensor, shard: RowShard, chunk_elements: int) -> Tensor:
        everyone, ctx.mine = gather_rows(x, shard.group)
        ctx.shard, ctx.leaves = shard, (everyone.requires_grad_(), held.detach().requires_grad_())
        with torch.enable_grad():
            ctx.part = log_sum_exp(*ctx.leaves, chunk_elements=chunk_elements, ahead=False)
        part = ctx.part.detach()
        top = part.clone()
        dist.all_reduce(top, dist.ReduceOp.MAX, group=shard.group)
        total = (part - top).exp()
        dist.all_reduce(total, group=shard.group)
        whole = top + total.log()
        ctx.save_for_backward((part - whole).exp())
        return whole[ctx.mine].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, Tensor, None, None]:
        (share,) = ctx.saved_tensors
        weights = gather_rows(upstream.contiguous(), ctx.shard.group)[0] * share
        # kept, since whoever keeps the outer graph walks this one again
        dx, dw = torch.autograd.grad(ctx.part, ctx.leaves, weights, retain_graph=True)
        whole = dx.float()  # a sum over processes in bf16 would lose digits
        dist.all_reduce(whole, group=ctx.shard.group)
        return whole[ctx.mine].to(dx.dtype), dw / ctx.shard.world, None, None
