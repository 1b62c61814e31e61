"""Recommenders without gradient descent: what every trained model has to beat.

The room's contract: a Spec whose ``build(catalog)`` gives a module that satisfies `batch.Model` and has
``fit(store)``, which fills its buffers from the training events.
"""

from __future__ import annotations

from typing import Protocol

from fullrank.data.batch import Batch, Scorer
from fullrank.data.events.store import Store


class Baseline(Protocol):
    num_items: int
    max_length: int
    allows_empty: bool

    def fit(self, store: Store) -> None: ...
    def answer(self, batch: Batch) -> Scorer: ...
