"""Which events of a history are relevant to what was chosen next, and which are noise (FAIR, Sec. 1 and Figure 1).

Claim: relevant context are the recent interactions that co-occurrence statistics and
semantic relevance tie to the target; all else is noise. The paper gives no threshold. Here
an event among the last 20 is relevant where the pointwise mutual information of its item i
and the target t is positive,

    PMI = log(N n_it / (n_i n_t))    over the N users of the training events, n_it of whom had both

or, where item vectors are given, where the cosine of the two items' vectors is 0.6 or more. Nothing
depends on a model, so two models are held to the same events.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float, Int

from fullrank.core.checks import check_type
from fullrank.core.errors import UserError
from fullrank.core.jagged import Jagged
from fullrank.data.events.store import Store

LAST = 20
"""Number of events at the end of a history that are judged."""
COSINE = 0.6
"""Least cosine of the vectors of two items that are alike."""
AT_ONCE = 1 << 22
"""Training events that are looked up at once: bounds the memory."""


class Relevance:
    """Relevance of pairs of items, by their co-occurrence in the training events of a store."""

    def __init__(self, store: Store, vectors: Float[np.ndarray, "V D"] | None = None):
        """`vectors` has one row an item (of its text, say); else `UserError` is raised."""
        if vectors is not None:
            check_type("vectors", vectors, np.ndarray, "an array of numbers, one row an item")
        if vectors is not None and (vectors.ndim != 2 or len(vectors) != store.num_items):
            raise UserError(
                f"there are {len(vectors)} item vectors for {store.num_items} items; give one row an item",
                code="vectors-do-not-fit",
            )
        users, items, _ = store.trained()
        self.items = store.num_items
        self.stride, self.users = store.num_users, len(np.unique(users))
        # item * stride + user: each pair once, ordered by item and then by user
        self.pairs = np.unique(items.astype(np.int64) * self.stride + users)
        first = np.searchsorted(self.pairs, np.arange(self.items + 1) * self.stride)
        self.users_of = Jagged.from_offsets(self.pairs % self.stride, first)
        """[V rows] the users who had each item."""
        self.counts: Int[np.ndarray, "V"] = self.users_of.lengths
        self.vectors = None
        if vectors is not None:
            norms = np.linalg.norm(vectors, axis=1, keepdims=True)
            self.vectors = vectors / np.maximum(norms, 1e-12)

    def __call__(self, items: Int[np.ndarray, "N"], targets: Int[np.ndarray, "N"]) -> Bool[np.ndarray, "N"]:
        """Whether each item is relevant to its target."""
        items, targets = np.asarray(items, dtype=np.int64), np.asarray(targets, dtype=np.int64)
        relevant = self.together(items, targets) * self.users > self.counts[items] * self.counts[targets]
        if self.vectors is not None:
            relevant |= (self.vectors[items] * self.vectors[targets]).sum(1) >= COSINE
        return relevant

    def together(self, a: Int[np.ndarray, "N"], b: Int[np.ndarray, "N"]) -> Int[np.ndarray, "N"]:
        """Number of users who had both items of each pair.

        The users of the rarer item are looked up among the pairs (other item, user), for as many
        pairs of items at once as have `AT_ONCE` users together.
        """
        swap = self.counts[a] > self.counts[b]
        rare, other = np.where(swap, b, a), np.where(swap, a, b)
        ends = np.cumsum(self.counts[rare])
        together = np.zeros(len(a), dtype=np.int64)
        low = 0
        while low < len(a):
            done = ends[low - 1] if low else 0
            high = max(low + 1, int(np.searchsorted(ends, done + AT_ONCE, side="right")))
            users = self.users_of.take(rare[low:high])
            row = low + users.row_of()  # of each user, the row of `a` and `b`
            wanted = other[row] * self.stride + users.flat()
            at = np.searchsorted(self.pairs, wanted)
            matches = self.pairs[np.minimum(at, len(self.pairs) - 1)] == wanted if len(self.pairs) else at < 0
            together += np.bincount(row[matches], minlength=len(a))
            low = high
        return together
