"""Histories as sets: which users have which items, and which events of a history count when an item counts once."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Bool
from scipy import sparse
from torch import Tensor

from fullrank.data.batch import Batch
from fullrank.data.events.store import Store


def seen_items(store: Store) -> sparse.csr_matrix:
    """[U, V] 1 where a user has trained on an item."""
    users, items, _ = store.trained()
    found = sparse.csr_matrix((np.ones(len(items)), (users, items)), shape=(store.num_users, store.num_items))
    found.data[:] = 1.0
    return found


def comes_again(batch: Batch) -> Bool[Tensor, "B T"]:
    """Whether the item of an event comes again behind it: different items count once, at their last event."""
    items = torch.where(batch.valid, batch.items, -1)
    order = items.sort(dim=1, stable=True)
    again = torch.zeros_like(batch.valid)
    again[:, :-1] = order.values[:, :-1] == order.values[:, 1:]
    return torch.zeros_like(again).scatter_(1, order.indices, again)
