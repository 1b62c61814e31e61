"""Vectors for items that were never trained: means of those of like items."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from fullrank.data.events.catalog import Catalog


class LikeItems:
    """For each of `wanted` the stretch of `known` items, in order of their value in `like`, that it is the mean of.

    All known items where `like` is null, where none has the same value, and where the value is missing.
    """

    def __init__(self, catalog: Catalog, known: Int[np.ndarray, "n"], wanted: Int[np.ndarray, "m"], like: str | None):
        codes = np.zeros(catalog.size, np.int64) if like is None else np.asarray(catalog.categorical(like).codes)
        self.order = known[np.argsort(codes[known], kind="stable")]
        ranked = codes[self.order]
        low, high = np.searchsorted(ranked, codes[wanted]), np.searchsorted(ranked, codes[wanted], side="right")
        self.alone = (high == low) | (codes[wanted] == 0)
        """[m], those that are the mean of all known items."""
        self.low, self.high = np.where(self.alone, 0, low), np.where(self.alone, len(known), high)

    def mean(self, table: Float[Tensor, "V *D"]) -> Float[Tensor, "m *D"]:
        """The means of rows of a table."""
        before = torch.zeros(len(self.order) + 1, *table.shape[1:], dtype=torch.float64)
        before[1:] = table.double()[torch.from_numpy(self.order)].cumsum(0)
        low, high = torch.from_numpy(self.low), torch.from_numpy(self.high)
        count = (high - low).view(-1, *[1] * (table.ndim - 1))
        return ((before[high] - before[low]) / count).to(table.dtype)
