"""Session kNN: items of the training sessions that are most like the last events (V-SKNN, VMIS-kNN).

A session is a training history, or a stretch of one. With w(i) the weight of the last event of item
i in the history, its newest event counting 1,

    sim(n) = sum of w(i) over the items i that session n shares with the history
    score(j) = sum over the `neighbours` n with the largest sim, that have j, of
               sim(n) w(last shared item of n) log(N / N_j)

N sessions, N_j of them with j. Among sessions with equal sim the newest are nearest. As
VMIS-kNN does, each item knows its `recent` newest sessions alone, so that an answer costs the
same however many there are.

Sources: V-SKNN of Ludewig & Jannach 2018 (arXiv:1803.09587), VMIS-kNN of Kersbergen et al.
(Serenade, SIGMOD 2022). Differs: the history's own training session is a session like others; w is
(1 - age / events read) to the power of `falloff`, which is the linear and, squared, the quadratic
weight of the two papers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from fullrank.core.constraints import Factor, Length, ListLength
from fullrank.core.jagged import Jagged
from fullrank.data.batch import Batch
from fullrank.data.events.catalog import Catalog
from fullrank.data.events.store import Store
from fullrank.models.sequential.baselines import BaselineSpec, BufferBaseline, counted_once
from fullrank.models.sequential.baselines.item_links import best_of_rows

NONE = -1
"""In the place of a session where an item has fewer."""


class SessionKNN(BaselineSpec):
    """Ranks by the training sessions that are most like the last events."""

    kind: Literal["session_knn"] = "session_knn"
    neighbours: ListLength = 100
    """Sessions that a list is made of."""
    recent: ListLength = 500
    """Newest sessions of each item that are compared."""
    history: Length = 10
    """Last events of a history that are read."""
    falloff: Factor = 1.0
    """How fast older events lose weight: 0 not at all, 1 linear, 2 quadratic."""
    session: Length = 50
    """Most events of a session; a longer history is cut into several, from its end."""
    rare: bool = True
    """Count an item the more the fewer sessions have it."""

    def build(self, catalog: Catalog) -> SessionKNNModel:
        return SessionKNNModel(catalog.size, self)


class SessionKNNModel(BufferBaseline):
    sessions: Tensor
    """[V, recent] the newest sessions of each item, newest first; -1 in empty places."""
    items: Tensor
    """The different items of all sessions, session after session."""
    starts: Tensor
    """[N + 1] where they begin."""
    worth: Tensor
    """[V] log(N / N_j), or 1."""
    counts: Tensor
    """[V] training events."""

    def __init__(self, num_items: int, spec: SessionKNN):
        super().__init__(
            num_items,
            spec.history,
            sessions=torch.full((num_items, spec.recent), NONE, dtype=torch.int32),
            items=torch.zeros(0, dtype=torch.int32),
            starts=torch.zeros(1, dtype=torch.long),
            worth=torch.ones(num_items),
            counts=torch.zeros(num_items),
        )
        self.spec = spec

    def make_room(self, tensors: Mapping[str, Tensor]) -> None:
        for name in ("items", "starts"):
            saved = tensors.get(name)
            if saved is not None and saved.ndim == 1:
                setattr(self, name, saved.new_empty(len(saved), device=self.counts.device))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        self.make_room({name.removeprefix(prefix): saved for name, saved in state_dict.items()})
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def fit(self, store: Store) -> None:
        rows, ended = sessions_of(store, self.spec.session)
        # a newer session has a larger number
        sessions = rows.distinct().take(np.argsort(ended, kind="stable"))
        items, numbers = sessions.flat(), sessions.row_of()
        newest, rank = best_of_rows(items, numbers, self.spec.recent, numbers)
        recent = np.full((self.num_items, self.spec.recent), NONE, np.int32)
        recent[items[newest], rank] = numbers[newest]
        having = np.bincount(items, minlength=self.num_items)
        worth = np.log(len(sessions) / np.maximum(having, 1)) if self.spec.rare else np.ones(self.num_items)
        self.sessions, self.items = torch.from_numpy(recent), torch.from_numpy(items.astype(np.int32))
        self.starts = torch.from_numpy(sessions.offsets)
        self.worth = torch.from_numpy(worth.astype(np.float32))
        self.counts = torch.as_tensor(store.catalog.popularity, dtype=torch.float32)

    def answer(self, batch: Batch) -> Pairs:
        rows, sessions, likeness, last = self._alike(batch)
        # all items of all near sessions, one after the other: `near` is the session of each,
        # `at` its place in `items`
        sizes = self.starts[sessions + 1] - self.starts[sessions]
        near = torch.arange(len(sessions), device=rows.device).repeat_interleave(sizes)
        before = (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
        at = self.starts[sessions][near] + torch.arange(len(near), device=rows.device) - before
        items = self.items[at].long()
        values = (likeness * last)[near] * self.worth[items]
        return Pairs.of(rows[near], items, values, len(batch.items), -1 / (1 + self.counts))

    def _alike(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """(row, session, sim, weight of the last shared item) of the
        nearest sessions of each row."""
        width = batch.items.shape[1]
        age = batch.lengths[:, None] - 1 - torch.arange(width, device=batch.items.device)
        weight = (1 - age.clamp_min(0) / batch.lengths[:, None].clamp_min(1)) ** self.spec.falloff
        recent = self.sessions[batch.items].long()  # [B T recent]
        shares = (recent >= 0) & counted_once(batch)[..., None]
        row = torch.arange(len(recent), device=recent.device)[:, None, None].expand_as(recent)[shares]
        count = len(self.starts) - 1
        # one number for each pair of a row and a session that share an item
        keys, pair = torch.unique(row * count + recent[shares], return_inverse=True)
        weights = weight[..., None].expand_as(recent)[shares]
        likeness = torch.zeros(len(keys), device=keys.device).scatter_add_(0, pair, weights)
        last = torch.zeros_like(likeness).scatter_reduce_(0, pair, weights, "amax")
        rows, sessions = keys // max(count, 1), keys % max(count, 1)
        # by row, in each the largest likeness first, of equal ones the newest session
        order = sessions.argsort(descending=True, stable=True)
        order = order[likeness[order].argsort(descending=True, stable=True)]
        order = order[rows[order].argsort(stable=True)]
        # first place of each row in that order
        start = torch.searchsorted(rows[order], rows[order])
        near = order[torch.arange(len(order), device=order.device) - start < self.spec.neighbours]
        return rows[near], sessions[near], likeness[near], last[near]

    def similar(self, items: Int[Tensor, "B"], index: None = None) -> Pairs:
        """The scores of other items in the sessions that have each of these; -inf where they share no session."""
        pairs = self.answer(Batch(items[:, None], torch.ones_like(items)))
        others = pairs.items != items[pairs.rows]
        columns = (pairs.rows[others], pairs.items[others], pairs.values[others])
        return Pairs.of(*columns, len(items), torch.full_like(self.counts, -torch.inf))


@dataclass(frozen=True)
class Pairs:
    """Scores (above 0) of pairs of (row, item), in the order of items; all other items score `rest` (below 0)."""

    rows: Int[Tensor, "p"]
    items: Int[Tensor, "p"]
    values: Float[Tensor, "p"]
    count: int
    """Rows."""
    rest: Float[Tensor, "V"]

    @classmethod
    def of(cls, rows: Tensor, items: Tensor, values: Tensor, count: int, rest: Tensor) -> Pairs:
        """Pairs in any order, sorted by item."""
        order = items.argsort(stable=True)
        return cls(rows[order], items[order], values[order], count, rest)

    @property
    def size(self) -> int:
        return len(self.rest)

    def block(self, low: int, high: int) -> Float[Tensor, "B n"]:
        ends = torch.searchsorted(self.items, torch.tensor([low, high], device=self.items.device))
        inside = slice(*ends.tolist())
        out = torch.zeros(self.count, high - low, device=self.items.device)
        out.index_put_((self.rows[inside], self.items[inside] - low), self.values[inside], accumulate=True)
        return torch.where(out > 0, out, self.rest[low:high])


def sessions_of(store: Store, most: int) -> tuple[Jagged, Int[np.ndarray, "N"]]:
    """Training histories in stretches of at most so many events, cut from their ends, and when each ended.

    In a store without times that is where it ends.
    """
    starts, ends = store.offsets[:-1], store.bounds[:, 0]
    counts = -(-(ends - starts) // most)
    user = np.repeat(np.arange(len(starts)), counts)
    # number of sessions of the user behind this one
    back = np.arange(len(user)) - np.repeat(np.cumsum(counts) - counts, counts)
    closed = ends[user] - back * most
    rows = Jagged(store.items, np.maximum(closed - most, starts[user]), closed)
    return rows, closed if store.times is None else np.asarray(store.times)[closed - 1]
