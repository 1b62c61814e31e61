"""Singular values: how many directions a matrix uses, and the largest of them while the matrix is trained.

Entropy rank: "The effective rank" (Roy and Vetterli, EUSIPCO 2007), exp of the Shannon
entropy of sigma_k / sum sigma. Stable rank: sum sigma_k^2 / sigma_1^2. Collapse share:
sigma_1^2 / sum sigma_k^2 (SPRINT, KDD 2026, Figure 2), one over the stable rank. A zero
matrix has rank 0 and share 0.

The largest one of a matrix that changes slowly takes one step of the power method per training step
(Miyato et al. 2018, arXiv:1802.05957, Algorithm 1). The state is the right vector v alone: u = W v
/ |W v| follows from it. The value is u^T W v with u and v held fixed, whose gradient u v^T is the
exact one where they have converged.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

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
    real = torch.where(valid[..., None], tokens.double(), 0.0)
    return entropy_rank(torch.linalg.svdvals(real))


_TINY = 1e-12
"""Least length that a vector is divided by."""


class PowerIteration(nn.Module):
    """Follows the largest singular value of one matrix, or of each of a stack of them.

    `right` is saved with the weights. It moves in training alone, so it must not be
    called in a recomputed region.
    """

    right: Tensor

    def __init__(self, weight: Float[Tensor, "*k m n"], warmup: int):
        super().__init__()
        generator = torch.Generator().manual_seed(weight.shape[-1])
        start = torch.randn(*weight.shape[:-2], weight.shape[-1], generator=generator)
        self.register_buffer("right", _unit(start.to(weight.device)))
        with torch.no_grad():
            for _ in range(warmup):
                self._move(weight.float())

    def forward(self, weight: Float[Tensor, "*k m n"]) -> Float[Tensor, "*k"]:
        """The value, with its gradient; in training after one more step."""
        weight = weight.float()
        with torch.autocast(weight.device.type, enabled=False):
            if self.training:
                with torch.no_grad():
                    self._move(weight)
            image = _times(weight, self.right)
            with torch.no_grad():
                left = _unit(image)
            return (left * image).sum(-1)

    def _move(self, weight: Tensor) -> None:
        """One step of the power method."""
        self.right.copy_(_unit(_times(weight.mT, _unit(_times(weight, self.right)))))


def largest_singular_value(weight: Float[Tensor, "*k m n"]) -> Float[Tensor, "*k"]:
    """The reference: the definition as it reads."""
    return torch.linalg.matrix_norm(weight.float(), ord=2)


def _times(matrix: Float[Tensor, "*k m n"], vector: Float[Tensor, "*k n"]) -> Float[Tensor, "*k m"]:
    return (matrix @ vector[..., None])[..., 0]


def _unit(vector: Tensor) -> Tensor:
    return vector / vector.norm(dim=-1, keepdim=True).clamp_min(_TINY)
