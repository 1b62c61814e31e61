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
from torch import Tensor

from fullrank.data.batch import Batch
from fullrank.inference.wrapped_model import WrappedModel
from fullrank.models import Model, Scorer


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


class PopularityDiscount(WrappedModel):
    """A model whose scores are lowered by the popularity of the items."""

    def __init__(self, model: Model, counts: Shaped[Any, "V"], weight: float):
        super().__init__(model)
        self.discount = weight * torch.as_tensor(counts).float().log1p()

    def scored(self, scorer: Scorer, batch: Batch) -> Scorer:
        return DiscountedScorer(scorer, self.discount.to(batch.items.device))
