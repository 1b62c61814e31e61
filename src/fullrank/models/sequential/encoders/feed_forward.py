"""Position-wise feed-forward layers: two matrices (MLP) or three (SwiGLU, arXiv:2002.05202, Eq. 6)."""

from __future__ import annotations

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from fullrank.models.sequential import start_small


class MLP(nn.Module):
    """down(dropout(activation(up(x))))."""

    def __init__(self, dim: int, inner: int, activation: str, bias: bool, dropout: float):
        super().__init__()
        self.up, self.down = nn.Linear(dim, inner, bias=bias), nn.Linear(inner, dim, bias=bias)
        self.activation, self.drop = getattr(F, activation), nn.Dropout(dropout)
        start_small(self)

    def forward(self, x: Float[Tensor, "*n D"]) -> Float[Tensor, "*n D"]:
        return self.down(self.drop(self.activation(self.up(x))))

    def matrices(self) -> tuple[Tensor, Tensor]:
        """The up- and the down-projection."""
        return self.up.weight, self.down.weight


class SwiGLU(nn.Module):
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, dim: int, inner: int, bias: bool, dropout: float):
        super().__init__()
        self.gate, self.up = nn.Linear(dim, inner, bias=bias), nn.Linear(dim, inner, bias=bias)
        self.down, self.drop = nn.Linear(inner, dim, bias=bias), nn.Dropout(dropout)
        start_small(self)

    def forward(self, x: Float[Tensor, "*n D"]) -> Float[Tensor, "*n D"]:
        return self.down(self.drop(F.silu(self.gate(x)) * self.up(x)))

    def matrices(self) -> tuple[Tensor, Tensor]:
        """The up- and the down-projection; the gate is not among them (SPRINT's code leaves it out)."""
        return self.up.weight, self.down.weight
