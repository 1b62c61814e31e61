"""RQ-k-means: residual quantisation by k-means, level by level (Juang and Gray 1982; as semantic ids: OneRec 2025).

Level 1 clusters the vectors, level k what the codewords before leave of them, so that the first
codes say most: a coarse-to-fine id without a network to train. Codebooks that collapse, the usual
failure of RQ-VAE, cannot: a code that no vector chooses is moved to where the error is largest.
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from fullrank.core.constraints import MOST_ROUNDS, Count
from fullrank.core.log import Progress, quiet
from fullrank.semantic_ids import BookSize, CodesSpec, Levels, Tensors
from fullrank.semantic_ids.kmeans import kmeans, require_vectors, sample_rows
from fullrank.semantic_ids.quantisers import Residual, nearest_codeword


class RqKmeans(CodesSpec):
    """Residual k-means."""

    kind: Literal["rq_kmeans"] = "rq_kmeans"
    levels: Levels = 4
    """K, codes of an item."""
    size: BookSize = 256
    """Codes of a level; not more than there are vectors to learn from."""
    iterations: int = Field(25, ge=1, le=MOST_ROUNDS)
    """Rounds of k-means for each level."""
    points: Count = 65536
    """Vectors to learn from; more are sampled."""

    def fit(self, x: Float[Tensor, "n D"], seed: int, tick: Progress) -> Residual:
        require_vectors(x, self.size, "rq_kmeans")
        generator = torch.Generator().manual_seed(seed)
        mean = x.double().mean(0).float()
        points = x[sample_rows(len(x), max(self.points, self.size), generator)] - mean
        return Residual(residual_kmeans(points, self.levels, self.size, self.iterations, generator, tick), mean)

    def restore(self, tensors: Tensors) -> Residual:
        return Residual.restore(tensors, self.levels, self.size)


def residual_kmeans(
    x: Float[Tensor, "n D"], levels: int, size: int, rounds: int, generator: torch.Generator, tick: Progress = quiet("")
) -> Float[Tensor, "K C D"]:
    """Codebooks by k-means of the vectors, and of what each level leaves of them."""
    books = []
    for level in range(levels):
        books.append(kmeans(x[None], size, rounds, generator)[0])
        x = x - books[-1][nearest_codeword(x, books[-1])]
        tick(level + 1, levels)
    return torch.stack(books)
