"""Popularity: the same items for everybody, by their training events, counted alike or the recent ones more.

`popularity` with `days` counts the events of the last days before the newest training event
alone, whenever a list is asked for: no event that was held out is counted. Under leave-one-out
others' training events may be newer than a test event (the store's manifest says how many); with
a split by time they are not.

`recency` counts each event half as much for every `half_life_days` between it and
the last training event.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor

from fullrank.core.checks import known_times
from fullrank.core.spec import later
from fullrank.data.batch import Batch
from fullrank.data.events.catalog import Catalog
from fullrank.data.events.store import Store
from fullrank.models import DenseScorer
from fullrank.models.sequential.baselines import BaselineSpec, BufferBaseline


class Popularity(BaselineSpec):
    """Ranks items by their number of training events."""

    kind: Literal["popularity"] = "popularity"
    days: float | None = later(None, gt=0, le=1e9)
    """Days before the newest training event whose events count; null counts all."""

    def build(self, catalog: Catalog) -> PopularityModel:
        return PopularityModel(catalog.size, self.days)


class PopularityModel(BufferBaseline):
    counts: Tensor
    """[V] training events."""

    def __init__(self, num_items: int, days: float | None = None):
        super().__init__(num_items, counts=torch.zeros(num_items))
        self.days = days

    def fit(self, store: Store) -> None:
        counts = store.catalog.popularity
        if self.days is not None:  # of the events in (newest - days, newest]
            items, times = _timed(store, "popularity of the last days", "leave days out")
            recent = times.max() - times < self.days * 86_400
            counts = np.bincount(items[recent], minlength=self.num_items)
        self.counts = torch.as_tensor(counts, dtype=torch.float32)

    def answer(self, batch: Batch) -> DenseScorer:
        return _same_for_all(self.counts, batch)


class Recency(BaselineSpec):
    """Ranks items by their number of training events, recent ones counting more (exponential decay)."""

    kind: Literal["recency"] = "recency"
    half_life_days: float = Field(30.0, gt=0, le=1e9)
    """Days in which an event loses half its weight."""

    def build(self, catalog: Catalog) -> RecencyModel:
        return RecencyModel(catalog.size, self)


class RecencyModel(BufferBaseline):
    mass: Tensor
    """[V] training events, each halved by every half-life of its age."""

    def __init__(self, num_items: int, spec: Recency):
        super().__init__(num_items, mass=torch.zeros(num_items))
        self.half_life = spec.half_life_days * 86_400

    def fit(self, store: Store) -> None:
        items, times = _timed(store, "recency", "take popularity")
        weight = 0.5 ** ((times.max() - times) / self.half_life)
        mass = np.bincount(items, weights=weight, minlength=self.num_items)
        self.mass = torch.as_tensor(mass, dtype=torch.float32)

    def answer(self, batch: Batch) -> DenseScorer:
        return _same_for_all(self.mass, batch)


def _same_for_all(scores: Float[Tensor, "V"], batch: Batch) -> DenseScorer:
    """These scores of items for every history."""
    return DenseScorer(torch.ones(len(batch.items), 1, device=scores.device), scores[:, None])


def _timed(store: Store, what: str, remedy: str) -> tuple[Int[np.ndarray, "n"], Int[np.ndarray, "n"]]:
    """Items and times of the training events. Raises `UserError` for a store without times."""
    _, items, times = store.trained()
    return items, known_times(
        times, what, "this store was prepared without a time column", f"{remedy}, or prepare it with one"
    )
