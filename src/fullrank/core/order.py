"""Rows in order of whole numbers, equal ones as they stood: `np.lexsort`, by one sort of numbers that hold key and row.

numpy sorts plain 64-bit numbers with vector instructions, ten times as fast as it sorts rows by a key.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Int64, Shaped

_BITS = 63


def stable_order(*keys: Shaped[np.ndarray, "n"]) -> Int64[np.ndarray, "n"]:
    """The rows in order of the first key, those where it is equal by the second, and so on."""
    rows = len(keys[0])
    row_bits = max(rows - 1, 0).bit_length()
    if rows == 0 or not all(key.dtype.kind in "iu" for key in keys):
        return np.lexsort(keys[::-1])
    lows = [int(key.min()) for key in keys]
    widths = [(int(key.max()) - low).bit_length() for key, low in zip(keys, lows, strict=True)]
    if sum(widths) + row_bits <= _BITS:
        packed = np.zeros(rows, np.int64)
        for key, low, width in zip(keys, lows, widths, strict=True):
            packed <<= width
            wide = key if key.dtype.kind == "u" else key.astype(np.int64)
            packed |= (wide - wide.dtype.type(low)).astype(np.int64)
        packed <<= row_bits
        packed |= np.arange(rows)
        packed.sort()
        packed &= (1 << row_bits) - 1
        return packed
    if len(keys) == 1:
        return np.argsort(keys[0], kind="stable")
    order = stable_order(*keys[1:])
    return order[stable_order(keys[0][order])]
