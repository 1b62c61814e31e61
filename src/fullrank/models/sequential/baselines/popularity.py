"""The most popular items for everybody: training events per item."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import nn

from fullrank.core.errors import UserError
from fullrank.core.spec import Spec
from fullrank.data.batch import Batch, DenseScorer
from fullrank.data.events.catalog import Catalog
from fullrank.data.events.store import Store


class Popularity(Spec):
    """Ranks by number of training events."""

    kind: Literal["popularity"] = "popularity"

    def build(self, catalog: Catalog) -> PopularityModel:
        return PopularityModel(catalog.size)


class PopularityModel(nn.Module):
    max_length = 1
    allows_empty = True

    def __init__(self, num_items: int):
        super().__init__()
        self.num_items = num_items
        self.register_buffer("counts", torch.zeros(num_items))

    def fit(self, store: Store) -> None:
        self.counts = torch.as_tensor(store.catalog.popularity, dtype=torch.float32)

    def answer(self, batch: Batch) -> DenseScorer:
        one = torch.ones(len(batch.items), 1, device=self.counts.device)
        return DenseScorer(one, self.counts[:, None])


class Recency(Spec):
    """Ranks by time-decayed number of training events."""

    kind: Literal["recency"] = "recency"
    half_life_days: float = Field(30.0, gt=0)
    """Days in which an event loses half its weight."""

    def build(self, catalog: Catalog) -> RecencyModel:
        return RecencyModel(catalog.size, self)


class RecencyModel(nn.Module):
    max_length = 1
    allows_empty = True

    def __init__(self, num_items: int, spec: Recency):
        super().__init__()
        self.num_items, self.half_life = num_items, spec.half_life_days * 86_400
        self.register_buffer("mass", torch.zeros(num_items))

    def fit(self, store: Store) -> None:
        _, items, times = store.trained()
        if times is None:
            raise UserError("recency needs event times; this store was prepared without a time column")
        weight = 0.5 ** ((times.max() - times) / self.half_life)
        mass = np.bincount(items, weights=weight, minlength=self.num_items)
        self.mass = torch.as_tensor(mass, dtype=torch.float32)

    def answer(self, batch: Batch) -> DenseScorer:
        one = torch.ones(len(batch.items), 1, device=self.mass.device)
        return DenseScorer(one, self.mass[:, None])
