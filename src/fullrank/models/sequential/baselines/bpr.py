"""BPR-MF: matrix factorisation that learns to rank pairs of items (Rendle et al., UAI 2009, arXiv:1205.2618).

With vectors w_u of users and h_i of items, biases b_i, and S the (user, item) pairs of
training, minimise by stochastic gradient descent over (u, i) drawn from S and j drawn from the
items that u has not seen

    -ln sigmoid(x) + l2 / 2 (|w_u|^2 + |h_i|^2 + |h_j|^2 + b_i^2 + b_j^2),   x = w_u (h_i - h_j) + b_i - b_j

A history is answered by the w that minimises its own part of this with the items as they are, by
Newton's method over its pairs with `OTHERS` drawn items: what the paper's objective says of a user,
whether it was trained on or not.

Source: the paper's Figure 4 (LearnBPR) and Section 4.3.1. Differs: draws of a batch are stepped at
once; one l2 for all; a bias for each item, as the authors' own code (MyMediaLite) has it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor

from fullrank.core.constraints import MOST_EPOCHS, MOST_FACTOR, Length, PositiveFactor, Width
from fullrank.core.errors import UserError
from fullrank.data.batch import Batch
from fullrank.data.events.catalog import Catalog
from fullrank.data.events.store import Store
from fullrank.models import DenseScorer
from fullrank.models.sequential.baselines import BaselineSpec, FactorisedBaseline, counted_once, seen_items

BATCH = 256
"""Draws that are stepped at once."""
OTHERS = 256
"""Items that a history's own are compared with when it is answered."""
STEPS, INNER = 50, 4
"""Most steps of Newton's method, which ends when no score moves by `NEAR`, and of conjugate gradients in each."""
NEAR = 1e-4
"""Largest change of a score at which Newton's method ends."""


class BPR(BaselineSpec):
    """Ranks by inner products of factorised histories and items, trained on pairs of items."""

    kind: Literal["bpr"] = "bpr"
    dim: Width = 256
    """Width of the vectors."""
    epochs: int = Field(120, ge=1, le=MOST_EPOCHS)
    """Times that as many pairs are drawn as there are in training."""
    lr: float = Field(0.1, gt=0, le=100)
    """Learning rate."""
    l2: float = Field(0.01, ge=1e-4, le=MOST_FACTOR)
    """Weight of the squared lengths; with less, rounding moves the vector of a history."""
    std: PositiveFactor = 0.01
    """Standard deviation of what vectors start with."""
    history: Length = 1000
    """Last events of a history that are read."""

    def build(self, catalog: Catalog) -> BPRModel:
        return BPRModel(catalog.size, self)


