"""The largest singular value of a matrix that changes slowly: one step of the power method per training step.

Miyato et al. 2018 (arXiv:1802.05957, Algorithm 1). The state is the right vector v alone: u = W v / |W v| follows from
it. The value is u^T W v with u and v held fixed, whose gradient u v^T is the exact one where they have converged.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

_TINY = 1e-12


class PowerIteration(nn.Module):
    """Follows the largest singular value of one matrix, or of each of a stack of them.

    `right` is saved with the weights. It moves in training alone, so it must not be called in a recomputed region.
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
            made = _times(weight, self.right)
            with torch.no_grad():
                left = _unit(made)
            return (left * made).sum(-1)

    def _move(self, weight: Tensor) -> None:
        self.right.copy_(_unit(_times(weight.mT, _unit(_times(weight, self.right)))))


def largest_singular_value(weight: Float[Tensor, "*k m n"]) -> Float[Tensor, "*k"]:
    """The reference: the definition as it reads."""
    return torch.linalg.matrix_norm(weight.float(), ord=2)


def _times(matrix: Float[Tensor, "*k m n"], vector: Float[Tensor, "*k n"]) -> Float[Tensor, "*k m"]:
    return (matrix @ vector[..., None])[..., 0]


def _unit(vector: Tensor) -> Tensor:
    return vector / vector.norm(dim=-1, keepdim=True).clamp_min(_TINY)
