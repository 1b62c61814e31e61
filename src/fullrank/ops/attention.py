"""Steps that several attentions share: PyTorch's fused one, blocks of queries, and streams behind one prefix.

`fused_attention` computes in fp32 on a CPU, under autocast too: its blocks in bf16 take
up to eight times as long.

`in_blocks` takes one block of queries at a time: what a block makes is computed again in the
backward pass, not kept.

`stream_scores` and `stream_mix` serve P isolated streams of queries against one shared prefix and
each stream's own few tokens, without copying the prefix. The streams of a row are P queries on
the same prefix keys [B, H, T, e]; the S keys of each stream are apart. Only the scores are
joined, [B, H, P, T + S]. Heads are taken one at a time: a head's keys are a strided view of the
projection, which a batched product reads in place, while one product over rows and heads would
first make them contiguous.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from fullrank.ops.dropout import draws_here, drop


def fused_attention(
    q: Float[Tensor, "B H T e"],
    k: Float[Tensor, "B H S e"],
    v: Float[Tensor, "B H S f"],
    allowed: Float[Tensor, "..."] | Bool[Tensor, "..."] | None,
    dropout: float,
) -> Float[Tensor, "B H T f"]:
    """softmax(Q K^T / sqrt e) V where `allowed`, or with what it adds to the
    scores; causal where that is None."""
    if q.device.type == "cpu" and torch.is_autocast_enabled("cpu"):
        added = allowed.float() if allowed is not None and allowed.is_floating_point() else allowed
        with torch.autocast("cpu", enabled=False):
            return fused_attention(q.float(), k.float(), v.float(), added, dropout)
    if dropout and draws_here(q):  # torch fuses nothing there, and its own draws take most of the time
        seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril() if allowed is None else allowed
        scores = q / q.shape[-1] ** 0.5 @ k.mT
        scores = scores + seen if seen.is_floating_point() else scores.masked_fill(~seen, -math.inf)
        return drop(scores.softmax(-1), dropout) @ v
    return F.scaled_dot_product_attention(q, k, v, attn_mask=allowed, is_causal=allowed is None, dropout_p=dropout)


Mask = Bool[Tensor, "#B 1 #T S"]
"""True where a query may look."""
Sums = tuple[Tensor, Tensor]
"""How much each key received and each query gave."""
BLOCK = 128
"""Queries at a time: histories up to this length take one pass, and nothing is computed twice."""


def in_blocks(
    part: Callable[[int, int], tuple[Tensor, Sums | None]], queries: int, block: int
) -> tuple[Tensor, Sums | None]:
    """Join `part(low, high)`, an attention of queries low .. high - 1, over all blocks: outputs, and sums if wanted.

    A single block keeps everything for the backward pass; of several, no matrix of queries
    x keys outlives its own.
    """
    if torch.compiler.is_exporting():  # the number of queries is a symbol then, which cannot be cut
        return part(0, queries)
    edges = range(0, queries, block)
    recompute = len(edges) > 1 and torch.is_grad_enabled()
    bounds = [(low, min(low + block, queries)) for low in edges]
    blocks = [checkpoint(part, *at, use_reentrant=False) if recompute else part(*at) for at in bounds]
    outputs, sums = zip(*blocks, strict=True)
    y = torch.cat(outputs, 2)
    if sums[0] is None:
        return y, None
    columns, rows = zip(*sums, strict=True)
    return y, (torch.stack(columns).sum(0), torch.cat(rows, 2))


def seen_keys(allowed: Mask | None, low: int, high: int, device: torch.device) -> Bool[Tensor, "#B 1 #m n"]:
    """Which keys the queries low .. high - 1 may see; without `allowed`, those up to
    their own, of 0 .. high - 1."""
    if allowed is not None:
        return query_rows(allowed, low, high)
    return torch.ones(high - low, high, dtype=torch.bool, device=device).tril(low)[None, None]


def query_rows(x: Tensor, low: int, high: int) -> Tensor:
    """Rows low .. high - 1 of a tensor by query, [B, H, T, n]; one row that stands for
    all queries stays as it is."""
    return x if x.shape[2] == 1 else x[:, :, low:high]


def stream_scores(
    q: Float[Tensor, "B H P e"], k: Float[Tensor, "B H T e"], stream: Float[Tensor, "B H P S e"]
) -> Float[Tensor, "B H P n"]:
    """q . k for every key that a stream may see: n = T + S, the prefix first."""
    prefix = torch.stack([torch.bmm(x, y.mT) for x, y in zip(q.unbind(1), k.unbind(1), strict=True)], 1)
    return torch.cat([prefix, (q[:, :, :, None] * stream).sum(-1)], -1)


def stream_mix(
    weights: Float[Tensor, "B H P n"], v: Float[Tensor, "B H T f"], stream: Float[Tensor, "B H P S f"]
) -> Float[Tensor, "B H P f"]:
    """The values of the prefix and of each stream's own tokens, mixed by these weights."""
    prefix, latent = weights.split([v.shape[2], stream.shape[3]], -1)
    mixed = torch.stack([torch.bmm(x, y) for x, y in zip(prefix.unbind(1), v.unbind(1), strict=True)], 1)
    return mixed + (latent[..., None] * stream).sum(3)


def stream_scores_reference(
    q: Float[Tensor, "B H P e"], k: Float[Tensor, "B H T e"], stream: Float[Tensor, "B H P S e"]
) -> Float[Tensor, "B H P n"]:
    """Compute `stream_scores` with a copy of the prefix for every stream: the reference."""
    keys = torch.cat([k[:, :, None].expand(-1, -1, q.shape[2], -1, -1), stream], 3)
    return torch.einsum("bhpe,bhpne->bhpn", q, keys)


def stream_mix_reference(
    weights: Float[Tensor, "B H P n"], v: Float[Tensor, "B H T f"], stream: Float[Tensor, "B H P S f"]
) -> Float[Tensor, "B H P f"]:
    """Compute `stream_mix` with a copy of the prefix for every stream: the reference."""
    values = torch.cat([v[:, :, None].expand(-1, -1, weights.shape[2], -1, -1), stream], 3)
    return torch.einsum("bhpn,bhpnf->bhpf", weights, values)
