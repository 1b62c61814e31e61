"""Which events of a history are relevant to what was chosen next, and which are noise (FAIR, Sec. 1 and Figure 1).

Claim: relevant context are the recent interactions that co-occurrence statistics and semantic relevance tie to the
target; all else is noise. The paper gives no threshold. Here an event among the last 20 is relevant where its item's
pointwise mutual information with the target is positive, PMI = log(N n_it / (n_i n_t)) over the N users of the training
events, n_it of whom had both; or where the cosine of the two items' vectors is 0.6 or more, if vectors are given.

Nothing of it depends on a model, so two models are held to the same events.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float, Int

from fullrank.core.checks import check_type
from fullrank.core.errors import UserError
from fullrank.core.jagged import Jagged
from fullrank.data.events.store import Store

LAST = 20
"""Events of a history that are looked at, from its end."""
COSINE = 0.6
"""Least cosine of two items' vectors that are alike."""
AT_ONCE = 1 << 22
"""Training events that are compared at once: bounds the memory."""


class Relevance:
    """Co-occurrence in the training events of a store, asked for pairs of items."""

    def __init__(self, store: Store, vectors: Float[np.ndarray, "V D"] | None = None):
        """`vectors` are the items' own (of their texts, say), one row an item. Raises `UserError` for another count."""
        if vectors is not None:
            check_type("vectors", vectors, np.ndarray, "an array of numbers, one row an item")
        if vectors is not None and (vectors.ndim != 2 or len(vectors) != store.num_items):
            raise UserError(
                f"there are {len(vectors)} item vectors for {store.num_items} items; give one row an item",
                code="vectors-do-not-fit",
            )
        users, items, _ = store.trained()
        self.items = store.num_items
        had = np.unique(items.astype(np.int64) * store.num_users + users)  # by item, then user; each pair once
        self.had = had
        first = np.searchsorted(had, np.arange(self.items + 1) * store.num_users)
        self.who = Jagged.from_offsets(had % store.num_users, first)
        """[V rows] the users who had each item."""
        self.counts: Int[np.ndarray, "V"] = self.who.lengths
        self.stride, self.users = store.num_users, len(np.unique(users))
        self.vectors = None
        if vectors is not None:
            norms = np.linalg.norm(vectors, axis=1, keepdims=True)
            self.vectors = vectors / np.maximum(norms, 1e-12)

    def __call__(self, items: Int[np.ndarray, "N"], targets: Int[np.ndarray, "N"]) -> Bool[np.ndarray, "N"]:
        """Whether each item is relevant to its target."""
        items, targets = np.asarray(items, dtype=np.int64), np.asarray(targets, dtype=np.int64)
        found = self.together(items, targets) * self.users > self.counts[items] * self.counts[targets]
        if self.vectors is not None:
            found |= (self.vectors[items] * self.vectors[targets]).sum(1) >= COSINE
        return found

    def together(self, a: Int[np.ndarray, "N"], b: Int[np.ndarray, "N"]) -> Int[np.ndarray, "N"]:
        """Users who had both items: the users of the rarer one, looked up among those of the other."""
        swap = self.counts[a] > self.counts[b]
        rare, other = np.where(swap, b, a), np.where(swap, a, b)
        sizes = self.counts[rare]
        ends = np.cumsum(sizes)
        found = np.zeros(len(a), dtype=np.int64)
        low = 0
        while low < len(a):
            done = ends[low - 1] if low else 0
            high = max(low + 1, int(np.searchsorted(ends, done + AT_ONCE, side="right")))
            who = self.who.take(rare[low:high])
            pair = low + who.row_of()
            asked = other[pair] * self.stride + who.flat()
            at = np.searchsorted(self.had, asked)
            there = self.had[np.minimum(at, len(self.had) - 1)] == asked if len(self.had) else at < 0
            found += np.bincount(pair[there], minlength=len(a))
            low = high
        return found
