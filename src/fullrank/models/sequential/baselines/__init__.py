"""Recommenders without gradient descent: what every trained model has to beat.

The room's contract: a `BaselineSpec` whose ``build(catalog)`` gives a `Baseline`, a module that satisfies `batch.Model`
and whose ``fit(store)`` fills its buffers from the training events.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import nn

from fullrank.core.spec import Spec
from fullrank.data.batch import Batch, Scorer
from fullrank.data.events.catalog import Catalog
from fullrank.data.events.store import Store


class Baseline(nn.Module, ABC):
    """A recommender that counts."""

    num_items: int
    max_length: int = 1
    """Last events of a history that are read."""
    allows_empty = True
    """Whether it recommends to a user without any event."""

    @abstractmethod
    def fit(self, store: Store) -> None:
        """Count the training events. Raises `UserError` where the store lacks what it counts by."""

    @abstractmethod
    def answer(self, batch: Batch) -> Scorer:
        """What scores the items for each history (`data.batch.Model`)."""


class BaselineSpec(Spec):
    """Base of every baseline."""

    @abstractmethod
    def build(self, catalog: Catalog) -> Baseline: ...
