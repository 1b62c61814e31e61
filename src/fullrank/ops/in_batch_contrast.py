"""In-batch contrast: each row's vector has to find its own partner among those of all rows, in one direction or both.

Both directions are made from one matrix of scores and one exponential: with p_ij = exp(s_ij - max_j
s_ij), the softmax over j divides p by its row sums, the one over i a rescaled p by its column sums.
The gradients follow while p is at hand. No [n, B, B] exists, only one [B, B] at a time.

`in_batch_triplet` asks less: a row's own partner is to be nearer than the vectors of
other rows, by a margin.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

LOG2_E = math.log2(math.e)


def in_batch_contrast(
    a: Float[Tensor, "n B D"],
    b: Float[Tensor, "n B D"],
    users: Int[Tensor, "B"] | None = None,
    *,
    temperature: float,
    both: bool,
) -> Float[Tensor, ""]:
    """Mean over n and rows i of -log softmax_j(a_i . b_j / temperature) at j = i; with `both`, plus that of a_j . b_i.

    Other rows of the same user are left out of the sum over j. A single row has nobody to be told
    from, and the value is 0. With `both`, all scores of a batch have to lie within 80 of each
    other: unit vectors at a temperature of 0.03 or more do.
    """
    if not a.shape[0] or not a.shape[1]:
        return 0.0 * (a.sum() + b.sum())
    same_user = None if users is None else _same_user_pairs(users).nonzero(as_tuple=True)
    return _Contrast.apply(a.float(), b.float(), same_user, temperature, both)


def in_batch_contrast_reference(
    a: Float[Tensor, "n B D"],
    b: Float[Tensor, "n B D"],
    users: Int[Tensor, "B"] | None = None,
    *,
    temperature: float,
    both: bool,
) -> Float[Tensor, ""]:
    """The reference: the definition as it reads."""
    scores = (a @ b.mT) / temperature
    if users is not None:
        scores = scores.masked_fill(_same_user_pairs(users), float("-inf"))
    partners = torch.arange(a.shape[1], device=a.device).expand(len(a), -1).flatten()
    there = F.cross_entropy(scores.flatten(0, 1), partners)
    return there + F.cross_entropy(scores.mT.flatten(0, 1), partners) if both else there


def _same_user_pairs(users: Int[Tensor, "B"]) -> Bool[Tensor, "B B"]:
    """Pairs of different rows of one user."""
    return (users[:, None] == users) & ~torch.eye(len(users), dtype=torch.bool, device=users.device)


class _Contrast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, same_user: Any, temperature: float, both: bool) -> Tensor:
        total, da, db = a.new_zeros(()), torch.empty_like(a), torch.empty_like(b)
        with torch.autocast(a.device.type, enabled=False):
            for n in range(len(a)):
                value, slope = _losses_and_slope(torch.mm(a[n] * (LOG2_E / temperature), b[n].T), same_user, both)
                total += value
                torch.mm(slope, b[n], out=da[n])
                torch.mm(slope.T, a[n], out=db[n])
        count = a.shape[0] * a.shape[1]
        scale = (1 + both) / (temperature * count)
        da.div_(temperature * count).sub_(b, alpha=scale)
        db.div_(temperature * count).sub_(a, alpha=scale)
        ctx.save_for_backward(da, db)
        return total / (LOG2_E * count)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        da, db = ctx.saved_tensors
        return da * upstream, db * upstream, None, None, None


def _losses_and_slope(scores: Tensor, same_user: Any, both: bool) -> tuple[Tensor, Tensor]:
    """The sum of the losses of scores [B, B] in bits, and its derivative by
    them, but for the targets' part."""
    targets = scores.diagonal().clone()
    if same_user is not None:
        scores[same_user] = -math.inf
    top = scores.amax(1, keepdim=True)
    p = scores.sub_(top).exp2_()
    rows = p.sum(1, keepdim=True)
    value = (rows.log2() + top)[:, 0].sum() - targets.sum()
    if not both:
        return value, p.div_(rows)
    # the softmax over i from the same exponentials: `lift` turns the maximum of each row into that
    # of all
    most = top.max()
    lift = (top - most).exp2()
    columns = lift.T @ p
    value = value + (columns.log2() + most).sum() - targets.sum()
    return value, p.mul_((lift / columns).add_(rows.reciprocal()))


def in_batch_triplet(anchors: Float[Tensor, "B D"], partners: Float[Tensor, "B D"], margin: float) -> Float[Tensor, ""]:
    """Mean over ordered pairs i != j of max(0, d(a_i, p_i) - d(a_i, a_j) + margin), d one minus the cosine; fp32.

    A single row has nobody to be told from, and the value is 0.
    """
    with torch.autocast(anchors.device.type, enabled=False):
        a, p = (F.normalize(x.float(), dim=-1, eps=1e-12) for x in (anchors, partners))
        terms = (a @ a.T - (a * p).sum(-1, keepdim=True) + margin).relu()
        diagonal = torch.eye(len(a), dtype=torch.bool, device=a.device)
        return terms.masked_fill(diagonal, 0.0).sum() / max(1, len(a) * (len(a) - 1))


def in_batch_triplet_reference(
    anchors: Float[Tensor, "B D"], partners: Float[Tensor, "B D"], margin: float
) -> Float[Tensor, ""]:
    """The reference: the definition as it reads."""
    terms = []
    for i in range(len(anchors)):
        near = 1 - F.cosine_similarity(anchors[i], partners[i], dim=0)
        for j in range(len(anchors)):
            if j != i:
                far = 1 - F.cosine_similarity(anchors[i], anchors[j], dim=0)
                terms.append((near - far + margin).clamp_min(0))
    return torch.stack(terms).mean() if terms else 0.0 * (anchors.sum() + partners.sum())
