"""Item-to-item by co-occurrence (Sarwar et al. 2001; the session form of Ludewig & Jannach, arXiv:1803.09587).

Two items are alike by how often both occur within `window` events of one history, over the square root of the product
of their counts (cosine). A history scores an item by the likeness to its last events, later ones more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor, nn

from fullrank.batch import Batch
from fullrank.data.catalog import Catalog
from fullrank.data.pack import Store
from fullrank.spec import Spec


class ItemToItem(Spec):
    """Ranks by co-occurrence with the history."""

    kind: Literal["item_to_item"] = "item_to_item"
    window: int = Field(10, ge=1)
    """Events behind an event that count as together with it."""
    neighbours: int = Field(100, ge=1)
    """Most alike items kept per item."""
    history: int = Field(10, ge=1)
    """Last events of a history that are read."""
    decay: float = Field(0.8, gt=0, le=1)
    """Weight of an event relative to the one after it."""

    def build(self, catalog: Catalog) -> ItemToItemModel:
        return ItemToItemModel(catalog.size, self)


@dataclass(frozen=True)
class Sparse:
    """Scores given by pairs of (row, item); all other items score 0."""

    ids: Int[Tensor, "B P"]
    values: Float[Tensor, "B P"]
    size: int

    def block(self, low: int, high: int) -> Float[Tensor, "B n"]:
        out = torch.zeros(len(self.ids), high - low, device=self.ids.device)
        inside = (self.ids >= low) & (self.ids < high)
        return out.scatter_add_(1, torch.where(inside, self.ids - low, 0), self.values * inside)


class ItemToItemModel(nn.Module):
    allows_empty = True
    ids: Tensor
    likeness: Tensor

    def __init__(self, num_items: int, spec: ItemToItem):
        super().__init__()
        self.num_items, self.spec, self.max_length = num_items, spec, spec.history
        width = spec.neighbours
        self.register_buffer("ids", torch.zeros(num_items, width, dtype=torch.long))
        self.register_buffer("likeness", torch.zeros(num_items, width))

    def fit(self, store: Store) -> None:
        user = np.repeat(np.arange(store.num_users), np.diff(store.offsets))
        trained = np.arange(store.num_events) < np.asarray(store.bounds[:, 0])[user]
        items, user = np.asarray(store.items)[trained].astype(np.int64), user[trained]
        pairs, counts = self._pairs(items, user)
        left, right = np.divmod(pairs, self.num_items)
        share = np.bincount(items, minlength=self.num_items).astype(np.float64)
        value = counts / np.sqrt(share[left] * share[right])
        order = np.lexsort((right, -value, left))
        left, right, value = left[order], right[order], value[order]
        first = np.searchsorted(left, np.arange(self.num_items))
        place = np.arange(len(left)) - first[left]
        kept = place < self.ids.shape[1]
        ids, likeness = np.zeros(self.ids.shape, np.int64), np.zeros(self.ids.shape, np.float32)
        ids[left[kept], place[kept]], likeness[left[kept], place[kept]] = right[kept], value[kept]
        self.ids, self.likeness = torch.from_numpy(ids), torch.from_numpy(likeness)

    def _pairs(self, items: np.ndarray, user: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Both orders of every pair within the window as one number each, and how often it occurs."""
        keys, counts = np.zeros(0, np.int64), np.zeros(0, np.int64)
        for gap in range(1, self.spec.window + 1):
            together = (user[gap:] == user[:-gap]) & (items[gap:] != items[:-gap])
            a, b = items[:-gap][together], items[gap:][together]
            fresh, times = np.unique(
                np.concatenate([a * self.num_items + b, b * self.num_items + a]), return_counts=True
            )
            keys, place = np.unique(np.concatenate([keys, fresh]), return_inverse=True)
            counts = np.bincount(place, weights=np.concatenate([counts, times]), minlength=len(keys)).astype(np.int64)
        return keys, counts

    def answer(self, batch: Batch) -> Sparse:
        age = batch.lengths[:, None] - 1 - torch.arange(batch.items.shape[1], device=batch.items.device)
        weight = torch.where(batch.valid, self.spec.decay ** age.clamp_min(0).float(), 0.0)
        values = self.likeness[batch.items] * weight[..., None]
        return Sparse(self.ids[batch.items].flatten(1), values.flatten(1), self.num_items)
