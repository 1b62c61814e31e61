"""log sum_v exp(x_m . w_v) over a catalogue whose rows several processes hold together (vocabulary parallel).

Every process sums over its own rows for the queries of all processes (`log_sum_exp.py`); the sums are put together by a
maximum and a sum over processes, of one number per query each. Backward, a query's weight on a process is its upstream
gradient times the share exp(own sum - whole sum) that these rows have; the queries' gradients are summed over
processes, those of the rows stay where the rows are. The idea is that of Megatron-LM's parallel cross-entropy
(arXiv:1909.08053, Sec. 3).

Differs: there the queries are the same on every process; here each has its own, which are gathered first.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from fullrank.ops.log_sum_exp import CHUNK_ELEMENTS, log_sum_exp
from fullrank.ops.sharded_rows import RowShard, gather_rows


def sharded_log_sum_exp(
    x: Float[Tensor, "M D"], own: Float[Tensor, "v D"], shard: RowShard, *, chunk_elements: int = CHUNK_ELEMENTS
) -> Float[Tensor, "M"]:
    """`log_sum_exp` of this process's queries over the rows of all processes, of which `own` are this one's.

    The gradient of `own` is the mean over the processes of what each would have alone (`sharded_rows`).
    """
    found: Tensor = _ShardedLogSumExp.apply(x, own, shard, chunk_elements)
    return found


class _ShardedLogSumExp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, own: Tensor, shard: RowShard, chunk_elements: int) -> Tensor:
        everyone, ctx.mine = gather_rows(x, shard.group)
        ctx.shard, ctx.leaves = shard, (everyone.requires_grad_(), own.detach().requires_grad_())
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
