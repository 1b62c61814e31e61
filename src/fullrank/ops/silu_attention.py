"""SiLU attention: y_i = sum_j A_ij v_j with A_ij = silu(q_i . k_j + b_ij) / n_i, zero where key j is hidden from i.

With it, on request, the sums of |A| by key (the attention that it received) and by query (what it
gave). All are made from one block of queries at a time. Where there are several blocks, each is
computed again in the backward pass, so that no matrix of queries x keys lives longer than its
block; a causal block reads the keys up to its own end alone.

On a CUDA device a Triton kernel (`ops/triton_silu_attention.py`) takes the place of causal blocks
without bias, sums and dropout.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from fullrank.ops.attention import BLOCK, Mask, Sums, in_blocks, query_rows, seen_keys
from fullrank.ops.dropout import drop
from fullrank.ops.kernels import chosen_for_heads, kernel, product_dtype

Bias = Callable[[slice, int], Tensor]
"""(queries, n) -> what is added to the scores of these queries against the first n keys, broadcast to [B, H, m, n]."""


def silu_attention(
    q: Float[Tensor, "B H T e"],
    k: Float[Tensor, "B H S e"],
    v: Float[Tensor, "B H S f"],
    divisor: Float[Tensor, "#B 1 #T 1"],
    allowed: Mask | None = None,
    *,
    bias: Bias | None = None,
    counted: Bool[Tensor, "B T"] | None = None,
    dropout: float = 0.0,
    block: int = BLOCK,
) -> tuple[Float[Tensor, "B H T f"], Float[Tensor, "B H S"] | None, Float[Tensor, "B H T"] | None]:
    """y, and the sums of |A| by key and by query over the queries that are `counted` (None: not wanted).

    Without `allowed`, query i sees the keys up to i. `dropout` falls on the weights that mix the
    values; the sums are those of the weights as they were.
    """
    plain = allowed is None and bias is None and counted is None and dropout == 0
    if plain and chosen_for_heads("triton_silu_attention", q, v) and q.shape == k.shape:
        return kernel("triton_silu_attention")(q, k, v, divisor, product_dtype(q)), None, None

    def part(low: int, high: int) -> tuple[Tensor, Sums | None]:
        keys = k.shape[2] if allowed is not None else high
        seen = seen_keys(allowed, low, high, q.device)
        added = None if bias is None else bias(slice(low, high), keys)
        weights = silu_weights(q[:, :, low:high], k[:, :, :keys], query_rows(divisor, low, high), seen, added)
        sums = None
        if counted is not None:
            sizes = weights.abs() * counted[:, None, low:high, None]
            columns = F.pad(sizes.sum(2, dtype=torch.float32), (0, k.shape[2] - keys))
            sums = columns, sizes.sum(3, dtype=torch.float32)
        return drop(weights, dropout) @ v[:, :, :keys], sums

    mixed, sums = in_blocks(part, q.shape[2], block)
    columns, rows = sums or (None, None)
    return mixed, columns, rows


def silu_attention_reference(
    q: Float[Tensor, "B H T e"],
    k: Float[Tensor, "B H S e"],
    v: Float[Tensor, "B H S f"],
    divisor: Float[Tensor, "#B 1 #T 1"],
    allowed: Mask,
    *,
    bias: Tensor | None = None,
    counted: Bool[Tensor, "B T"],
) -> tuple[Float[Tensor, "B H T f"], Float[Tensor, "B H S"], Float[Tensor, "B H T"]]:
    """The reference: the definition as it reads."""
    weights = silu_weights(q, k, divisor, allowed, bias)
    sizes = weights.abs() * counted[:, None, :, None]
    return weights @ v, sizes.sum(2), sizes.sum(3)


def silu_weights(
    q: Float[Tensor, "B H T e"],
    k: Float[Tensor, "B H S e"],
    divisor: Float[Tensor, "#B 1 #T 1"],
    allowed: Mask,
    bias: Tensor | None = None,
) -> Float[Tensor, "B H T S"]:
    """The weights A in full, zero where the mask hides."""
    scores = q @ k.mT
    if bias is not None:
        scores = scores + bias
    return (F.silu(scores) / divisor).masked_fill(~allowed, 0.0)
