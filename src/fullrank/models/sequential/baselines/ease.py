"""EASE: links from item to item by a ridge regression in closed form (Steck, WWW 2019, arXiv:1905.03375).

X is users x items, 1 where a user has trained on an item. B minimises |X - X B|^2 + l2 |B|^2 with
B_jj = 0: with P = (X'X + l2 I)^-1

    B_ij = -P_ij / P_jj       score of j = sum_i B_ij over the different items i of a history

Weights may be negative: two items that say the same count once. Each item i keeps its
`neighbours` largest |B_ij|.

With `dense` items or more, each item j is regressed on its `local` most alike items alone, by the
cosine of their users: P is then of j and these, for each j anew (the approximation of Steck,
NeurIPS 2019, "Markov random fields for collaborative filtering", Sec. 3.2). Only items that share a
user with j are among them.

Differs: an event may count less than the one after it (`decay`; 1 is the paper's).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy import sparse
from torch import Tensor

from fullrank.core.constraints import Count, Length, ListLength, PositiveFactor, PositiveShare
from fullrank.data.batch import Batch
from fullrank.data.events.catalog import Catalog
from fullrank.data.events.store import Store
from fullrank.models.sequential.baselines import BaselineSpec, counted_once, seen_items
from fullrank.models.sequential.baselines.item_links import ItemLinks, Sparse, best_of_rows

SMALL = 1e-6
"""Score of the most popular item where no weight leads to it: below every weight that matters."""
CHUNK = 256
"""Items whose largest weights are looked for at once."""
ENTRIES = 1 << 20
"""Numbers of the small systems that are solved at once."""


class EASE(BaselineSpec):
    """Ranks by a linear regression of each item on the others."""

    kind: Literal["ease"] = "ease"
    l2: PositiveFactor = 300.0
    """Weight of the squared size of B: more for data with more events of an item."""
    history: Length = 1000
    """Last events of a history that are read."""
    decay: PositiveShare = 1.0
    """Weight of an event relative to the one after it."""
    neighbours: ListLength = 500
    """Weights kept per item of a history."""
    dense: Count = 20_000
    """Items from which on each is regressed on its most alike ones: the whole inverse takes 16 bytes for each pair of
    items and the time of their third power (12,000 items: 2.3 GB and a minute of a core)."""
    local: ListLength = 50
    """Number of those most alike items."""

    def build(self, catalog: Catalog) -> EASEModel:
        return EASEModel(catalog.size, self)


@dataclass(frozen=True)
class SignedSparse(Sparse):
    """Scores given by pairs of (row, item), of either sign, beside what all items have (`rest`, from 0 to `SMALL`)."""

    def block(self, low: int, high: int) -> Float[Tensor, "B n"]:
        inside = (self.ids >= low) & (self.ids < high)
        out = self.rest[low:high].repeat(len(self.ids), 1)
        return out.scatter_add_(1, torch.where(inside, self.ids - low, 0), self.values * inside)


class EASEModel(ItemLinks):
    """Links by regression."""

    spec: EASE

    def fit(self, store: Store) -> None:
        seen = seen_items(store)
        left, right, weights = whole(seen, self.spec) if seen.shape[1] < self.spec.dense else local(seen, self.spec)
        self.keep(left, right, weights, store.catalog.popularity.astype(np.float64), by=np.abs(weights))

    def answer(self, batch: Batch) -> SignedSparse:
        rest = SMALL * self.counts / self.counts.max().clamp_min(1)
        return SignedSparse(*self.links_of(batch, counted_once(batch)), rest)


Weights = tuple[Int[np.ndarray, "p"], Int[np.ndarray, "p"], Float[np.ndarray, "p"]]
"""(i, j, B_ij)."""


def whole(seen: sparse.csr_matrix, spec: EASE) -> Weights:
    """Regression weights of each item on all others, the largest of each item."""
    gram = torch.from_numpy((seen.T @ seen).toarray())
    gram.diagonal().add_(spec.l2)
    weights = torch.cholesky_inverse(torch.linalg.cholesky(gram))
    # -P_ij / P_jj: each column is divided by its own diagonal
    weights.div_(weights.diagonal().neg().clone()).fill_diagonal_(0)
    parts = []
    count = min(spec.neighbours, len(weights))
    for low in range(0, len(weights), CHUNK):
        rows = weights[low : low + CHUNK]
        ids = rows.abs().topk(count, dim=1).indices
        left = torch.arange(low, low + len(rows))[:, None].expand_as(ids)
        parts.append((left.flatten(), ids.flatten(), rows.gather(1, ids).flatten()))
    columns = [torch.cat(column).numpy() for column in zip(*parts, strict=True)]
    return columns[0], columns[1], columns[2]


def local(seen: sparse.csr_matrix, spec: EASE) -> Weights:
    """Regression weights of each item on its most alike ones: a system of `local` + 1 unknowns for each."""
    gram = (seen.T @ seen).tocoo()
    counts = np.asarray(seen.sum(0)).ravel()
    other = gram.row != gram.col
    left, right, together = gram.row[other].astype(np.int64), gram.col[other].astype(np.int64), gram.data[other]
    size = seen.shape[1]
    most = max(min(spec.local, size - 1), 1)
    best, rank = best_of_rows(left, together / np.sqrt(counts[left] * counts[right]), most, right)
    nearest = np.full((size, most), -1)
    nearest[left[best], rank] = right[best]
    # entries of the Gram matrix by one sorted number for each pair of items; the last
    # is behind all that occur
    order = np.argsort(left * size + right)
    pairs = np.append((left * size + right)[order], size * size)
    met = np.append(together[order], 0.0)
    parts = []
    chunk = max(ENTRIES // (most + 1) ** 2, 1)
    diagonal = np.arange(most + 1)
    for low in range(0, size, chunk):
        items = np.arange(low, min(low + chunk, size))
        # each item j first, then those it is regressed on
        group = np.concatenate([items[:, None], nearest[items]], 1)
        there = group >= 0
        wanted = group[:, :, None] * size + group[:, None, :]
        at = np.searchsorted(pairs, wanted)
        system = np.where(there[:, :, None] & there[:, None, :] & (pairs[at] == wanted), met[at], 0.0)
        system[:, diagonal, diagonal] = np.where(there, counts[group], 0.0) + spec.l2
        first = np.zeros((*group.shape, 1))
        first[:, 0] = 1.0
        inverse = np.linalg.solve(system, first)[:, :, 0]  # the column P_.j
        there[:, 0] = False
        of_items = np.broadcast_to(items[:, None], group.shape)
        parts.append((group[there], of_items[there], (-inverse / inverse[:, :1])[there]))
    left, right, value = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    return left, right, value
