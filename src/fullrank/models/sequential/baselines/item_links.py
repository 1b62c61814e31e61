"""Links from item to item: each item's best other items, read off for the last events of a history.

A history scores an item by the sum of its links to the last events, later ones more:

    s(b) = sum_g decay^g link(a_g, b),   a_0 the last event, a_1 the one before

Items that no link leads to come after all others, by popularity.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from fullrank.data.batch import Batch
from fullrank.models.sequential.baselines import BufferBaseline


@dataclass(frozen=True)
class Sparse:
    """Scores (above 0) given by pairs of (row, item); all other items score `rest` (below 0)."""

    ids: Int[Tensor, "B P"]
    values: Float[Tensor, "B P"]
    rest: Float[Tensor, "V"]

    @property
    def size(self) -> int:
        return len(self.rest)

    def block(self, low: int, high: int) -> Float[Tensor, "B n"]:
        out = torch.zeros(len(self.ids), high - low, device=self.ids.device)
        inside = (self.ids >= low) & (self.ids < high)
        out.scatter_add_(1, torch.where(inside, self.ids - low, 0), self.values * inside)
        return torch.where(out > 0, out, self.rest[low:high])


class ItemLinks(BufferBaseline):
    """A recommender by links between items, which `fit` stores with `keep`."""

    spec: Any
    """Settings with `history`, `decay` and `neighbours`."""
    ids: Tensor
    """[V, n] the best links of each item; 0 in empty places."""
    likeness: Tensor
    """[V, n] their values; 0 in empty places."""
    counts: Tensor
    """[V] training events of each item."""

    def __init__(self, num_items: int, spec: Any):
        ids = torch.zeros(num_items, spec.neighbours, dtype=torch.long)
        super().__init__(
            num_items, spec.history, ids=ids, likeness=torch.zeros(ids.shape), counts=torch.zeros(num_items)
        )
        self.spec = spec

    def keep(
        self,
        left: Int[np.ndarray, "p"],
        right: Int[np.ndarray, "p"],
        value: Float[np.ndarray, "p"],
        counts: Float[np.ndarray, "V"],
        by: Float[np.ndarray, "p"] | None = None,
    ) -> None:
        """Keep the best links left -> right of each item.

        They are the largest in `by`, or in value where that is left out; of equal ones the smaller
        id.
        """
        best, rank = best_of_rows(left, value if by is None else by, self.ids.shape[1], right)
        ids, likeness = np.zeros(self.ids.shape, np.int64), np.zeros(self.ids.shape, np.float32)
        ids[left[best], rank], likeness[left[best], rank] = right[best], value[best]
        self.ids, self.likeness = torch.from_numpy(ids), torch.from_numpy(likeness)
        self.counts = torch.from_numpy(counts.astype(np.float32))

    def answer(self, batch: Batch) -> Sparse:
        # rises with the count and is below every link; single precision tells counts of millions
        # apart
        return Sparse(*self.links_of(batch, batch.valid), -1 / (1 + self.counts))

    def links_of(self, batch: Batch, counted: Bool[Tensor, "B T"]) -> tuple[Int[Tensor, "B P"], Float[Tensor, "B P"]]:
        """The items that the counted events of each row lead to, and the links, later events more."""
        age = batch.lengths[:, None] - 1 - torch.arange(batch.items.shape[1], device=batch.items.device)
        weight = torch.where(counted, self.spec.decay ** age.clamp_min(0).float(), 0.0)
        values = self.likeness[batch.items] * weight[..., None]
        return self.ids[batch.items].flatten(1), values.flatten(1)

    def similar(self, items: Int[Tensor, "B"], index: None = None) -> Sparse:
        """The links of each of these items; -inf where there is none."""
        never = torch.full_like(self.counts, -torch.inf)
        return Sparse(self.ids[items], self.likeness[items], never)


def best_of_rows(
    rows: Int[np.ndarray, "p"], values: Shaped[np.ndarray, "p"], most: int, tie: Int[np.ndarray, "p"]
) -> tuple[Int[np.ndarray, "n"], Int[np.ndarray, "n"]]:
    """Indices of the largest values of each row, of equal ones the smaller `tie`, and
    the rank of each in its row."""
    order = np.lexsort((tie, -values, rows))  # row after row, in each the largest first
    rank = np.arange(len(order)) - np.searchsorted(rows[order], rows[order])
    return order[rank < most], rank[rank < most]
