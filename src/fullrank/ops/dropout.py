"""Dropout on a CPU by sixteen random bits a unit, where torch draws a double in one thread: a tenth of the seconds.

The probability of being kept is the nearest multiple of 2^-16, and what is kept is divided by exactly that. Torch's
generator gives the seed of each draw, so that draws have the place that it was set to; at one seed other units are
dropped than by torch's own dropout, which other devices take.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int16
from torch import Tensor, nn

STEPS = 1 << 16


class Dropout(nn.Module):
    """As `nn.Dropout`, with these draws."""

    def __init__(self, p: float):
        super().__init__()
        self.p = p

    def forward(self, x: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        return dropout(x, self.p) if self.training else x


def dropout(x: Float[Tensor, "*n"], p: float) -> Float[Tensor, "*n"]:
    """0 with probability p, else x over the probability of being kept."""
    if not p or not drawn_here(x):
        return F.dropout(x, p)
    kept = kept_share(p)
    return x * is_kept(draws(x.shape), kept, torch.empty(x.shape, dtype=x.dtype)).div_(kept)


def drawn_here(x: Tensor) -> bool:
    """Whether the draws of this tensor are ours."""
    return x.device.type == "cpu" and not torch.compiler.is_compiling()


def kept_share(p: float) -> float:
    """The probability of being kept where p is to be dropped."""
    return min(max(round((1 - p) * STEPS), 1), STEPS - 1) / STEPS if p else 1.0


def draws(shape: Sequence[int]) -> Int16[Tensor, "*n"]:
    """Sixteen random bits a unit."""
    count, seed = math.prod(shape), int(torch.randint(2**62, ()))
    words = np.random.SFC64(seed).random_raw(-(-count // 4))
    return torch.from_numpy(words.view(np.int16))[:count].view(tuple(shape))


def is_kept(drawn: Int16[Tensor, "*n"], kept: float, out: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """`out`, filled with 1 where a unit is kept and 0 where it is not."""
    return torch.lt(drawn, int(kept * STEPS) - STEPS // 2, out=out)
