"""Histories: what each user did, oldest first, as ragged arrays of item ids and times."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Int

from fullrank.core.jagged import Jagged, Rows
from fullrank.core.parted import Flat
from fullrank.data.user_keys import UserKeys

MANY_REPEATS = 0.01
"""Share of targets in their own users' histories above which it is told, and validation ranks the history."""


@dataclass(frozen=True)
class Histories:
    """The events of some users. A store gives them, requests become them, models and metrics read them."""

    items: Jagged
    """[U rows] item ids."""
    times: Int[Flat, "E"] | None = None
    """Seconds since 1970 beside `items.values`; None where nobody knows them."""
    users: Int[np.ndarray, "U"] | None = None
    """Rows of the store's users, which a model sees as `Batch.rows`; None numbers them 0, 1, ..."""
    keys: UserKeys | None = None
    """Numbers made of the users' ids, for models that read them; None where nobody knows who they are."""

    def __len__(self) -> int:
        return len(self.items)

    @property
    def lengths(self) -> Int[np.ndarray, "U"]:
        """Events of each user."""
        return self.items.lengths

    @property
    def seconds(self) -> Jagged | None:
        """[U rows] times, where they are known."""
        return None if self.times is None else self.items.over(self.times)

    def take(self, rows: Rows) -> Histories:
        """Some of the users, in the order given."""
        users = None if self.users is None else self.users[rows]
        keys = None if self.keys is None else self.keys.take(rows)
        return Histories(self.items.take(rows), self.times, users, keys)


@dataclass(frozen=True)
class EvalSet:
    """Users of a split: the history of each, and the items that they chose after it (the targets of an evaluation)."""

    histories: Histories
    targets: Jagged
    """[U rows] item ids, oldest first; they lie right behind the history."""

    @property
    def users(self) -> Int[np.ndarray, "U"]:
        """Rows of the store's users."""
        assert self.histories.users is not None
        return self.histories.users

    @cached_property
    def truth(self) -> Jagged:
        """[U rows] the distinct ids of each user's targets, which metrics read."""
        return self.targets.distinct()

    @property
    def next_items(self) -> Int[np.ndarray, "U"]:
        """What each user chose next: the first of their targets."""
        return np.asarray(self.targets.values[self.targets.starts])

    def repeated_targets(self, chunk: int = 1 << 16) -> int:
        """How many of `truth` stand in their own user's history: where the history is excluded, none can be hit."""
        count = 0
        for low in range(0, len(self), chunk):
            users = self.take(slice(low, low + chunk))
            truth, seen = users.truth, users.histories.items
            items = seen.flat()
            if (truth.lengths == 1).all():  # one target each: no need to sort anything
                hits = np.flatnonzero(items == np.repeat(truth.flat(), seen.lengths))
                count += len(np.unique(np.searchsorted(seen.offsets, hits, side="right")))
                continue
            width = int(max(truth.values.max(initial=0), items.max(initial=0))) + 1
            count += int(np.isin(truth.keys(width), seen.keys(width)).sum())
        return count

    def __len__(self) -> int:
        return len(self.targets)

    def take(self, rows: Rows) -> EvalSet:
        """Some of the users, in the order given."""
        return EvalSet(self.histories.take(rows), self.targets.take(rows))
