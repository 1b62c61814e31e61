"""P isolated streams of queries against one shared prefix and each stream's own few tokens, without copying the prefix.

The streams of a row are P queries on the same prefix keys [B, H, T, e]; the S keys of each stream are apart. Only the
scores are joined, [B, H, P, T + S]. Heads are taken one at a time: a head's keys are a strided view of the projection,
which a batched product reads in place, while one product over rows and heads would first make them contiguous.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def stream_scores(
    q: Float[Tensor, "B H P e"], k: Float[Tensor, "B H T e"], own: Float[Tensor, "B H P S e"]
) -> Float[Tensor, "B H P n"]:
    """q . k for every key that a stream may see: n = T + S, the prefix first."""
    prefix = torch.stack([torch.bmm(x, y.mT) for x, y in zip(q.unbind(1), k.unbind(1), strict=True)], 1)
    return torch.cat([prefix, (q[:, :, :, None] * own).sum(-1)], -1)


def stream_mix(
    weights: Float[Tensor, "B H P n"], v: Float[Tensor, "B H T f"], own: Float[Tensor, "B H P S f"]
) -> Float[Tensor, "B H P f"]:
    """The values of the prefix and of each stream's own tokens, mixed by these weights."""
    prefix, latent = weights.split([v.shape[2], own.shape[3]], -1)
    mixed = torch.stack([torch.bmm(x, y) for x, y in zip(prefix.unbind(1), v.unbind(1), strict=True)], 1)
    return mixed + (latent[..., None] * own).sum(3)


def stream_scores_reference(
    q: Float[Tensor, "B H P e"], k: Float[Tensor, "B H T e"], own: Float[Tensor, "B H P S e"]
) -> Float[Tensor, "B H P n"]:
    """The reference, which copies the prefix for every stream."""
    keys = torch.cat([k[:, :, None].expand(-1, -1, q.shape[2], -1, -1), own], 3)
    return torch.einsum("bhpe,bhpne->bhpn", q, keys)


def stream_mix_reference(
    weights: Float[Tensor, "B H P n"], v: Float[Tensor, "B H T f"], own: Float[Tensor, "B H P S f"]
) -> Float[Tensor, "B H P f"]:
    """The reference, which copies the prefix for every stream."""
    values = torch.cat([v[:, :, None].expand(-1, -1, weights.shape[2], -1, -1), own], 3)
    return torch.einsum("bhpn,bhpnf->bhpf", weights, values)
