"""Fewer dimensions by principal components, and whitening: what learners of codes see instead of the raw vectors.

RPG (arXiv:2506.05781) reduces 3,072 dimensions to 512 and whitens them. Whitening gives every
direction the same weight, so that the first codebooks are not spent on a few strong ones; it makes
neighbours differ from the raw space, which the report's neighbour agreement says. A new item is
reduced by the same mean and matrix.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.core.errors import UserError
from fullrank.semantic_ids import Tensors
from fullrank.semantic_ids.quantisers import require_tensors

FLOOR = 1e-6
"""Share of the largest variance below which a direction is not blown up by whitening."""
ROWS = 8192
"""Vectors made float64 at once."""


@dataclass(frozen=True)
class Reduction:
    """z = (x - mean) @ matrix, and back: x = z @ back + mean."""

    mean: Float[Tensor, "D"]
    matrix: Float[Tensor, "D R"]
    back: Float[Tensor, "R D"]

    def apply(self, x: Float[Tensor, "n D"]) -> Float[Tensor, "n R"]:
        return (x - self.mean) @ self.matrix

    def inverse(self, z: Float[Tensor, "n R"]) -> Float[Tensor, "n D"]:
        return z @ self.back + self.mean

    def tensors(self) -> dict[str, Tensor]:
        return {"reduce.mean": self.mean, "reduce.matrix": self.matrix, "reduce.back": self.back}

    @classmethod
    def load(cls, tensors: Tensors, width: int) -> Reduction | None:
        """The reduction to `width` dimensions that `tensors` wrote; None where there
        is none. Raises `UserError`."""
        if not any(name.startswith("reduce.") for name in tensors):
            return None
        shapes = {"reduce.mean": "D", "reduce.matrix": "DR", "reduce.back": "RD"}
        return cls(*require_tensors(tensors, shapes, R=width))


def fit_reduction(x: Float[Tensor, "n D"], pca: int | None, whiten: bool) -> Reduction | None:
    """The reduction of these vectors to `pca` dimensions (None: all), whitened or not; None where neither is asked.

    Raises `UserError` where there are fewer dimensions or vectors than are asked for.
    """
    if pca is None and not whiten:
        return None
    width = x.shape[1] if pca is None else pca
    if width > x.shape[1] or width >= len(x):
        raise UserError(
            f"pca={width} asks for more directions than {len(x):,} vectors of width {x.shape[1]} have; set at most "
            f"pca={min(x.shape[1], len(x) - 1)}",
            code="too-many-dimensions",
        )
    mean = x.double().mean(0)
    covariance = torch.zeros(x.shape[1], x.shape[1], dtype=torch.float64)
    for part in x.split(ROWS):
        centred = part.double() - mean
        covariance += centred.T @ centred
    values, directions = torch.linalg.eigh(covariance / len(x))
    values, directions = values.flip(0)[:width].clamp_min(0), directions.flip(1)[:, :width]
    largest = directions.abs().argmax(0)
    # an eigenvector's sign is the solver's whim: the largest entry is made positive
    directions = directions * directions.gather(0, largest[None]).sign()
    spread = values.clamp_min(FLOOR * float(values[0])).sqrt() if whiten else torch.ones_like(values)
    if float(values[0]) == 0:
        spread = torch.ones_like(values)
    return Reduction(mean.float(), (directions / spread).float(), (directions * spread).T.contiguous().float())
