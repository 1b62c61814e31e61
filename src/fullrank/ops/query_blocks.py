"""Attention one block of queries at a time: what a block makes is computed again in the backward pass, not kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor
from torch.utils.checkpoint import checkpoint

BLOCK = 128
"""Queries at a time: histories up to this length take one pass, and nothing is computed twice."""


def in_blocks(part: Callable[[int, int], Any], queries: int, block: int = BLOCK) -> list[Any]:
    """What `part(low, high)` makes of queries low .. high - 1, for each block in order.

    Of one block everything is kept; of several, no matrix of queries x keys outlives its block.
    """
    if torch.compiler.is_exporting():  # the number of queries is a symbol then, which cannot be cut
        return [part(0, queries)]
    edges = range(0, queries, block)
    again = len(edges) > 1 and torch.is_grad_enabled()
    found = []
    for low in edges:
        at = low, min(low + block, queries)
        found.append(checkpoint(part, *at, use_reentrant=False) if again else part(*at))
    return found


def causal_block(low: int, high: int, device: torch.device) -> Bool[Tensor, "1 1 m n"]:
    """Which of the keys 0 .. high - 1 the queries low .. high - 1 may see: those up to their own."""
    return torch.ones(high - low, high, dtype=torch.bool, device=device).tril(low)[None, None]


def query_rows(x: Tensor, low: int, high: int) -> Tensor:
    """Its rows low .. high - 1, where it does not say the same of every row."""
    return x if x.shape[2] == 1 else x[:, :, low:high]
