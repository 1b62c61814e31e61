"""The difference of two softmax attentions on the same values: y = A V, A = l1 A1 - l2 A2 (FAIR, Eqs. 3 to 5).

Queries and keys of the two maps stand side by side, [q1 q2] and [k1 k2]. Where the rows of A are
not normalised and nothing is dropped, y is l1 (A1 V) - l2 (A2 V): two fused kernels, and no weights
of queries x keys exist. Otherwise A is made one block of queries at a time, because norm and
dropout are on the difference: one dropout mask on both maps.

The subtraction is in fp32, whatever the precision of the maps.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from fullrank.ops.attention import BLOCK, Mask, Sums, fused_attention, in_blocks, seen_keys
from fullrank.ops.column_attention import column_attention
from fullrank.ops.dropout import drop

RowNorm = Literal["l1", "rms", "softmax", "relu_l1"] | None
"""The norm of a row of l1 A1 - l2 A2: divided by the sum of its absolute values or the root of
their mean square, softmax, its positive part divided by its sum, or nothing."""
EPS = 1e-6
"""Added to the divisor (l1) or to the mean square: a row where both maps agree stays zero, and is A1 under relu_l1."""


def focused_attention(
    q: Float[Tensor, "B H T w"],
    k: Float[Tensor, "B H S w"],
    v: Float[Tensor, "B H S f"],
    factors: tuple[float, float],
    allowed: Mask | None = None,
    *,
    norm: RowNorm = None,
    dropout: float = 0.0,
    block: int = BLOCK,
) -> Float[Tensor, "B H T f"]:
    """y in fp32. Without `allowed`, query i sees the keys up to i; `dropout` falls on A."""
    if norm is None and dropout == 0:
        first, second = (fused_attention(a, b, v, allowed, dropout).float() for a, b in _halves(q, k))
        return factors[0] * first - factors[1] * second
    return _in_full(q, k, v, factors, allowed, norm, dropout, None, block)[0]


def _halves(q: Tensor, k: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Queries and keys of each map, each in memory of its own.

    Kernels round by where numbers lie, and equal maps must cancel.
    """
    return [(a.contiguous(), b.contiguous()) for a, b in zip(q.chunk(2, -1), k.chunk(2, -1), strict=True)]


def focused_attention_with_sums(
    q: Float[Tensor, "B H T w"],
    k: Float[Tensor, "B H T w"],
    v: Float[Tensor, "B H T f"],
    factors: tuple[float, float],
    valid: Bool[Tensor, "B T"],
    *,
    causal: bool,
    norm: RowNorm = None,
    dropout: float = 0.0,
    block: int = BLOCK,
) -> tuple[Float[Tensor, "B H T f"], Sums]:
    """y over right-padded rows, and sums over the valid queries, before dropout.

    The sums are those of |A| where its rows are normalised, else those of l1 A1 + l2 A2, which is
    at least |A| in every place and can be had without making A.
    """
    if norm is None and dropout == 0:
        (y1, c1, _), (y2, c2, _) = (column_attention(a, b, v, valid, causal=causal) for a, b in _halves(q, k))
        rows = (sum(factors) * valid[:, None].float()).expand(q.shape[:3])
        return factors[0] * y1.float() - factors[1] * y2.float(), (factors[0] * c1 + factors[1] * c2, rows)
    allowed = None if causal else _bidirectional_mask(valid)
    y, sums = _in_full(q, k, v, factors, allowed, norm, dropout, valid, block)
    assert sums is not None
    return y, sums


def focused_weights(
    q: Float[Tensor, "B H T w"],
    k: Float[Tensor, "B H S w"],
    factors: tuple[float, float],
    allowed: Mask,
    norm: RowNorm = None,
) -> Float[Tensor, "B H T S"]:
    """A in full, zero where the mask hides: the reference of the fused path.

    In fp64 for queries and keys in it.
    """
    return subtracted(*_maps(q, k, allowed), factors, allowed, norm)


def counted_weights(
    q: Float[Tensor, "B H T w"],
    k: Float[Tensor, "B H S w"],
    factors: tuple[float, float],
    allowed: Mask,
    norm: RowNorm = None,
) -> Float[Tensor, "B H T S"]:
    """The weights that the sums add up, in full: |A| where its rows are normalised,
    else its bound l1 A1 + l2 A2."""
    first, second = _maps(q, k, allowed)
    return _counted(first, second, subtracted(first, second, factors, allowed, norm), factors, norm)


