"""iALS: matrix factorisation of implicit feedback by alternating least squares (Hu et al. 2008; Rendle et al. 2021).

With S the (user, item) pairs of training, w_u and h_i vectors of users and items, minimise

    sum_{(u,i) in S} (1 - w_u h_i)^2 + unobserved sum_{u,i} (w_u h_i)^2
      + l2 (sum_u (|I_u| + unobserved |I|)^nu |w_u|^2 + sum_i (|U_i| + unobserved |U|)^nu |h_i|^2)

by solving for all users, then for all items, `sweeps` times; each solve is exact. A
history is answered by the w that solves its own line against the items as they are, so
that users need not be known.

Source: "Revisiting the performance of iALS on item recommendation benchmarks" (arXiv:2110.14037),
Eqs. 1 to 3. Differs: dense solves of all rows at once in place of blocks of coordinates.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float
from pydantic import Field
from torch import Tensor

from fullrank.core.constraints import MOST_EPOCHS, MOST_FACTOR, Length, PositiveFactor, Share
from fullrank.core.jagged import Jagged
from fullrank.data.batch import Batch
from fullrank.data.events.catalog import Catalog
from fullrank.data.events.store import Store
from fullrank.models import DenseScorer
from fullrank.models.sequential.baselines import BaselineSpec, FactorisedBaseline, counted_once, seen_items

ENTRIES = 1 << 22
"""Numbers of vectors that are gathered at once."""


class IALS(BaselineSpec):
    """Ranks by inner products of factorised histories and items."""

    kind: Literal["ials"] = "ials"
    dim: int = Field(64, ge=1, le=4096)
    """Width of the vectors; each row's system has this many unknowns."""
    sweeps: int = Field(16, ge=1, le=MOST_EPOCHS)
    """Times that all users and all items are solved for."""
    unobserved: PositiveFactor = 0.1
    """Weight of the pairs that were not observed."""
    l2: float = Field(0.003, ge=1e-5, le=MOST_FACTOR)
    """Weight of the squared lengths; with less the systems are singular in single precision."""
    nu: Share = 1.0
    """Growth of the penalty with a row's events: 0 all rows alike, 1 in proportion."""
    std: PositiveFactor = 0.1
    """Standard deviation of what the items' vectors start with, over the square root of the width."""
    history: Length = 1000
    """Last events of a history that are read."""

    def build(self, catalog: Catalog) -> IALSModel:
        return IALSModel(catalog.size, self)


class IALSModel(FactorisedBaseline):
    gram: Tensor
    """[D, D] V'V, of the items' vectors V."""
    counts: Tensor
    """[V] training events, by which a history without items is answered."""

    def __init__(self, num_items: int, spec: IALS):
        vectors, gram = torch.zeros(num_items, spec.dim), torch.zeros(spec.dim, spec.dim)
        super().__init__(num_items, spec.history, vectors=vectors, gram=gram, counts=torch.zeros(num_items))
        self.spec = spec

    def fit(self, store: Store) -> None:
        seen = seen_items(store)
        items_of, users_of = (
            Jagged(matrix.indices, matrix.indptr[:-1], matrix.indptr[1:]) for matrix in (seen, seen.T.tocsr())
        )
        draw = torch.Generator().manual_seed(0)
        items = torch.randn(self.num_items, self.spec.dim, generator=draw) * self.spec.std / self.spec.dim**0.5
        for _ in range(self.spec.sweeps):
            users = self._solved(items_of, items)
            items = self._solved(users_of, users)
        self.vectors, self.gram = items, items.T @ items
        self.counts = torch.as_tensor(store.catalog.popularity, dtype=torch.float32)

    def _solved(self, rows: Jagged, table: Float[Tensor, "n D"]) -> Float[Tensor, "r D"]:
        """The vectors of `rows`, each of which lists the vectors of `table` it was seen with; empty rows get 0.

        The longest rows come first, so that those solved together are of like length.
        """
        gram, solved = table.T @ table, torch.zeros(len(rows), table.shape[1])
        order = np.argsort(-rows.lengths, kind="stable")
        at = 0
        while at < len(order) and rows.lengths[order[at]]:
            longest = int(rows.lengths[order[at]])
            numbers = order[at : at + max(ENTRIES // (longest * table.shape[1]), 1)]
            part = rows.take(numbers)
            valid = torch.arange(longest) < torch.from_numpy(part.lengths)[:, None]
            ids = torch.from_numpy(part.padded().astype(np.int64))
            solved[torch.from_numpy(numbers)] = self._least_squares(table[ids], valid, gram, len(table))
            at += len(numbers)
        return solved

    def _least_squares(
        self, vectors: Float[Tensor, "B T D"], valid: Bool[Tensor, "B T"], gram: Float[Tensor, "D D"], size: int
    ) -> Float[Tensor, "B D"]:
        """The vector of each row from the valid `vectors` that it was seen with, among
        `size` with this Gram matrix."""
        spec = self.spec
        vectors = vectors * valid[..., None]
        penalty = spec.l2 * (valid.sum(1) + spec.unobserved * size).float() ** spec.nu
        diagonal = torch.diag_embed(penalty[:, None].expand(-1, len(gram)))
        system = vectors.transpose(1, 2) @ vectors + spec.unobserved * gram + diagonal
        return torch.linalg.solve(system, vectors.sum(1))

    def answer(self, batch: Batch) -> DenseScorer:
        counted = counted_once(batch)
        users = self._least_squares(self.vectors[batch.items], counted, self.gram, self.num_items)
        # a history without items has the vector 0: one more component, which it alone
        # has, orders by popularity
        bare = (~counted.any(1)).float()[:, None]
        return DenseScorer(torch.cat([users, bare], 1), torch.cat([self.vectors, self.counts[:, None]], 1))
