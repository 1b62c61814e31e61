"""Models that are evaluated under an adjustment: without some events of each history, or with popular items discounted.

Event dropout hides a share of the events of each history (robustness; PLR, Sec. 6.5.1, Figure 3).
Event j (from the start of user u's whole history) is hidden where a hash of (seed, u, j) falls
below the share, so the events of a smaller share are among those of a larger, two runs lose the
same ones, and nothing depends on batches. A user who would lose everything keeps the event that is
hidden last. Older events move up into the places that become free, as they would if the dropped
ones had never happened. Differs: the paper does not say whether dropped items may be recommended;
here the candidates stay those of the whole history, so that shares differ in what is read alone.

Popularity discount re-ranks lists by score - w log(1 + count), counts being those of the training
events. It is the cheap rival of every method that trains against popularity bias: no training, one
number that buys exposure of rare items with accuracy. Source: logit adjustment (Menon et al. 2021,
arXiv:2007.07314, Sec. 4.1) with weight w for their tau, and one added to each count, so that items
without events have a score. For a softmax over the catalogue w = 1 asks for items by p(item |
history) / p(item), pointwise mutual information; scores of other losses have other scales.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from fullrank.core.random import uniform_draws
from fullrank.data.batch import Batch
from fullrank.inference.batches import WrappedModel
from fullrank.models import Model, Scorer

STEP = 0x0D12
"""Step of the random numbers drawn here, apart from training steps at the same seed."""


class EventDropout(WrappedModel):
    """A model that reads each history without some of its events."""

    def __init__(self, model: Model, share: float, seed: int):
        super().__init__(model, sys.maxsize)  # the events to drop are drawn from whole histories
        self.share, self.seed, self.longest = share, seed, model.max_length

    def read(self, batch: Batch) -> Batch:
        assert batch.rows is not None
        draws = uniform_draws(self.seed, STEP, batch.rows, batch.items.shape[1])
        return drop_events(batch, keep_mask(draws, batch.valid, self.share), self.longest)


def keep_mask(draws: Float[Tensor, "B T"], valid: Bool[Tensor, "B T"], share: float) -> Bool[Tensor, "B T"]:
    """Mask of the events that stay: those whose draw is not below the share.

    In a row without any, it is the event with the largest draw.
    """
    stays = valid & (draws >= share)
    best = draws.masked_fill(~valid, -1.0).argmax(1, keepdim=True)
    last = torch.zeros_like(stays).scatter_(1, best, True) & valid
    return torch.where(stays.any(1, keepdim=True), stays, last)


def drop_events(batch: Batch, stays: Bool[Tensor, "B T"], longest: int) -> Batch:
    """The batch with the last `longest` events that stay, moved to the left;
    padding is cut to the longest row."""
    order = (~stays).long().argsort(dim=1, stable=True)  # [B, T] those that stay first, in order of time
    counts = stays.sum(1)
    lengths = counts.clamp_max(longest)
    width = max(int(lengths.max()), 1)
    at = (counts - lengths)[:, None] + torch.arange(width, device=counts.device)  # the last ones of these
    valid = torch.arange(width, device=counts.device) < lengths[:, None]
    taken = order.gather(1, at.clamp_max(order.shape[1] - 1))
    items = torch.where(valid, batch.items.gather(1, taken), 0)
    times = None if batch.times is None else torch.where(valid, batch.times.gather(1, taken), 0)
    row = torch.arange(len(counts), device=counts.device)[:, None]
    features = None if batch.features is None else batch.features.at_places(lambda known: known[row, taken])
    return replace(batch, items=items, lengths=lengths, times=times, features=features)


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
