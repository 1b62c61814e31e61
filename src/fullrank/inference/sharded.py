"""Exact top-k among items that several processes hold together: each ranks its own, and the lists are merged.

All processes ask for the same users together, and each gets the whole lists: the order of one process, score
descending, then item id ascending. What goes between processes is k scores and ids of a user, not the scores of a
block.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float, Int
from torch import Tensor

from fullrank.inference.exact import top_k
from fullrank.inference.filters import BatchFilter
from fullrank.models.sequential.items.sharded import ShardedScorer


@torch.inference_mode()
def sharded_top_k(
    scorer: ShardedScorer, k: int, *, filters: BatchFilter | None = None, block: int = 8192
) -> tuple[Float[Tensor, "B k"], Int[Tensor, "B k"]]:
    """What `top_k` gives, of a scorer of which every process has a part. Raises `UserError` as it does."""
    shard = scorer.shard
    found = top_k(scorer.own, k, filters=filters, block=block, first=shard.low)
    values, ids = (torch.cat(_of_all(part, shard.group, shard.world), 1) for part in found)
    # ids rise from process to process, so a stable sort keeps equal scores in order of their ids
    values, at = values.sort(dim=1, descending=True, stable=True)
    return values[:, :k], ids.gather(1, at[:, :k])


def _of_all(part: Tensor, group: Any, world: int) -> list[Tensor]:
    parts = [torch.empty_like(part) for _ in range(world)]
    dist.all_gather(parts, part.contiguous(), group=group)
    return parts
