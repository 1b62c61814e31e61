"""Token mixers. An attention turns a sequence of vectors into another of the same shape.

The room's contract: a Spec whose ``build(dim, max_length)`` gives a module that satisfies `Attention`. The encoder
around it owns norms, residuals and feed-forward; the attention owns its projections. Rows are right-padded, and the
mask of a causal attention hides the future; a padded key is never seen by a valid query.
"""

from __future__ import annotations

from typing import Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fullrank.batch import Batch

Projection = tuple[Float[Tensor, "H e D"], Float[Tensor, "D De"]]
"""Value projection by head, and the output projection."""


class Attention(Protocol):
    causal: bool
    heads: int

    def project(self, x: Float[Tensor, "B T D"], positions: Int[Tensor, "B T"]) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values by head, [B, H, T, e] each; keys and values are what a cache holds."""
        ...

    def attend(self, q: Tensor, k: Tensor, v: Tensor, allowed: Bool[Tensor, "B 1 T S"] | None) -> Tensor:
        """[B, T, D] from projected tokens. Without a mask the attention is causal over equal lengths."""
        ...

    def __call__(self, x: Float[Tensor, "B T D"], batch: Batch) -> Float[Tensor, "B T D"]:
        """The mixed tokens. Rows past a length are unspecified."""
        ...

    def weights(self, x: Float[Tensor, "B T D"], batch: Batch) -> Float[Tensor, "B H T T"]:
        """The slow reference and diagnostic tap: rows are queries, columns keys, zero where the mask hides."""
        ...

    def apply_weights(self, weights: Float[Tensor, "B H T T"], x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """What the module makes of given weights: ``apply_weights(weights(x), x)`` equals its output."""
        ...

    def matrices(self) -> Projection:
        """The value projection of each head and the output projection."""
        ...


def mask(batch: Batch, *, causal: bool) -> Bool[Tensor, "B 1 T T"]:
    """True where a query may look. A padded query sees the first key, so that no row is empty."""
    t = batch.items.shape[1]
    keys = batch.valid[:, None, None, :].expand(-1, 1, t, t)
    if causal:
        keys = keys & torch.ones(t, t, dtype=torch.bool, device=keys.device).tril()
    first = torch.zeros(t, dtype=torch.bool, device=keys.device)
    first[:1] = True
    return keys | (first & ~batch.valid[:, None, :, None])
