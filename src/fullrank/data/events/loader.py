"""Training batches: batch k is a pure function of (seed, k), so a resumed run reads what an unbroken one would.

An epoch's rows come from the task. The number of batches is the same in every epoch: rows are
laid in order of length (ties in random order) or at random, cut where the running total crosses
equal shares, and the batches are shuffled. A global batch is split into shards, one for each
process and micro-batch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Literal

import numpy as np
import torch

from fullrank.core.errors import UserError
from fullrank.core.jagged import Jagged
from fullrank.data.batch import Batch, BatchFeatures
from fullrank.data.events.store import Store
from fullrank.data.features import FeatureRows, HistoryFeatures

MakeSegments = Callable[[np.ndarray, np.random.Generator], tuple[np.ndarray, np.ndarray, np.ndarray]]
"""(training events of each user, draw) -> user, first event and end of each row of an epoch."""


class Batches(ABC):
    """Training batches; batch k is a pure function of (seed, k)."""

    by: Literal["tokens", "rows"]
    """The unit of `total`; `tokens` are events."""
    shards: int
    steps_per_epoch: int
    total: int
    """Events or rows in an epoch."""

    @abstractmethod
    def batch(self, k: int, shard: int = 0) -> Any:
        """One shard of global batch k (from 0, over all epochs)."""

    def iterate(self, start: int, stop: int, shards: range) -> Iterator[Any]:
        """The given shards of batches start .. stop - 1, in order."""
        for k in range(start, stop):
            for shard in shards:
                yield self.batch(k, shard)


@dataclass(frozen=True)
class _Epoch:
    """The plan of an epoch: its rows, cut into batches."""

    rows: Jagged
    """The R rows, as the task made them."""
    order: np.ndarray
    """[R] the rows one after another, as batches are cut from them."""
    edges: np.ndarray
    """[steps + 1] where the batches begin and end in `order`."""
    batch_order: np.ndarray
    """[steps] which of these batches comes at each step of the epoch."""


@dataclass(eq=False)
class Loader(Batches):
    """Batches of one store's training events: of about `size` events by tokens, of about `size` rows by rows."""

    store: Store
    segments: MakeSegments
    _: KW_ONLY
    by: Literal["tokens", "rows"]
    size: int
    seed: int
    shards: int = 1
    counts: Callable[[Batch], dict[str, int]] | None = None
    """Queries per group of a whole batch, where it is read in shards."""
    times: bool = False
    """Whether batches hold the times of events."""
    users: bool = False
    """Whether they hold the keys of users."""
    features: Collection[str] | None = None
    """Roles whose features they hold; None where they hold none."""
    wanted: Jagged | None = None
    """[U rows] which training events are to be predicted, as `segments` knows too; None is all."""

    def __post_init__(self) -> None:
        store = self.store
        self._times = store.times if self.times else None
        self._keys = store.user_keys if self.users else None
        self._lengths = np.asarray(store.bounds[:, 0] - store.offsets[:-1])
        if self.wanted is not None:  # events behind the last wanted one of a user predict nothing: cut them off
            at = np.flatnonzero(self.wanted.flat())
            users = self.wanted.row_of()[at]
            self._lengths = np.zeros_like(self._lengths)
            self._lengths[users] = at - self.wanted.offsets[users] + 1  # of a user's several, the last is written last
        self._planned: tuple[int, _Epoch] | None = None
        self._weights = store.row_weights
        owners, starts, ends = self.segments(self._lengths, self._draw(0))
        if len(ends) == 0:
            raise UserError(
                "no user has enough training events for this task; at least two per user are needed",
                code="too-few-events",
            )
        sizes = self._sizes(ends - starts)
        self.total = int(sizes.sum() if self._weights is None else np.ceil((sizes * self._weights[owners]).sum()))
        self.steps_per_epoch = max(1, min(-(-self.total // self.size), len(ends)))

    def batch(self, k: int, shard: int = 0) -> Batch:
        epoch, index = divmod(k, self.steps_per_epoch)
        plan = self._plan(epoch)
        at = plan.batch_order[index]
        rows = plan.order[plan.edges[at] : plan.edges[at + 1]]
        whole = self._batch_of(plan.rows.take(rows), k)
        if self.shards == 1:
            return whole
        counts = self.counts(whole) if self.counts is not None else None
        mine = rows[shard :: self.shards]
        empty = len(mine) == 0  # it takes part with a row that does not count
        batch = self._batch_of(plan.rows.take(rows[:1] if empty else mine), k)
        return replace(batch, counts=counts, empty_shard=empty)

    def _plan(self, epoch: int) -> _Epoch:
        if self._planned is None or self._planned[0] != epoch:
            self._planned = epoch, self._make_plan(epoch)
        return self._planned[1]

    def _features(self, rows: Jagged, users: np.ndarray, roles: Collection[str]) -> BatchFeatures:
        store = self.store
        people = store.user_features if "user" in roles else None
        user_rows = None if people is None else FeatureRows(people, users)
        return BatchFeatures.of(HistoryFeatures(store.event_features, store.request_features, user_rows), rows, roles)

    def _sizes(self, lengths: np.ndarray) -> np.ndarray:
        """The sizes of rows of these lengths, in the unit of batches."""
        return lengths if self.by == "tokens" else np.ones_like(lengths)

    def _draw(self, epoch: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, epoch])

    def _make_plan(self, epoch: int) -> _Epoch:
        draw = self._draw(epoch)
        users, starts, ends = self.segments(self._lengths, draw)
        if self._weights is not None:
            counts = _counts(self._weights[users], draw)
            users, starts, ends = (np.repeat(column, counts) for column in (users, starts, ends))
        first = np.asarray(self.store.offsets)[users]
        lengths = ends - starts
        tie = draw.random(len(users))
        order = np.lexsort((tie, lengths)) if self.by == "tokens" else np.argsort(tie)
        # A row belongs to the batch in whose equal share of the total it begins: batch =
        # floor(before * steps / total). `batch` rises, so its edges are where each
        # number would be inserted.
        size = self._sizes(lengths[order])
        before = np.cumsum(size) - size
        batch = before * self.steps_per_epoch // max(1, int(size.sum()))
        edges = np.searchsorted(batch, np.arange(self.steps_per_epoch + 1))
        full = np.flatnonzero(np.diff(edges))
        # a share without rows (a long row crossed two edges) repeats another batch, so
        # that the count stays fixed
        batch_order = draw.permutation(np.resize(full, self.steps_per_epoch))
        return _Epoch(Jagged(self.store.items, first + starts, first + ends), order, edges, batch_order)

    def _batch_of(self, rows: Jagged, k: int) -> Batch:
        items, times = (rows.padded(), None) if self._times is None else rows.padded_with(self._times)
        users = np.searchsorted(self.store.offsets, rows.starts, side="right") - 1
        return Batch(
            torch.from_numpy(items.astype(np.int64)),
            torch.from_numpy(rows.lengths),
            rows=torch.from_numpy(rows.ends),  # a row's end in the store names it: each prefix of a user has its own
            users=torch.from_numpy(users),
            user_keys=None if self._keys is None else torch.from_numpy(self._keys[users]),
            times=None if times is None else torch.from_numpy(times),
            wanted=None if self.wanted is None else torch.from_numpy(rows.over(self.wanted.values).padded()),
            features=None if self.features is None else self._features(rows, users, self.features),
            seed=self.seed,
            step=k,
        )


def _counts(weights: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    """How often each row stands in an epoch: its weight, whose fraction is left to
    chance; at least one row stands."""
    counts: np.ndarray = (np.floor(weights) + (draw.random(len(weights)) < weights % 1)).astype(np.int64)
    if not counts.any():
        counts[draw.integers(len(counts))] = 1
    return counts
