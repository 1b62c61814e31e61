"""Item-to-item by co-occurrence (Sarwar et al. 2001; the session form of Ludewig & Jannach, arXiv:1803.09587).

Two items are alike by how often both occur within `window` events of one history, over the square root of the product
of their counts (cosine). A history scores an item by the likeness to its last events, later ones more. Items that are
like none of them come after all others, by popularity.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor

from fullrank.core.bounds import MOST_LENGTH, MOST_LIST
from fullrank.data.batch import Batch
from fullrank.data.events.catalog import Catalog
from fullrank.data.events.store import Store
from fullrank.models.sequential.baselines import Baseline, BaselineSpec


class ItemToItem(BaselineSpec):
    """Ranks by co-occurrence with the history."""

    kind: Literal["item_to_item"] = "item_to_item"
    window: int = Field(10, ge=1, le=MOST_LENGTH)
    """Events behind an event that count as together with it."""
    neighbours: int = Field(100, ge=1, le=MOST_LIST)
    """Most alike items kept per item."""
    history: int = Field(10, ge=1, le=MOST_LENGTH)
    """Last events of a history that are read."""
    decay: float = Field(0.8, gt=0, le=1)
    """Weight of an event relative to the one after it."""

    def build(self, catalog: Catalog) -> ItemToItemModel:
        return ItemToItemModel(catalog.size, self)


@dataclass(frozen=True)
class Sparse:
    """Scores (above 0) given by pairs of (row, item); all other items score `rest` (below 0)."""

    ids: Int[Tensor, "B P"]
    values: Float[Tensor, "B P"]
    rest: Float[Tensor, "V"]

    @property
    def size(self) -> int:
        return len(self.rest)

    def block(self, low: int, high: int) -> Float[Tensor, "B n"]:
        out = torch.zeros(len(self.ids), high - low, device=self.ids.device)
        inside = (self.ids >= low) & (self.ids < high)
        out.scatter_add_(1, torch.where(inside, self.ids - low, 0), self.values * inside)
        return torch.where(out > 0, out, self.rest[low:high])


class ItemToItemModel(Baseline):
    ids: Tensor
    likeness: Tensor
    counts: Tensor
    """[V] training events of each item."""

    def __init__(self, num_items: int, spec: ItemToItem):
        super().__init__()
        self.num_items, self.spec, self.max_length = num_items, spec, spec.history
        width = spec.neighbours
        self.register_buffer("ids", torch.zeros(num_items, width, dtype=torch.long))
        self.register_buffer("likeness", torch.zeros(num_items, width))
        self.register_buffer("counts", torch.zeros(num_items))

    def fit(self, store: Store) -> None:
        user, items, _ = store.trained()
        left, right, counts = self._pairs(items.astype(np.int64), user)
        share = np.bincount(items, minlength=self.num_items).astype(np.float64)
        value = counts / np.sqrt(share[left] * share[right])
        order = np.lexsort((right, -value, left))  # by item, then the most alike, then the smaller id
        left, right, value = left[order], right[order], value[order]
        first = np.searchsorted(left, np.arange(self.num_items))
        place = np.arange(len(left)) - first[left]
        kept = place < self.ids.shape[1]
        ids, likeness = np.zeros(self.ids.shape, np.int64), np.zeros(self.ids.shape, np.float32)
        ids[left[kept], place[kept]], likeness[left[kept], place[kept]] = right[kept], value[kept]
        self.ids, self.likeness = torch.from_numpy(ids), torch.from_numpy(likeness)
        self.counts = torch.from_numpy(share.astype(np.float32))

    def _pairs(self, items: np.ndarray, user: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(left, right, count) of the items that occur within the window, both orders of every pair.

        Needs about 24 bytes per event and place of the window (1 GB for 4 million events and a window of 10).
        """
        keys = [np.zeros(0, np.int64)]
        for gap in range(1, self.spec.window + 1):
            a, b = items[:-gap], items[gap:]
            together = (user[gap:] == user[:-gap]) & (a != b)
            a, b = a[together], b[together]
            keys.append(np.minimum(a, b) * self.num_items + np.maximum(a, b))  # one number for an unordered pair
        pairs, counts = np.unique(np.concatenate(keys), return_counts=True)
        low, high = np.divmod(pairs, self.num_items)
        return np.concatenate([low, high]), np.concatenate([high, low]), np.concatenate([counts, counts])

    def answer(self, batch: Batch) -> Sparse:
        age = batch.lengths[:, None] - 1 - torch.arange(batch.items.shape[1], device=batch.items.device)
        weight = torch.where(batch.valid, self.spec.decay ** age.clamp_min(0).float(), 0.0)
        values = self.likeness[batch.items] * weight[..., None]
        # Rises with the count, is below every likeness, and single precision tells counts of millions apart.
        rest = -1 / (1 + self.counts)
        return Sparse(self.ids[batch.items].flatten(1), values.flatten(1), rest)

    def similar(self, items: Int[Tensor, "B"], index: None = None) -> Sparse:
        """How often every item occurs together with each of these; -inf where it never does."""
        never = torch.full_like(self.counts, -torch.inf)
        return Sparse(self.ids[items], self.likeness[items], never)
