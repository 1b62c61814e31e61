"""log sum_v exp(x_m . w_v) over a catalogue whose rows several processes hold together (vocabulary parallel).

Every process sums over its own rows for the queries of all processes, in chunks (`log_sum_exp.py`); the sums are put
together by a maximum and a sum over processes, of one number per query each. Backward, a query's weight on a process is
its upstream gradient times the share exp(own sum - whole sum) that these rows have: the chunks are computed again with
these weights, the queries' gradients are summed over processes, those of the rows stay where the rows are. The idea is
that of Megatron-LM's parallel cross-entropy (arXiv:1909.08053, Sec. 3).

Differs: there the queries are the same on every process; here each has its own, which are gathered first.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from fullrank.ops.log_sum_exp import CHUNK_ELEMENTS, chunked_pass, rows_at_once
from fullrank.ops.sharded_rows import RowShard, gather_rows


def sharded_log_sum_exp(
    x: Float[Tensor, "M D"], own: Float[Tensor, "v D"], shard: RowShard, *, chunk_elements: int = CHUNK_ELEMENTS
) -> Float[Tensor, "M"]:
    """`log_sum_exp` of this process's queries over the rows of all processes, of which `own` are this one's.

    The gradient of `own` is the mean over the processes of what each would have alone (`sharded_rows`).
    """
    found: Tensor = _ShardedLogSumExp.apply(x, own, shard, rows_at_once(chunk_elements, len(own)))
    return found


class _ShardedLogSumExp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, own: Tensor, shard: RowShard, rows: int) -> Tensor:
        kind = x.device.type
        ctx.dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
        ctx.shard, ctx.rows = shard, rows
        everyone, ctx.mine = gather_rows(x, shard.group)
        with torch.autocast(kind, enabled=False):
            part, _, _ = chunked_pass(everyone.to(ctx.dtype), own.to(ctx.dtype), None, rows, False)
        top = part.clone()
        dist.all_reduce(top, dist.ReduceOp.MAX, group=shard.group)
        total = (part - top).exp()
        dist.all_reduce(total, group=shard.group)
        whole = top + total.log()
        ctx.save_for_backward(everyone, own, (part - whole).exp())
        return whole[ctx.mine].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, Tensor, None, None]:
        everyone, own, share = ctx.saved_tensors
        weights = gather_rows(upstream.contiguous(), ctx.shard.group)[0] * share
        with torch.autocast(everyone.device.type, enabled=False):
            _, dx, dw = chunked_pass(everyone.to(ctx.dtype), own.to(ctx.dtype), weights, ctx.rows, True)
        assert dx is not None and dw is not None
        dx = dx.float()  # a sum over processes in bf16 would lose digits
        dist.all_reduce(dx, group=ctx.shard.group)
        return dx[ctx.mine].to(everyone.dtype), dw.div_(ctx.shard.world).to(own.dtype), None, None
