"""Diversity: how different the items of one list are, by a category of theirs or by lists of categories."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int

from fullrank.metrics import MetricInputs

CELLS = 1 << 22
"""Comparisons of two categories held at once."""


def ild(table: MetricInputs, k: int) -> Float[np.ndarray, "U"]:
    """Intra-list diversity: mean distance of all pairs of items in the first k places (Smyth, McClave 2001; Ziegler et
    al. 2005).

    ILD = 2 / (n (n - 1)) * sum over pairs of d(i, j), with the Jaccard distance d = 1 - |A and B| / |A or B| of the
    items' categories: of one category each, 0 where it is the same and 1 where not. Items without a category have no
    distance and are left out; a list with fewer than two others has 0.
    """
    assert table.ids is not None and table.categories is not None, "this metric reads lists and categories"
    codes = table.categories
    chunk = max(CELLS // codes.shape[1] ** 2, 1)
    parts = [_ild(table.ids[low : low + chunk, :k], codes) for low in range(0, len(table.ids), chunk)]
    return np.concatenate([*parts, np.zeros(0)])


def _ild(ids: Int[np.ndarray, "U k"], codes: Int[np.ndarray, "V L"]) -> Float[np.ndarray, "U"]:
    size = (codes > 0).sum(1)
    counts = (ids >= 0) & (size[ids] > 0)  # an empty place (-1) reads the last item, and is masked
    total, pairs = np.zeros(len(ids)), np.zeros(len(ids))
    for i in range(1, ids.shape[1]):
        for j in range(i):
            both = counts[:, i] & counts[:, j]
            a, b = codes[ids[:, i]], codes[ids[:, j]]
            shared = ((a[:, :, None] == b[:, None, :]) & (a > 0)[:, :, None]).sum((1, 2))
            union = size[ids[:, i]] + size[ids[:, j]] - shared
            total += np.where(both, 1 - shared / np.maximum(union, 1), 0)
            pairs += both
    return total / np.maximum(pairs, 1)
