"""Ranked lists and the truth in, one value per user out; then means, errors and intervals.

Everything here is numpy on flat arrays: no torch, no loop over users. A metric is a function of a `Table`; those in
`PER_USER` (see `names`) give one float per user, those in `PER_LIST` one number for all lists together. U users,
K list length, V items, N targets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float, Int

SeenPolicy = Literal["exclude", "keep"]
"""Whether items of the history may be recommended again: `exclude` never ranks them, `keep` ranks them all."""


@dataclass(frozen=True)
class Ranking:
    """One ranked list per user. Order: score descending, then id ascending; -1 / -inf where the list is shorter."""

    ids: Int[np.ndarray, "U K"]
    scores: Float[np.ndarray, "U K"]
    seen: SeenPolicy
    steps: Int[np.ndarray, "U"] | None = None
    """Reasoning steps of each user where stopping was adaptive."""


@dataclass(frozen=True)
class Truth:
    """The distinct items that each user should be shown: user u's are items[offsets[u]:offsets[u+1]]; O = U + 1."""

    items: Int[np.ndarray, "N"]
    offsets: Int[np.ndarray, "O"]

    @property
    def counts(self) -> Int[np.ndarray, "U"]:
        return np.diff(self.offsets)

    @staticmethod
    def of(flat: Int[np.ndarray, "E"], starts: Int[np.ndarray, "U"], ends: Int[np.ndarray, "U"]) -> Truth:
        """User u's targets are the distinct ids in flat[starts[u]:ends[u]]."""
        rows, items = flatten(flat, starts, ends)
        if len(items) != len(starts) or np.any(ends - starts != 1):
            width = int(items.max(initial=0)) + 1
            rows, items = np.divmod(np.unique(rows * width + items), width)
        counts = np.bincount(rows, minlength=len(starts))
        return Truth(items, np.concatenate([[0], np.cumsum(counts)]).astype(np.int64))


@dataclass(frozen=True)
class Table:
    """What metrics read. `ids` is None under the sampled protocol, where there are places but no lists."""

    hits: Bool[np.ndarray, "U K"]
    """Whether the item at this place is one of the user's targets."""
    relevant: Int[np.ndarray, "U"]
    """How many targets the user has (at least 1)."""
    ids: Int[np.ndarray, "U K"] | None = None
    popularity: Int[np.ndarray, "V"] | None = None
    """Events per item, from the source that the protocol names (training events by default)."""
    history: Float[np.ndarray, "U"] | None = None
    """Mean popularity of the events in each user's history; 0 for an empty one."""


@runtime_checkable
class Metric(Protocol):
    def __call__(self, table: Table, k: int) -> Float[np.ndarray, "U"]: ...


def flatten(
    flat: Int[np.ndarray, "E"], starts: Int[np.ndarray, "U"], ends: Int[np.ndarray, "U"]
) -> tuple[Int[np.ndarray, "N"], Int[np.ndarray, "N"]]:
    """The slices flat[starts[u]:ends[u]] one after another, with the row u of each value."""
    counts = (ends - starts).astype(np.int64)
    rows = np.repeat(np.arange(len(counts)), counts)
    before = np.cumsum(counts) - counts
    at = np.arange(len(rows)) + np.repeat(starts - before, counts)
    return rows, np.asarray(flat[at], dtype=np.int64)


def match(ids: Int[np.ndarray, "U K"], truth: Truth) -> Bool[np.ndarray, "U K"]:
    """Which places of the lists hold one of the user's targets."""
    counts = truth.counts
    if np.all(counts == 1):
        return ids == truth.items[:, None]
    width = int(max(truth.items.max(initial=0), ids.max(initial=0))) + 1
    wanted = np.sort(np.repeat(np.arange(len(counts)), counts) * width + truth.items)
    given = np.arange(len(ids))[:, None] * width + ids
    at = np.searchsorted(wanted, given).clip(max=max(len(wanted) - 1, 0))
    return (wanted[at] == given) & (ids >= 0)
