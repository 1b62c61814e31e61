"""Random numbers that are a function of their place, in numpy (`place_random` is the same idea in torch).

SplitMix64's finaliser (Steele, Lea and Flood, OOPSLA 2014), applied after each part of the place is mixed in.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float


def uniform(seed: int, first: np.ndarray, *parts: np.ndarray | np.uint64) -> Float[np.ndarray, "N"]:
    """In [0, 1): a hash of the seed and of each place, whose parts are numbers of at least 0."""
    state = np.full(len(first), seed % (1 << 64), dtype=np.uint64)
    for part in (first, *parts):
        state = _mixed(state ^ np.asarray(part, dtype=np.uint64))
    return (state >> np.uint64(11)) * 2.0**-53


def _mixed(state: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        state = state + np.uint64(0x9E3779B97F4A7C15)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return state ^ (state >> np.uint64(31))
