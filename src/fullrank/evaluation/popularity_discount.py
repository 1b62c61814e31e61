"""Popularity discount: lists re-ranked by score - w log(1 + count), counts being those of the training events.

The cheap rival of every method that trains against popularity bias: no training, one number that buys exposure of rare
items with accuracy. Source: logit adjustment (Menon et al. 2021, arXiv:2007.07314, Sec. 4.1) with weight w for their
tau, and one added to each count, so that items without events have a score. For a softmax over the catalogue w = 1 asks
for items by p(item | history) / p(item), pointwise mutual information; scores of other losses have other scales.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from fullrank.data.batch import Batch, Model, Scorer
from fullrank.inference.batches import index_of, scorer_of
from fullrank.models.sequential.reasoning.budget import Budget


@dataclass(frozen=True)
class DiscountedScorer:
    """Another scorer's scores less a number for each item."""

    inner: Scorer
    discount: Float[Tensor, "V"]

    @property
    def size(self) -> int:
        return self.inner.size

    def block(self, low: int, high: int) -> Float[Tensor, "B n"]:
        return self.inner.block(low, high) - self.discount[low:high]


class PopularityDiscount(nn.Module):
    """A model whose scores are lowered by the popularity of the items (satisfies `batch.Model`)."""

    def __init__(self, model: Model, counts: Shaped[Any, "V"], weight: float):
        super().__init__()
        self.model, self.discount = model, weight * torch.as_tensor(counts).float().log1p()
        self.num_items, self.max_length = model.num_items, model.max_length
        self.allows_empty: bool = getattr(model, "allows_empty", False)
        self.reads_times: bool = getattr(model, "reads_times", True)
        self.reasoner: Any = getattr(model, "reasoner", None)
        self.train(getattr(model, "training", False))

    def index_items(self) -> Any | None:
        return index_of(self.model)

    def answer(self, batch: Batch, *, index: Any | None = None, budget: Budget | None = None) -> Scorer:
        discount = self.discount.to(batch.items.device)
        return DiscountedScorer(scorer_of(self.model, batch, index, budget), discount)
