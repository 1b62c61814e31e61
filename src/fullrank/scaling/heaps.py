"""Heaps' law: the number of different things seen is a power of the number of things seen.

Heaps, "Information Retrieval: Computational and Theoretical Aspects" (1978), Sec. 7.5, of words in a text; here items
among interactions. An exponent of 1 means that every interaction brings a new item, 0 that none does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

LEAST = 3
"""Points that a law is fitted to; two always lie on one."""


@dataclass(frozen=True)
class Heaps:
    """items = coefficient * interactions^exponent, least squares in logarithms."""

    coefficient: float
    exponent: float
    r_squared: float
    """Of the logarithms; NaN where the number of items is the same at all points."""
    points: int

    def predict(self, interactions: Int[np.ndarray, "N"]) -> Float[np.ndarray, "N"]:
        """Items at numbers of interactions. It describes the points; beyond them nothing supports it."""
        return self.coefficient * interactions.astype(float) ** self.exponent


def heaps(interactions: Int[np.ndarray, "P"], items: Int[np.ndarray, "P"]) -> Heaps | None:
    """The line through the logarithms; None for fewer than `LEAST` different numbers of interactions."""
    if len(np.unique(interactions)) < LEAST:
        return None
    x, y = np.log(interactions), np.log(items)
    away = x - x.mean()
    exponent = float(away @ y / (away @ away))
    constant = float(y.mean() - exponent * x.mean())
    spread = float(((y - y.mean()) ** 2).sum())
    left = float(((y - constant - exponent * x) ** 2).sum())
    return Heaps(math.exp(constant), exponent, 1 - left / spread if np.ptp(items) else math.nan, len(x))