def subtracted(
    first: Float[Tensor, "B H T S"],
    second: Float[Tensor, "B H T S"],
    factors: tuple[float, float],
    allowed: Mask,
    norm: RowNorm,
) -> Float[Tensor, "B H T S"]:
    """A from its two maps.

    The root mean square and the softmax are over the keys that a query may see.
    """
    a = factors[0] * first - factors[1] * second
    if norm == "softmax":
        return a.masked_fill(~allowed, float("-inf")).softmax(-1)
    if norm == "relu_l1":
        # EPS parts of A1 beside the positive part: rows sum to one even where that is
        # empty, as at a first event
        positive = a.relu()
        return (positive + EPS * first) / (positive.sum(-1, keepdim=True) + EPS)
    if norm == "l1":
        return a / (a.abs().sum(-1, keepdim=True) + EPS)
    if norm == "rms":
        seen = allowed.sum(-1, keepdim=True).clamp_min(1)
        return a * (a.square().sum(-1, keepdim=True) / seen + EPS).rsqrt()
    return a


def focused_attention_reference(
    q: Float[Tensor, "B H T w"],
    k: Float[Tensor, "B H T w"],
    v: Float[Tensor, "B H T f"],
    factors: tuple[float, float],
    allowed: Bool[Tensor, "#B 1 #T T"],
    *,
    norm: RowNorm = None,
    counted: Bool[Tensor, "B T"],
) -> tuple[Float[Tensor, "B H T f"], Sums]:
    """The reference: the definition as it reads, without dropout."""
    a = focused_weights(q, k, factors, allowed, norm)
    size = counted_weights(q, k, factors, allowed, norm) * counted[:, None, :, None]
    return a.to(v.dtype) @ v, (size.sum(2), size.sum(3))


def _in_full(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    factors: tuple[float, float],
    allowed: Tensor | None,
    norm: RowNorm,
    dropout: float,
    counted: Tensor | None,
    block: int,
) -> tuple[Tensor, Sums | None]:
    """y by way of A, a block of queries at a time; with sums over the queries that are counted."""

    def part(low: int, high: int) -> tuple[Tensor, Sums | None]:
        keys = k.shape[2] if allowed is not None else high
        seen = seen_keys(allowed, low, high, q.device)
        first, second = _maps(q[:, :, low:high], k[:, :, :keys], seen)
        a = subtracted(first, second, factors, seen, norm)
        sums = None
        if counted is not None:
            size = _counted(first, second, a, factors, norm) * counted[:, None, low:high, None]
            sums = F.pad(size.sum(2), (0, k.shape[2] - keys)), size.sum(3)
        return (drop(a, dropout).to(v.dtype) @ v[:, :, :keys]).float(), sums

    return in_blocks(part, q.shape[2], block)


def _maps(q: Tensor, k: Tensor, allowed: Tensor) -> tuple[Tensor, Tensor]:
    """A1 and A2 in fp32."""
    first, second = (softmax_map(a @ b.mT, a.shape[-1], allowed) for a, b in _halves(q, k))
    return first, second


def softmax_map(products: Float[Tensor, "B H T S"], width: int, allowed: Mask) -> Float[Tensor, "B H T S"]:
    """softmax(q . k / sqrt(width)) over the keys that may be seen, in fp32, or in fp64 where the products are."""
    products = products.to(torch.promote_types(products.dtype, torch.float32))
    return (products / width**0.5).masked_fill(~allowed, float("-inf")).softmax(-1)


def _counted(first: Tensor, second: Tensor, a: Tensor, factors: tuple[float, float], norm: RowNorm) -> Tensor:
    """The weights that sums add up: |A| under a norm, else its bound."""
    return factors[0] * first + factors[1] * second if norm is None else a.abs()


def _bidirectional_mask(valid: Bool[Tensor, "B T"]) -> Bool[Tensor, "B 1 1 T"]:
    """The keys of a bidirectional attention; the first is open to all, so
    that no query is left without."""
    return (valid | (torch.arange(valid.shape[1], device=valid.device) == 0))[:, None, None]
