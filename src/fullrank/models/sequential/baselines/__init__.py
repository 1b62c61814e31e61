"""Recommenders that are fitted at once, most by counting: what every trained model has to beat.

The room's contract: a `BaselineSpec` whose ``build(catalog)`` gives a `Baseline`, a module that is
a `models.Model` and whose ``fit(store)`` fills its buffers from the training events.
"""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Int
from scipy import sparse
from torch import Tensor, nn

from fullrank.core.spec import Spec
from fullrank.data.batch import Batch
from fullrank.data.events.catalog import Catalog
from fullrank.data.events.store import Store
from fullrank.models import DenseScorer, Model


class Baseline(nn.Module, Model):
    """A recommender that is fitted at once."""

    max_length = 1
    allows_empty = True

    @abstractmethod
    def fit(self, store: Store) -> None:
        """Fill the buffers from the training events. Raises `UserError` where the store lacks a column for it."""


class BufferBaseline(Baseline):
    """A baseline that is made with its buffers, which `fit` fills."""

    def __init__(self, num_items: int, max_length: int = 1, **buffers: Tensor):
        super().__init__()
        self.num_items, self.max_length = num_items, max_length
        for name, tensor in buffers.items():
            self.register_buffer(name, tensor)


class FactorisedBaseline(BufferBaseline):
    """A recommender by inner products with a vector of each item."""

    vectors: Tensor
    """[V, D]"""

    def similar(self, items: Int[Tensor, "B"], index: None = None) -> DenseScorer:
        """The cosine of the vectors of items."""
        vectors = F.normalize(self.vectors, dim=-1)
        return DenseScorer(vectors[items], vectors)


class BaselineSpec(Spec):
    """Base of every baseline."""

    @abstractmethod
    def build(self, catalog: Catalog) -> Baseline: ...


def seen_items(store: Store) -> sparse.csr_matrix:
    """[U, V] 1 where a user has trained on an item."""
    users, items, _ = store.trained()
    seen = sparse.csr_matrix((np.ones(len(items)), (users, items)), shape=(store.num_users, store.num_items))
    seen.data[:] = 1.0
    return seen


def counted_once(batch: Batch) -> Bool[Tensor, "B T"]:
    """Whether an event counts where an item counts once: only the last of each item in a history."""
    items = torch.where(batch.valid, batch.items, -1)
    order = items.sort(dim=1, stable=True)
    again = torch.zeros_like(batch.valid)
    # the same item follows in the sorted row
    again[:, :-1] = order.values[:, :-1] == order.values[:, 1:]
    return batch.valid & ~torch.zeros_like(again).scatter_(1, order.indices, again)
