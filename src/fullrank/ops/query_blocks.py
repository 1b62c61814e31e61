"""Attention one block of queries at a time: what a block makes is computed again in the backward pass, not kept."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Bool
from torch import Tensor
from torch.utils.checkpoint import checkpoint

Sums = tuple[Tensor, Tensor]
"""How much each key received and each query gave."""
BLOCK = 128
"""Queries at a time: histories up to this length take one pass, and nothing is computed twice."""


def in_blocks(
    part: Callable[[int, int], tuple[Tensor, Sums | None]], queries: int, block: int
) -> tuple[Tensor, Sums | None]:
    """What `part(low, high)` makes of queries low .. high - 1, of all blocks together: outputs, and sums if wanted.

    Of one block everything is kept; of several, no matrix of queries x keys outlives its block.
    """
    if torch.compiler.is_exporting():  # the number of queries is a symbol then, which cannot be cut
        return part(0, queries)
    edges = range(0, queries, block)
    again = len(edges) > 1 and torch.is_grad_enabled()
    outputs: list[Tensor] = []
    sums: list[Sums] = []
    for low in edges:
        at = low, min(low + block, queries)
        y, noted = checkpoint(part, *at, use_reentrant=False) if again else part(*at)
        outputs.append(y)
        if noted is not None:
            sums.append(noted)
    whole = torch.cat(outputs, 2)
    if not sums:
        return whole, None
    columns, rows = zip(*sums, strict=True)
    return whole, (torch.stack(columns).sum(0), torch.cat(rows, 2))


def seen_keys(
    allowed: Bool[Tensor, "#B 1 #T S"] | None, low: int, high: int, device: torch.device
) -> Bool[Tensor, "#B 1 #m n"]:
    """Which keys the queries low .. high - 1 may see: without `allowed`, of 0 .. high - 1 those up to their own."""
    if allowed is not None:
        return query_rows(allowed, low, high)
    return torch.ones(high - low, high, dtype=torch.bool, device=device).tril(low)[None, None]


def query_rows(x: Tensor, low: int, high: int) -> Tensor:
    """Its rows low .. high - 1, where it does not say the same of every row."""
    return x if x.shape[2] == 1 else x[:, :, low:high]
