"""Ranked lists and the truth in, one value per user out; then means, errors and intervals.

Everything here is numpy on flat arrays: no torch, no loop over users. A metric is a function of
`MetricInputs`; those in `ACCURACY` and `EXPOSURE` (see `names`) give one float per user, those in
`PER_LIST` one number for all lists. Shapes: U users, k list length, V items. The `truth` is the
distinct items that each user should be shown: U rows of ids (`core.jagged.Jagged.distinct`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float, Int

from fullrank.core.jagged import Jagged

SeenPolicy = Literal["exclude", "keep"]
"""Whether items of the history may be recommended again: `exclude` never ranks them, `keep` ranks them all."""
UserValues = Float[np.ndarray, "U"]
"""A number for each user."""
RowValues = Float[np.ndarray, "N"]
"""A number for each row: an impression."""
RankedIds = Int[np.ndarray, "U k"]
"""The items of each user's list, best first; -1 where it is shorter."""
ItemCounts = Int[np.ndarray, "V"]
"""Counts of each item: in events (its popularity), or in lists (its exposure)."""


@dataclass(frozen=True)
class RankedLists:
    """One ranked list per user. Order: score descending, then id ascending; -1 / -inf where the list is shorter."""

    ids: RankedIds
    scores: Float[np.ndarray, "U k"]
    seen: SeenPolicy
    steps: Int[np.ndarray, "U"] | None = None
    """Reasoning steps of each user where stopping was adaptive."""


@dataclass(frozen=True)
class MetricInputs:
    """Input of every metric: the hits of U lists of length k, and what else a metric reads of lists, items and users.

    `ids` is None under the sampled protocol, where there are places but no lists.
    """

    hits: Bool[np.ndarray, "U k"]
    """Whether the item at this place is one of the user's targets."""
    relevant: Int[np.ndarray, "U"]
    """Number of the user's targets (at least 1)."""
    ids: RankedIds | None = None
    popularity: ItemCounts | None = None
    """Events per item, from the source that the protocol names (training events by default)."""
    history: UserValues | None = None
    """Mean popularity of the events in each user's history; 0 for an empty one."""
    repeats: Bool[np.ndarray, "U k"] | None = None
    """Whether the item at this place is in the user's own history."""
    categories: Int[np.ndarray, "V L"] | None = None
    """Codes of the categories of each item; 0 and less are none."""


@runtime_checkable
class Metric(Protocol):
    def __call__(self, table: MetricInputs, k: int) -> UserValues: ...


def match(ids: RankedIds, truth: Jagged) -> Bool[np.ndarray, "U k"]:
    """Mask of the places of the lists that hold one of the user's targets.

    A pair (user, item) is one number, user * width + item, so that one binary search
    finds the pairs of all users.
    """
    wanted = truth.flat()
    if np.all(truth.lengths == 1):
        return ids == wanted[:, None]
    width = int(max(wanted.max(initial=0), ids.max(initial=0))) + 1
    keys = np.sort(truth.keys(width))
    listed = np.arange(len(ids))[:, None] * width + ids
    positions = np.searchsorted(keys, listed).clip(max=max(len(keys) - 1, 0))
    return (keys[positions] == listed) & (ids >= 0)
