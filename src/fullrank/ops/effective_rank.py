"""How many directions a matrix uses: stable rank, entropy rank, and the share of its largest singular value.

Entropy rank: "The effective rank" (Roy and Vetterli, EUSIPCO 2007), exp of the Shannon entropy of sigma_k / sum sigma.
Stable rank: sum sigma_k^2 / sigma_1^2. Collapse share: sigma_1^2 / sum sigma_k^2 (SPRINT, KDD 2026, Figure 2), one over
the stable rank. A zero matrix has rank 0 and share 0.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

LEAST = 1e-300
"""Below every float64 that means something: a zero matrix divides by this instead of by zero."""


def collapse_share(sigma: Float[Tensor, "*n K"]) -> Float[Tensor, "*n"]:
    """sigma_1^2 / sum sigma_k^2, between 1 / K and 1."""
    energy = sigma.double().square()
    return energy.amax(-1) / energy.sum(-1).clamp_min(LEAST)


def stable_rank(sigma: Float[Tensor, "*n K"]) -> Float[Tensor, "*n"]:
    """sum sigma_k^2 / sigma_1^2, between 1 and K."""
    energy = sigma.double().square()
    return energy.sum(-1) / energy.amax(-1).clamp_min(LEAST)


def entropy_rank(sigma: Float[Tensor, "*n K"]) -> Float[Tensor, "*n"]:
    """exp(-sum p log p) with p = sigma / sum sigma, between 1 and K."""
    total = sigma.double().sum(-1, keepdim=True)
    shares = sigma.double() / total.clamp_min(LEAST)
    return torch.special.entr(shares).sum(-1).exp() * (total[..., 0] > 0)


def token_rank(tokens: Float[Tensor, "B T D"], valid: Bool[Tensor, "B T"]) -> Float[Tensor, "B"]:
    """The entropy rank of each row's own valid tokens."""
    kept = torch.where(valid[..., None], tokens.double(), 0.0)
    return entropy_rank(torch.linalg.svdvals(kept))
