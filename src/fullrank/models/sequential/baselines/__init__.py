"""Recommenders that are fitted at once, most by counting: what every trained model has to beat.

The room's contract: a `BaselineSpec` whose ``build(catalog)`` gives a `Baseline`, a module that is a `models.Model`
and whose ``fit(store)`` fills its buffers from the training events.
"""

from __future__ import annotations

from abc import abstractmethod

from torch import nn

from fullrank.core.spec import Spec
from fullrank.data.events.catalog import Catalog
from fullrank.data.events.store import Store
from fullrank.models import Model


class Baseline(nn.Module, Model):
    """A recommender that counts."""

    max_length = 1
    allows_empty = True

    @abstractmethod
    def fit(self, store: Store) -> None:
        """Count the training events. Raises `UserError` where the store lacks what it counts by."""


class BaselineSpec(Spec):
    """Base of every baseline."""

    @abstractmethod
    def build(self, catalog: Catalog) -> Baseline: ...
