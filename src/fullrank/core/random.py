"""Random numbers that are a function of their place (seed, step, row, draw): equal on every shard and after a resume.

A place is hashed by SplitMix64's finaliser (Steele, Lea and Flood, OOPSLA 2014,
doi:10.1145/2660193.2660195). Three streams, told apart by how a place enters the hash; stores,
negatives and sampled metrics rest on every bit of them:

    uniform_at       numpy: any number of coordinates, one hash for each (subsets, candidates of the evaluation)
    uniform_of_rows  numpy: row numbers alone, one hash (random splits; `bits_of_rows` picks the rows of quantiles)
    uniform_draws    torch, on any device: several draws for each row of a step (negatives, masks, noise)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float64, Int, Int64, Integer, UInt64

if TYPE_CHECKING:
    from torch import Tensor

# Constants of SplitMix64 as signed 64-bit integers: torch multiplies no unsigned ones.
_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
_FIRST = 0xBF58476D1CE4E5B9 - (1 << 64)
_SECOND = 0x94D049BB133111EB - (1 << 64)
_UNIT = 2.0**-53
"""Makes 53 bits, all that a double holds, a number in [0, 1)."""


def uniform_at(
    seed: int, first: Integer[np.ndarray, "N"], *others: Integer[np.ndarray, "N"] | np.uint64
) -> Float64[np.ndarray, "N"]:
    """A number in [0, 1) for each tuple of whole coordinates of at least 0; scalars broadcast."""
    state = np.full(len(first), _signed(seed), np.int64)
    for coordinate in (first, *others):
        state = finalise((state ^ np.asarray(coordinate).astype(np.int64)) + _GOLDEN)
    return shifted(state, 11) * _UNIT


def uniform_of_rows(seed: int, rows: Int64[np.ndarray, "R"]) -> Float64[np.ndarray, "R"]:
    """A number in [0, 1) for each row number."""
    return shifted(bits_of_rows(seed, rows).view(np.int64), 11) * _UNIT


def bits_of_rows(seed: int, rows: Int64[np.ndarray, "R"]) -> UInt64[np.ndarray, "R"]:
    """64 well-mixed bits for each row number."""
    start = finalise(np.array([_signed(seed)]) + _GOLDEN)
    return finalise(rows * _GOLDEN + start).view(np.uint64)


def uniform_draws(seed: int, step: int, rows: Int[Tensor, "R"], draws: int) -> Float64[Tensor, "R draws"]:
    """`draws` numbers in [0, 1) for each row id, whatever the other rows; seeds modulo 2^63."""
    import torch

    state = finalise(torch.tensor(seed % 2**63, dtype=torch.int64, device=rows.device) * _GOLDEN + step)
    row = finalise(state ^ (rows.long() * _FIRST))
    count = torch.arange(1, draws + 1, dtype=torch.int64, device=rows.device)
    return shifted(finalise(row[:, None] + count * _GOLDEN), 11).double() * _UNIT


def finalise(x: Any) -> Any:
    """SplitMix64's finaliser on signed integers that wrap: the same bits in numpy and torch."""
    x = (x ^ shifted(x, 30)) * _FIRST
    x = (x ^ shifted(x, 27)) * _SECOND
    return x ^ shifted(x, 31)


def shifted(x: Any, by: int) -> Any:
    """Logical shift to the right: that of signed integers would carry the sign along."""
    return (x >> by) & ((1 << (64 - by)) - 1)


def _signed(seed: int) -> int:
    """A seed modulo 2^64, as the signed integer of the same bits."""
    return (seed + (1 << 63)) % (1 << 64) - (1 << 63)
