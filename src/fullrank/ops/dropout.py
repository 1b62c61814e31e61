"""Dropout that is quick on a CPU, for every model.

On a CPU it takes sixteen random bits a unit, where torch draws a double in one thread: a tenth
of the seconds. The probability of being kept is the nearest multiple of 2^-16, and what is kept is
divided by exactly that. Torch's generator gives the seed of each draw, so that draws are a function
of the place that it was set to. At one seed other units are dropped than by torch's own dropout,
which other devices and compiled graphs take.
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
"""Values of the sixteen bits that a unit draws."""


class Dropout(nn.Module):
    """`nn.Dropout` with this module's draws."""

    def __init__(self, p: float):
        super().__init__()
        self.p = p

    def forward(self, x: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        return drop(x, self.p) if self.training else x


def drop(x: Float[Tensor, "*n"], p: float) -> Float[Tensor, "*n"]:
    """0 with probability p, else x over the probability of being kept."""
    if not p or not draws_here(x):
        return F.dropout(x, p)
    return x * factors(x.shape, p, x.dtype)


def factors(
    shape: Sequence[int], p: float, dtype: torch.dtype, source: np.random.SFC64 | None = None
) -> Float[Tensor, "*n"]:
    """What dropout multiplies by: 0 with probability p, else 1 over the probability of being kept."""
    keep = keep_probability(p)
    return keep_mask(draws(shape, source), keep, torch.empty(tuple(shape), dtype=dtype)).div_(keep)


def draws_here(x: Tensor) -> bool:
    """Whether this module draws the dropout of this tensor, not torch."""
    return x.device.type == "cpu" and not torch.compiler.is_compiling()


def keep_probability(p: float) -> float:
    """The probability of being kept where p is to be dropped."""
    return min(max(round((1 - p) * STEPS), 1), STEPS - 1) / STEPS if p else 1.0


def draws(shape: Sequence[int], source: np.random.SFC64 | None = None) -> Int16[Tensor, "*n"]:
    """Sixteen random bits a unit; `source` None is seeded anew."""
    source = source or np.random.SFC64(new_seed())
    count = math.prod(shape)
    words = source.random_raw(-(-count // 4))
    return torch.from_numpy(words.view(np.int16))[:count].view(tuple(shape))


def new_seed() -> int:
    """A seed drawn by torch's generator."""
    return int(torch.randint(2**62, ()))


def keep_mask(drawn: Int16[Tensor, "*n"], keep: float, out: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """`out`, filled with 1 where a unit is kept and 0 where it is not."""
    return torch.lt(drawn, int(keep * STEPS) - STEPS // 2, out=out)
