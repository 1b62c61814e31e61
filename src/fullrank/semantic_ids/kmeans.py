"""k-means (Lloyd 1982), for several groups of vectors at once, seeded, with every code kept in use.

The first codewords are vectors drawn by k-means++ (Arthur and Vassilvitskii 2007) from a sample. A
code that no vector chooses takes the vector that lies farthest from its codeword; where all vectors
lie on codewords it stays empty.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from fullrank.core.errors import UserError

SAMPLE = 16
"""Vectors per code among which the first codewords are drawn."""
ROWS = 8192
"""Vectors that are assigned to codewords at once."""
MOST_MAGNITUDE = 1e12
"""Values of a vector: sums of their squares, over all dimensions and vectors, stay finite in float32."""


def kmeans(x: Float[Tensor, "G n d"], size: int, iterations: int, generator: torch.Generator) -> Float[Tensor, "G C d"]:
    """`size` codewords for each of G groups. Needs n >= size."""
    return lloyd(x, plus_plus(x, size, generator), iterations)


def plus_plus(x: Float[Tensor, "G n d"], size: int, generator: torch.Generator) -> Float[Tensor, "G C d"]:
    """First codewords: each drawn with a chance that grows with the squared distance to those before."""
    groups, rows = x.shape[:2]
    chosen = torch.randperm(rows, generator=generator)[: max(size, min(rows, SAMPLE * size))]
    x = x[:, chosen]
    every = torch.arange(groups)
    words = torch.empty(groups, size, x.shape[2])
    words[:, 0] = x[:, 0]
    far = (x - words[:, :1]).pow(2).sum(-1)
    for i in range(1, size):
        odds = far.double().cumsum(1)
        # a place on the running sum of squared distances, and the vector whose distance covers it
        draw = torch.rand(groups, 1, generator=generator, dtype=torch.float64) * odds[:, -1:]
        drawn = torch.searchsorted(odds, draw, right=True).clamp_max(x.shape[1] - 1).squeeze(1)
        words[:, i] = x[every, drawn]
        far = torch.minimum(far, (x - words[:, i : i + 1]).pow(2).sum(-1))
    return words


def lloyd(x: Float[Tensor, "G n d"], words: Float[Tensor, "G C d"], iterations: int) -> Float[Tensor, "G C d"]:
    """The codewords after some rounds of: each vector to its nearest, each codeword
    to the mean of its vectors."""
    for _ in range(iterations):
        code, far = assign(x, words)
        words = means(x, code, words)
        # each unused codeword moves onto one of the vectors that are worst described
        for group in range(len(x)):
            empty = (torch.bincount(code[group], minlength=words.shape[1]) == 0).nonzero().squeeze(1)
            if len(empty):
                revive(x[group], far[group] + x[group].pow(2).sum(-1) / 2, words[group], empty)
    return words


def assign(
    x: Float[Tensor, "G n d"], words: Float[Tensor, "G C d"]
) -> tuple[Int64[Tensor, "G n"], Float[Tensor, "G n"]]:
    """Each vector's nearest codeword, and half the squared distance without the vector's own square."""
    half = words.pow(2).sum(-1)[:, None] / 2
    parts = [torch.baddbmm(half, part, words.mT, alpha=-1).min(-1) for part in x.split(ROWS, 1)]
    return torch.cat([p.indices for p in parts], 1), torch.cat([p.values for p in parts], 1)


def means(
    x: Float[Tensor, "G n d"], code: Int64[Tensor, "G n"], words: Float[Tensor, "G C d"]
) -> Float[Tensor, "G C d"]:
    """Mean of each code's vectors; a code without any keeps its codeword."""
    groups, size, width = words.shape
    flat = (code + torch.arange(groups)[:, None] * size).flatten()
    total = torch.zeros(groups * size, width, dtype=x.dtype).index_add_(0, flat, x.reshape(-1, width))
    count = torch.bincount(flat, minlength=groups * size)[:, None]
    return torch.where(count > 0, total / count.clamp_min(1), words.reshape(-1, width)).view(words.shape)


def revive(x: Float[Tensor, "n d"], error: Float[Tensor, "n"], words: Float[Tensor, "C d"], empty: Tensor) -> int:
    """Put the codewords of these codes onto the vectors of the largest errors, in place; how many were moved.

    A vector that lies on its codeword already takes none.
    """
    worst = error.topk(min(len(empty), len(error)))
    use = worst.values > 1e-9 * float(error.mean().clamp_min(1e-30))
    moved = int(use.sum())
    words[empty[:moved]] = x[worst.indices[use]]
    return moved


def require_vectors(x: Float[Tensor, "n D"], size: int, name: str) -> None:
    """Raise `UserError` for vectors that the codes of a level cannot be learned from.

    That is so of fewer vectors than codes, and of values whose squares do not add up in float32.
    """
    if len(x) < size:
        smaller = 1 << (max(len(x) // 4, 1).bit_length() - 1)
        raise UserError(
            f"{name} has {size:,} codes in a level and only {len(x):,} vectors to learn them from; set "
            f"learner.size={smaller}",
            code="too-few-vectors",
        )
    largest = float(x.abs().max())
    if not largest <= MOST_MAGNITUDE:  # of NaN too
        raise UserError(
            f"{name} learns from vectors of values up to {MOST_MAGNITUDE:g}, and the largest here is {largest:g}: "
            "scale them",
            code="vectors-too-large",
        )


def sample_rows(count: int, points: int, generator: torch.Generator) -> Int64[Tensor, "M"]:
    """Numbers of at most `points` of `count` rows, drawn without repetition, in their order."""
    if count <= points:
        return torch.arange(count)
    return torch.randperm(count, generator=generator)[:points].sort().values