class BPRModel(FactorisedBaseline):
    biases: Tensor
    """[V]; alone they order the items for a history without any."""
    others: Tensor
    """[M] the items that histories are compared with."""

    def __init__(self, num_items: int, spec: BPR):
        super().__init__(
            num_items,
            spec.history,
            vectors=torch.zeros(num_items, spec.dim),
            biases=torch.zeros(num_items),
            others=torch.zeros(OTHERS, dtype=torch.long),
        )
        self.spec = spec

    def fit(self, store: Store) -> None:
        draw = torch.Generator().manual_seed(torch.initial_seed())  # the experiment's
        pairs, spec = UnseenPairs(store), self.spec
        self.others = torch.randperm(self.num_items, generator=draw)[torch.arange(OTHERS) % self.num_items]
        users, items = (
            torch.randn(size, spec.dim, generator=draw) * spec.std for size in (store.num_users, self.num_items)
        )
        biases = torch.zeros(self.num_items, 1)
        for _ in range(spec.epochs if len(pairs) else 0):
            for user, item, other in zip(*(column.split(BATCH) for column in pairs.draw(draw)), strict=True):
                # w of the user; h and b, the vector and the bias of the seen item; g and c of the
                # other
                w, h, g, b, c = users[user], items[item], items[other], biases[item], biases[other]
                wrong = torch.sigmoid((w * (g - h)).sum(1, keepdim=True) + c - b)
                users.index_add_(0, user, spec.lr * (wrong * (h - g) - spec.l2 * w))
                items.index_add_(0, item, spec.lr * (wrong * w - spec.l2 * h))
                items.index_add_(0, other, spec.lr * (-wrong * w - spec.l2 * g))
                biases.index_add_(0, item, spec.lr * (wrong - spec.l2 * b))
                biases.index_add_(0, other, spec.lr * (-wrong - spec.l2 * c))
        if not items.isfinite().all() or not biases.isfinite().all():
            raise UserError(
                f"the vectors diverged with model.lr={spec.lr:g} and model.l2={spec.l2:g}: lower one of them",
                code="weights-not-finite",
            )
        self.vectors, self.biases = items, biases[:, 0]

    def answer(self, batch: Batch) -> DenseScorer:
        users = self._users(batch.items, counted_once(batch))
        # an item's bias is one more component of its vector, which is 1 in every history's
        return DenseScorer(F.pad(users, (0, 1), value=1.0), torch.cat([self.vectors, self.biases[:, None]], 1))

    def _users(self, items: Int[Tensor, "B T"], counted: Bool[Tensor, "B T"]) -> Float[Tensor, "B D"]:
        """The minimum of mean -ln sigmoid(x) + l2 / 2 |w|^2, over pairs of a counted item and one of `others`.

        A step of Newton that moves no x by more than m is shortened to ln(1 + m) / m of it: since
        the third derivative of -ln sigmoid is at most its second, the loss falls all the way.
        """
        history, rest = self.vectors[items], self.vectors[self.others]
        new = ~((items[:, :, None] == self.others) & counted[..., None]).any(1)
        weight = (counted[:, :, None] & new[:, None]).float()
        weight /= weight.sum((1, 2), keepdim=True).clamp_min(1)

        def scores(users: Float[Tensor, "B D"]) -> tuple[Float[Tensor, "B T 1"], Float[Tensor, "B 1 M"]]:
            return history @ users[..., None], (users @ rest.T)[:, None]

        def back(pairs: Float[Tensor, "B T M"]) -> Float[Tensor, "B D"]:
            """The gradient by users from that by the difference of the two scores of each pair."""
            return (pairs.sum(2)[:, None] @ history)[:, 0] - pairs.sum(1) @ rest

        users = history.new_zeros(len(history), history.shape[2])
        for _ in range(STEPS):
            mine, other = scores(users)
            wrong = torch.sigmoid((other + self.biases[self.others]) - (mine + self.biases[items][..., None]))
            slope = weight * wrong
            bend = slope * (1 - wrong)

            def product(step: Tensor, bend: Tensor = bend) -> Tensor:
                mine, other = scores(step)
                return back(bend * (mine - other)) + self.spec.l2 * step

            step = conjugate_gradients(product, back(slope) - self.spec.l2 * users, INNER)
            mine, other = scores(step)
            moved = ((mine.abs() * counted[..., None]).amax(1) + other.abs().amax(2)).clamp_min(1e-6)
            users = users + step * torch.log1p(moved) / moved
            if bool((moved < NEAR).all()):
                break
        return users


def conjugate_gradients(
    product: Callable[[Float[Tensor, "B D"]], Float[Tensor, "B D"]], wanted: Float[Tensor, "B D"], steps: int
) -> Float[Tensor, "B D"]:
    """An approximation of each row's x whose `product` with its positive definite matrix is `wanted`."""
    x, left = torch.zeros_like(wanted), wanted
    ahead, size = left, (left * left).sum(1, keepdim=True)
    for _ in range(steps):
        moved = product(ahead)
        length = size / (ahead * moved).sum(1, keepdim=True).clamp_min(1e-30)
        x, left = x + length * ahead, left - length * moved
        before, size = size, (left * left).sum(1, keepdim=True)
        ahead = left + size / before.clamp_min(1e-30) * ahead
    return x


class UnseenPairs:
    """The (user, item) pairs of training, of users who have not seen everything; `draw` adds an unseen item to each."""

    def __init__(self, store: Store):
        seen = seen_items(store)
        seen.sort_indices()
        count, self.starts = np.diff(seen.indptr), torch.from_numpy(seen.indptr.astype(np.int64))
        self.items = torch.from_numpy(seen.indices.astype(np.int64))
        self.users = torch.arange(store.num_users).repeat_interleave(torch.from_numpy(count))
        self.unseen, self.width = torch.from_numpy(store.num_items - count.astype(np.int64)), store.num_items + 1
        # rank of the item among those the user has seen
        rank = torch.arange(len(self.items)) - self.starts[self.users]
        self.below = self.users * self.width + self.items - rank
        """Number of items with a smaller id that the user has not seen, plus `width` for each user before."""
        self.open = torch.nonzero(self.unseen[self.users] > 0)[:, 0]

    def __len__(self) -> int:
        return len(self.open)

    def draw(self, generator: torch.Generator) -> tuple[Int[Tensor, "n"], Int[Tensor, "n"], Int[Tensor, "n"]]:
        """Users, items of theirs, and items that they have not seen: as many as there
        are pairs, with replacement."""
        pairs = self.open[torch.randint(len(self), (len(self),), generator=generator)]
        user = self.users[pairs]
        draw = torch.rand(len(pairs), generator=generator, dtype=torch.float64) * self.unseen[user]
        # rank of an item among those that the user has not seen
        rank = draw.long().clamp_max(self.unseen[user] - 1)
        # its id is that many and one more for each seen item below it: those whose count in
        # `below` is at most its rank
        before = torch.searchsorted(self.below, user * self.width + rank, right=True) - self.starts[user]
        return user, self.items[pairs], rank + before
