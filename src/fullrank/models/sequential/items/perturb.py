"""Noise on codes: each digit is masked, replaced by another of its codebook, or left (FAIR, Eq. 8).

An item id is a code of one digit from a codebook of all items. What happens to a digit is a function of seed, step, row
and place in the row: the same on every shard and resume, and not changed by how long the other rows are.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fullrank.core.random import uniform_draws
from fullrank.data.batch import Batch

APART = 0x4E01_5E00
"""Added to the seed: sets these draws apart from those of negatives and of covered places."""


@dataclass(frozen=True)
class Noise:
    """How much of a batch's items is lost, and the place that the draws are a function of."""

    mask: float
    """Chance that a digit is masked."""
    substitute: float
    """Chance that it becomes another digit of its codebook, each as likely; with `mask` at most 1."""
    rows: Int[Tensor, "B"]
    """Row ids."""
    seed: int = 0
    step: int = 0
    pad: Float[Tensor, "e"] | None = None
    """The vector of a masked digit (of items without codes: of a masked item); None is zeros."""

    @staticmethod
    def on(batch: Batch, mask: float, substitute: float, pad: Float[Tensor, "e"] | None = None) -> Noise:
        """Noise at the place of a batch."""
        return Noise(mask, substitute, batch.row_ids, batch.seed + APART, batch.step, pad)

    def masked(self, vectors: Float[Tensor, "*n e"], kept: Bool[Tensor, "*n"]) -> Float[Tensor, "*n e"]:
        """The vectors that are kept, and the padding vector in place of the others."""
        left = vectors * kept[..., None]
        return left if self.pad is None else left + ~kept[..., None] * self.pad


def perturb(
    codes: Int[Tensor, "B T K"], sizes: tuple[int, ...], noise: Noise
) -> tuple[Int[Tensor, "B T K"], Bool[Tensor, "B T K"]]:
    """The codes with some digits replaced, and where they are kept; false where a digit is masked.

    Digits of level k are 0 .. sizes[k] - 1. A codebook of one has no other digit: there nothing is replaced.
    """
    _, t, k = codes.shape
    size = torch.tensor(sizes, device=codes.device)
    draw = uniform_draws(noise.seed, noise.step, noise.rows, 2 * t * k).unflatten(1, (t, k, 2))
    what, which = draw.unbind(-1)
    kept = what >= noise.mask
    other = (codes + 1 + (which * (size - 1)).long()) % size
    return torch.where(kept & (what < noise.mask + noise.substitute), other, codes), kept


def perturb_reference(
    codes: Int[Tensor, "B T K"], sizes: tuple[int, ...], noise: Noise
) -> tuple[Int[Tensor, "B T K"], Bool[Tensor, "B T K"]]:
    """The reference: digit by digit, with the list of the others written out."""
    found, kept = codes.clone(), torch.ones_like(codes, dtype=torch.bool)
    b, t, k = codes.shape
    for row in range(b):
        draws = iter(uniform_draws(noise.seed, noise.step, noise.rows[row : row + 1], 2 * t * k)[0].tolist())
        for place in range(t):
            for digit in range(k):
                what, which, own = next(draws), next(draws), int(codes[row, place, digit])
                others = [*range(own + 1, sizes[digit]), *range(own)]
                if what < noise.mask:
                    kept[row, place, digit] = False
                elif what < noise.mask + noise.substitute and others:
                    found[row, place, digit] = others[int(which * len(others))]
    return found, kept
