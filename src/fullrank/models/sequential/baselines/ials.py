"""iALS: matrix factorisation of implicit feedback by alternating least squares (Hu et al. 2008; Rendle et al. 2021).

With S the (user, item) pairs of training, w_u and h_i vectors of users and items, minimise

    sum_{(u,i) in S} (1 - w_u h_i)^2 + unobserved sum_{u,i} (w_u h_i)^2
      + l2 (sum_u (|I_u| + unobserved |I|)^nu |w_u|^2 + sum_i (|U_i| + unobserved |U|)^nu |h_i|^2)

by solving for all users, then for all items, `sweeps` times; each solve is exact. A history is answered by the w that
solves its own line against the items as they are, so that users need not be known.

Source: "Revisiting the performance of iALS on item recommendation benchmarks" (arXiv:2110.14037), Eqs. 1 to 3. Differs:
dense solves of all rows at once in place of blocks of coordinates.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from pydantic import Field
from scipy import sparse
from torch import Tensor

from fullrank.core.constraints import MOST_EPOCHS, MOST_FACTOR, Length, PositiveFactor, Share
from fullrank.core.jagged import Jagged
from fullrank.data.batch import Batch
from fullrank.data.events.catalog import Catalog
from fullrank.data.events.store import Store
from fullrank.models import DenseScorer
from fullrank.models.sequential.baselines import Baseline, BaselineSpec
from fullrank.models.sequential.baselines.sets import comes_again, seen_items

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
    """How much more rows with many events are held back: 0 all alike, 1 in proportion."""
    std: PositiveFactor = 0.1
    """Standard deviation of what the items' vectors start with, over the square root of the width."""
    history: Length = 1000
    """Last events of a history that are read."""

    def build(self, catalog: Catalog) -> IALSModel:
        return IALSModel(catalog.size, self)


class IALSModel(Baseline):
    vectors: Tensor
    """[V, D]"""
    gram: Tensor
    """[D, D] vectors' vectors."""
    counts: Tensor
    """[V] training events, by which a history without items is answered."""

    def __init__(self, num_items: int, spec: IALS):
        super().__init__()
        self.spec, self.num_items, self.max_length = spec, num_items, spec.history
        self.register_buffer("vectors", torch.zeros(num_items, spec.dim))
        self.register_buffer("gram", torch.zeros(spec.dim, spec.dim))
        self.register_buffer("counts", torch.zeros(num_items))

    def fit(self, store: Store) -> None:
        seen = seen_items(store)
        rows = [_rows(one) for one in (seen, seen.T.tocsr())]
        draw = torch.Generator().manual_seed(0)
        items = torch.randn(self.num_items, self.spec.dim, generator=draw) * self.spec.std / self.spec.dim**0.5
        for _ in range(self.spec.sweeps):
            users = self._solved(rows[0], items)
            items = self._solved(rows[1], users)
        self.vectors, self.gram = items, items.T @ items
        self.counts = torch.as_tensor(store.catalog.popularity, dtype=torch.float32)

    def _solved(self, rows: Jagged, table: Float[Tensor, "n D"]) -> Float[Tensor, "r D"]:
        """The vectors of rows that were seen with some of the table's, the others' fixed; rows without any are 0."""
        gram, found = table.T @ table, torch.zeros(len(rows), table.shape[1])
        order = np.argsort(-rows.lengths, kind="stable")
        at = 0
        while at < len(order) and rows.lengths[order[at]]:
            longest = int(rows.lengths[order[at]])
            some = order[at : at + max(ENTRIES // (longest * table.shape[1]), 1)]
            own = rows.take(some)
            lengths = torch.from_numpy(own.lengths)
            there = torch.arange(longest) < lengths[:, None]
            ids = torch.from_numpy(own.padded().astype(np.int64))
            found[torch.from_numpy(some)] = self._least_squares(table[ids], there, gram, len(table))
            at += len(some)
        return found

    def _least_squares(
        self, vectors: Float[Tensor, "B T D"], there: Bool[Tensor, "B T"], gram: Float[Tensor, "D D"], size: int
    ) -> Float[Tensor, "B D"]:
        """The vector of each row, of those that it was seen with."""
        spec = self.spec
        own = vectors * there[..., None]
        held = spec.l2 * (there.sum(1) + spec.unobserved * size).float() ** spec.nu
        left = (
            own.transpose(1, 2) @ own + spec.unobserved * gram + torch.diag_embed(held[:, None].expand(-1, len(gram)))
        )
        return torch.linalg.solve(left, own.sum(1))

    def answer(self, batch: Batch) -> DenseScorer:
        there = batch.valid & ~comes_again(batch)
        users = self._least_squares(self.vectors[batch.items], there, self.gram, self.num_items)
        # a history without items has the vector 0: one more component, which it alone has, orders by popularity
        bare = (~there.any(1)).float()[:, None]
        return DenseScorer(torch.cat([users, bare], 1), torch.cat([self.vectors, self.counts[:, None]], 1))

    def similar(self, items: Int[Tensor, "B"], index: None = None) -> DenseScorer:
        """The cosine of the vectors of items."""
        vectors = F.normalize(self.vectors, dim=-1)
        return DenseScorer(vectors[items], vectors)


def _rows(seen: sparse.csr_matrix) -> Jagged:
    """The columns of each row."""
    return Jagged(seen.indices, seen.indptr[:-1], seen.indptr[1:])
