"""Noise on codes: each digit is masked, replaced by another of its codebook, or left (FAIR, Eq. 8).

An item without codes counts as one digit, its id, of a codebook of all items. What happens to a
digit is a function of seed, step, row and place in the row: the same on every shard and resume, and
not changed by how long the other rows are.
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
        """The noise of a batch: its draws are a function of the batch's seed, step and rows."""
        return Noise(mask, substitute, batch.row_ids, batch.seed + APART, batch.step, pad)

    def masked(self, vectors: Float[Tensor, "*n e"], unmasked: Bool[Tensor, "*n"]) -> Float[Tensor, "*n e"]:
        """The vectors that are not masked, and the padding vector in place of the others."""
        left = vectors * unmasked[..., None]
        return left if self.pad is None else left + ~unmasked[..., None] * self.pad


def perturb(
    codes: Int[Tensor, "B T K"], sizes: tuple[int, ...], noise: Noise
) -> tuple[Int[Tensor, "B T K"], Bool[Tensor, "B T K"]]:
    """The codes with some digits replaced, and a mask that is false where a digit is masked.

    Digits of level k are 0 .. sizes[k] - 1. A codebook of one has no other digit:
    there nothing is replaced.
    """
    _, t, k = codes.shape
    size = torch.tensor(sizes, device=codes.device)
    draw = uniform_draws(noise.seed, noise.step, noise.rows, 2 * t * k).unflatten(1, (t, k, 2))
    fate, pick = draw.unbind(-1)
    unmasked = fate >= noise.mask
    # 1 to size - 1 further around the codebook, so that no digit becomes itself
    other = (codes + 1 + (pick * (size - 1)).long()) % size
    return torch.where(unmasked & (fate < noise.mask + noise.substitute), other, codes), unmasked


def perturb_reference(
    codes: Int[Tensor, "B T K"], sizes: tuple[int, ...], noise: Noise
) -> tuple[Int[Tensor, "B T K"], Bool[Tensor, "B T K"]]:
    """The reference: digit by digit, with the list of the others written out."""
    changed, unmasked = codes.clone(), torch.ones_like(codes, dtype=torch.bool)
    b, t, k = codes.shape
    for row in range(b):
        draws = iter(uniform_draws(noise.seed, noise.step, noise.rows[row : row + 1], 2 * t * k)[0].tolist())
        for position in range(t):
            for digit in range(k):
                fate, pick, code = next(draws), next(draws), int(codes[row, position, digit])
                others = [*range(code + 1, sizes[digit]), *range(code)]
                if fate < noise.mask:
                    unmasked[row, position, digit] = False
                elif fate < noise.mask + noise.substitute and others:
                    changed[row, position, digit] = others[int(pick * len(others))]
    return changed, unmasked
