"""In-batch triplet: each row's vector is nearer to its own partner than to the vectors of other rows, by a margin."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor


def in_batch_triplet(anchors: Float[Tensor, "B D"], partners: Float[Tensor, "B D"], margin: float) -> Float[Tensor, ""]:
    """Mean over ordered pairs i != j of max(0, d(a_i, p_i) - d(a_i, a_j) + margin), d one minus the cosine; fp32.

    One row has nobody to be told from: 0.
    """
    with torch.autocast(anchors.device.type, enabled=False):
        a, p = (F.normalize(x.float(), dim=-1, eps=1e-12) for x in (anchors, partners))
        terms = (a @ a.T - (a * p).sum(-1, keepdim=True) + margin).relu()
        own = torch.eye(len(a), dtype=torch.bool, device=a.device)
        return terms.masked_fill(own, 0.0).sum() / max(1, len(a) * (len(a) - 1))


def in_batch_triplet_reference(
    anchors: Float[Tensor, "B D"], partners: Float[Tensor, "B D"], margin: float
) -> Float[Tensor, ""]:
    """The reference: the definition as it reads."""
    found = []
    for i in range(len(anchors)):
        near = 1 - F.cosine_similarity(anchors[i], partners[i], dim=0)
        for j in range(len(anchors)):
            if j != i:
                far = 1 - F.cosine_similarity(anchors[i], anchors[j], dim=0)
                found.append((near - far + margin).clamp_min(0))
    return torch.stack(found).mean() if found else 0.0 * (anchors.sum() + partners.sum())
