"""Session kNN: items of the training sessions that are most like the last events (V-SKNN, VMIS-kNN).

A session is a training history, or a stretch of one. With w(i) the weight of the last event of item i in the history,
its newest event counting 1,

    sim(n) = sum of w(i) over the items i that session n shares with the history
    score(j) = sum over the `neighbours` n with the largest sim, that have j, of
               sim(n) w(last shared item of n) log(N / N_j)

N sessions, N_j of them with j. Of sessions with equal sim the newest are nearest. As VMIS-kNN does, each item knows its
`recent` newest sessions alone, so that an answer costs the same however many there are.

Sources: V-SKNN of Ludewig & Jannach 2018 (arXiv:1803.09587), VMIS-kNN of Kersbergen et al. (Serenade, SIGMOD 2022).
Differs: the history's own training session is a session like others; w is (1 - age / events read) to the power of
`falloff`, which is the linear and, squared, the quadratic weight of the two papers.
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
from fullrank.models.sequential.baselines import Baseline, BaselineSpec
from fullrank.models.sequential.baselines.item_links import best_of_rows
from fullrank.models.sequential.baselines.sets import comes_again

NONE = -1


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


class SessionKNNModel(Baseline):
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
        super().__init__()
        self.spec, self.num_items, self.max_length = spec, num_items, spec.history
        self.register_buffer("sessions", torch.full((num_items, spec.recent), NONE, dtype=torch.int32))
        self.register_buffer("items", torch.zeros(0, dtype=torch.int32))
        self.register_buffer("starts", torch.zeros(1, dtype=torch.long))
        self.register_buffer("worth", torch.ones(num_items))
        self.register_buffer("counts", torch.zeros(num_items))

    def make_room(self, tensors: Mapping[str, Tensor]) -> None:
        for name in ("items", "starts"):
            if (found := tensors.get(name)) is not None and found.ndim == 1:
                setattr(self, name, found.new_empty(len(found), device=self.counts.device))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        self.make_room({name.removeprefix(prefix): one for name, one in state_dict.items()})
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def fit(self, store: Store) -> None:
        rows, ended = sessions_of(store, self.spec.session)
        kept = rows.distinct().take(np.argsort(ended, kind="stable"))  # a newer session has a larger number
        flat, of = kept.flat(), kept.row_of()
        newest, place = best_of_rows(flat, of, self.spec.recent, of)
        found = np.full((self.num_items, self.spec.recent), NONE, np.int32)
        found[flat[newest], place] = of[newest]
        having = np.bincount(flat, minlength=self.num_items)
        worth = np.log(len(kept) / np.maximum(having, 1)) if self.spec.rare else np.ones(self.num_items)
        self.sessions, self.items = torch.from_numpy(found), torch.from_numpy(flat.astype(np.int32))
        self.starts = torch.from_numpy(kept.offsets)
        self.worth = torch.from_numpy(worth.astype(np.float32))
        self.counts = torch.as_tensor(store.catalog.popularity, dtype=torch.float32)

    def answer(self, batch: Batch) -> Pairs:
        rows, sessions, likeness, last = self._alike(batch)
        many = self.starts[sessions + 1] - self.starts[sessions]
        pair = torch.arange(len(sessions), device=rows.device).repeat_interleave(many)
        begun = (many.cumsum(0) - many).repeat_interleave(many)
        items = self.items[self.starts[sessions][pair] + torch.arange(len(pair), device=rows.device) - begun].long()
        values = (likeness * last)[pair] * self.worth[items]
        return Pairs.of(rows[pair], items, values, len(batch.items), -1 / (1 + self.counts))

    def _alike(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """(row, session, sim, weight of the last shared item) of the nearest sessions of each row."""
        width = batch.items.shape[1]
        age = batch.lengths[:, None] - 1 - torch.arange(width, device=batch.items.device)
        weight = (1 - age.clamp_min(0) / batch.lengths[:, None].clamp_min(1)) ** self.spec.falloff
        found = self.sessions[batch.items].long()  # [B T recent]
        there = (found >= 0) & (batch.valid & ~comes_again(batch))[..., None]
        row = torch.arange(len(found), device=found.device)[:, None, None].expand_as(found)[there]
        count = len(self.starts) - 1
        keys, place = torch.unique(row * count + found[there], return_inverse=True)
        weights = weight[..., None].expand_as(found)[there]
        likeness = torch.zeros(len(keys), device=keys.device).scatter_add_(0, place, weights)
        last = torch.zeros_like(likeness).scatter_reduce_(0, place, weights, "amax")
        rows, sessions = keys // max(count, 1), keys % max(count, 1)
        order = nearest_first(rows, likeness, sessions)
        begun = torch.searchsorted(rows[order], rows[order])
        near = order[torch.arange(len(order), device=order.device) - begun < self.spec.neighbours]
        return rows[near], sessions[near], likeness[near], last[near]

    def similar(self, items: Int[Tensor, "B"], index: None = None) -> Pairs:
        """What the sessions of each of these items have beside it; -inf where nothing."""
        alone = Batch(items[:, None], torch.ones_like(items))
        found = self.answer(alone)
        own = found.items == items[found.rows]
        return Pairs.of(
            found.rows[~own], found.items[~own], found.values[~own], len(items),
            torch.full_like(self.counts, -torch.inf),
        )  # fmt: skip


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
        """Of pairs in any order."""
        order = items.argsort(stable=True)
        return cls(rows[order], items[order], values[order], count, rest)

    @property
    def size(self) -> int:
        return len(self.rest)

    def block(self, low: int, high: int) -> Float[Tensor, "B n"]:
        some = slice(*torch.searchsorted(self.items, torch.tensor([low, high], device=self.items.device)).tolist())
        out = torch.zeros(self.count, high - low, device=self.items.device)
        out.index_put_((self.rows[some], self.items[some] - low), self.values[some], accumulate=True)
        return torch.where(out > 0, out, self.rest[low:high])


def sessions_of(store: Store, most: int) -> tuple[Jagged, Int[np.ndarray, "N"]]:
    """Training histories in stretches of at most so many events, cut from their ends; and when each ended (without
    times where it ends)."""
    starts, ends = store.offsets[:-1], store.bounds[:, 0]
    many = -(-(ends - starts) // most)
    of = np.repeat(np.arange(len(starts)), many)
    back = np.arange(len(of)) - np.repeat(np.cumsum(many) - many, many)
    closed = ends[of] - back * most
    rows = Jagged(store.items, np.maximum(closed - most, starts[of]), closed)
    return rows, closed if store.times is None else np.asarray(store.times)[closed - 1]


def nearest_first(rows: Int[Tensor, "n"], likeness: Float[Tensor, "n"], sessions: Int[Tensor, "n"]) -> Int[Tensor, "n"]:
    """Places by row, then by likeness, the largest first, then by session, the newest first."""
    order = sessions.argsort(descending=True, stable=True)
    order = order[likeness[order].argsort(descending=True, stable=True)]
    return order[rows[order].argsort(stable=True)]
