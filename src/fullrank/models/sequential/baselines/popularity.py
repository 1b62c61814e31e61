"""The most popular items for everybody: training events per item."""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn

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
