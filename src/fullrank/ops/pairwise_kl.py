"""Mean KL divergence between the n distributions of a row, without the [B, n, V] probabilities ever existing at once.

With P a row's n distributions over V items and G = P log P^T, the sum over ordered pairs of
KL(p_i || p_j) is n tr G - sum_ij G_ij. Both follow from g_i = n log p_i - sum_j log p_j, of which
p_i . g_i sums to that value and p_i (g_i - p_i . g_i) is its derivative by the scores of p_i as
the first of the pairs: value and gradients are made in one pass over chunks of rows.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

CHUNK_ELEMENTS = 400_000
"""Scores alive at once (1.6 MB in fp32), of which there are three copies."""


def pairwise_kl(
    x: Float[Tensor, "B n D"],
    w: Float[Tensor, "V D"],
    *,
    maximum: float,
    attached: bool,
    chunk_elements: int = CHUNK_ELEMENTS,
) -> Float[Tensor, ""]:
    """Mean over rows of min(maximum, mean over i != j of KL(p_i || p_j)) with p_i = softmax(x_i @ w.T).

    Unless `attached`, no gradient flows through p_j. A row with one distribution has none to differ
    from: 0.
    """
    if x.shape[1] < 2 or not len(x):
        return 0.0 * x.sum()
    rows = max(1, chunk_elements // (x.shape[1] * len(w)))
    return _PairwiseKL.apply(x, w, maximum, attached, rows)


def pairwise_kl_reference(
    x: Float[Tensor, "B n D"], w: Float[Tensor, "V D"], *, maximum: float, attached: bool
) -> Float[Tensor, ""]:
    """The reference: the definition as it reads."""
    log_p = (x @ w.T).log_softmax(-1)
    other = log_p if attached else log_p.detach()
    pairs = [(i, j) for i in range(x.shape[1]) for j in range(x.shape[1]) if i != j]
    divergences = [(log_p[:, i].exp() * (log_p[:, i] - other[:, j])).sum(-1) for i, j in pairs]
    return torch.stack(divergences).mean(0).clamp_max(maximum).mean() if pairs else 0.0 * x.sum()


class _PairwiseKL(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, maximum: float, attached: bool, rows: int) -> Tensor:
        total, dx, dw = x.new_zeros(()), torch.zeros_like(x), torch.zeros_like(w)
        with torch.autocast(x.device.type, enabled=False):
            for low in range(0, len(x), rows):
                part = x[low : low + rows]
                value, slope = _chunk(part, w, maximum, attached)
                total += value
                torch.mm(slope, w, out=dx[low : low + rows].flatten(0, 1))
                dw.addmm_(slope.T, part.flatten(0, 1))
        ctx.save_for_backward(dx.div_(len(x)), dw.div_(len(x)))
        return total / len(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        dx, dw = ctx.saved_tensors
        return dx * upstream, dw * upstream, None, None, None


def _chunk(x: Tensor, w: Tensor, maximum: float, attached: bool) -> tuple[Tensor, Tensor]:
    """The sum of some rows' values, and its derivative by their scores, [b n, V]."""
    n = x.shape[1]
    log_p = torch.mm(x.flatten(0, 1), w.T).unflatten(0, (len(x), n))
    log_p.sub_(log_p.logsumexp(-1, keepdim=True))
    p = log_p.exp()
    g = log_p.mul_(n).sub_(log_p.sum(1, keepdim=True).div_(n))
    mean = torch.linalg.vecdot(p, g)[..., None]
    value = mean.sum((1, 2)) / (n * (n - 1))
    slope = g.sub_(mean).mul_(p)
    if attached:
        slope.add_(p, alpha=n).sub_(p.sum(1, keepdim=True))
    slope.mul_((value < maximum)[:, None, None] / (n * (n - 1)))
    return value.clamp_max(maximum).sum(), slope.flatten(0, 1)
