"""Item-to-item by co-occurrence (Sarwar et al. 2001; the session form of Ludewig & Jannach, arXiv:1803.09587).

Two items are alike by how often both occur within `window` events of one history, over the square
root of the product of their counts (cosine). A history scores an item by the likeness to its last
events, later ones more (`item_links.py`).
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from fullrank.core.constraints import Length, ListLength, PositiveShare
from fullrank.data.events.catalog import Catalog
from fullrank.data.events.store import Store
from fullrank.models.sequential.baselines import BaselineSpec
from fullrank.models.sequential.baselines.item_links import ItemLinks


class ItemToItem(BaselineSpec):
    """Ranks by co-occurrence with the history."""

    kind: Literal["item_to_item"] = "item_to_item"
    window: Length = 10
    """Events behind an event that count as together with it."""
    neighbours: ListLength = 100
    """Most alike items kept per item."""
    history: Length = 10
    """Last events of a history that are read."""
    decay: PositiveShare = 0.8
    """Weight of an event relative to the one after it."""

    def build(self, catalog: Catalog) -> ItemToItemModel:
        return ItemToItemModel(catalog.size, self)


class ItemToItemModel(ItemLinks):
    """Links by cosine."""

    spec: ItemToItem

    def fit(self, store: Store) -> None:
        """Count the pairs of items within the window.

        Needs about 24 bytes per event and place of the window (1 GB for 4 million
        events and a window of 10).
        """
        user, items, _ = store.trained()
        items = items.astype(np.int64)
        keys = [np.zeros(0, np.int64)]  # one number for an unordered pair
        for gap in range(1, self.spec.window + 1):
            a, b = items[:-gap], items[gap:]
            together = (user[gap:] == user[:-gap]) & (a != b)
            a, b = a[together], b[together]
            keys.append(np.minimum(a, b) * self.num_items + np.maximum(a, b))
        pairs, times = np.unique(np.concatenate(keys), return_counts=True)
        low, high = np.divmod(pairs, self.num_items)
        left, right = np.concatenate([low, high]), np.concatenate([high, low])  # both orders of every pair
        counts = np.bincount(items, minlength=self.num_items).astype(np.float64)
        self.keep(left, right, np.tile(times, 2) / np.sqrt(counts[left] * counts[right]), counts)
