"""What is shown, and to whom: exposure of unpopular items, mean popularity, inequality, coverage and novelty (SPRINT).

Popularity is a count of events per item from the source that the protocol names; training events by default, because
counting validation and test events leaks them (SPRINT's own code does; `Evaluation.popularity = "all"` repeats it).
Shapes: U users, k list length, V items, R resamples of the users.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from jaxtyping import Bool, Float, Int

from fullrank.core.jagged import Jagged
from fullrank.metrics import MetricInputs


def niche(popularity: Int[np.ndarray, "V"], alpha: float) -> Bool[np.ndarray, "V"]:
    """The floor(alpha V), at least one, least popular items; equal counts by ascending id."""
    size = max(int(Fraction(str(alpha)) * len(popularity)), 1)  # 0.29 * 100 is 28.99... in binary
    chosen = np.zeros(len(popularity), dtype=bool)
    chosen[np.argsort(popularity, kind="stable")[:size]] = True
    return chosen


def fair(table: MetricInputs, k: int, alpha: float) -> Float[np.ndarray, "U"]:
    """Share of the k places that hold one of the floor(alpha V) least popular items. An empty place holds none."""
    ids, popularity = full_lists(table)
    ids = ids[:, :k]
    return (niche(popularity, alpha)[ids] & (ids >= 0)).sum(1) / k


def arp(table: MetricInputs, k: int) -> Float[np.ndarray, "U"]:
    """Mean popularity (events) of the items in the first k places; empty places do not count, no items give 0."""
    ids, popularity = full_lists(table)
    return mean_over_items(ids[:, :k], popularity)


def lift(table: MetricInputs, k: int) -> Float[np.ndarray, "U"]:
    """`arp` over the mean popularity of the user's history (its events): 1 is a list as popular as the user's choices.

    The popularity lift of Abdollahpouri et al. (RecSys 2020) is this less 1, there for groups of users. 1 where the
    history is empty or has no item with an event, because nothing can be told; 0 where the list is empty, as in `arp`.
    """
    assert table.history is not None, "this metric reads histories"
    known = table.history > 0
    return np.where(known, arp(table, k) / np.where(known, table.history, 1.0), 1.0)


def repeat(table: MetricInputs, k: int) -> Float[np.ndarray, "U"]:
    """Share of the k places that hold an item of the user's own history: 0 where the history is excluded.

    Where it is ranked, a list that gives back what was chosen is as unpopular as the choices were: read `fair` and
    `arp` beside it.
    """
    assert table.repeats is not None, "this metric reads histories"
    return table.repeats[:, :k].sum(1) / k


def history_popularity(
    histories: Jagged, popularity: Int[np.ndarray, "V"], chunk: int = 1 << 16
) -> Float[np.ndarray, "U"]:
    """Mean popularity of the item ids of each of the U histories, repeats included; 0 of none."""
    means = np.zeros(len(histories))
    for low in range(0, len(histories), chunk):
        some = histories.take(slice(low, low + chunk))
        sums = np.bincount(some.row_of(), popularity[some.flat()], len(some))
        means[low : low + chunk] = sums / np.maximum(some.lengths, 1)
    return means


def gini(exposure: Int[np.ndarray, "R V"]) -> Float[np.ndarray, "R"]:
    """Inequality of exposure over the whole catalogue: 0 all items equally often, (V-1)/V one item always.

    sum over ascending places r = 1 .. V of (2r - V - 1) x_r / (V sum x), items never shown included. S rows, one for
    each set of lists.
    """
    size = exposure.shape[-1]
    weights = 2.0 * np.arange(1, size + 1) - size - 1
    total = exposure.sum(-1)
    return (np.sort(exposure, axis=-1) @ weights) / (size * np.maximum(total, 1))


def gini_without(lists: Int[np.ndarray, "U k"], exposure: Int[np.ndarray, "V"]) -> Float[np.ndarray, "U"]:
    """The Gini of all lists but user u's, for every u. `exposure` is that of all lists.

    V sum(x) gini is the sum over pairs of items of |x_i - x_j|. Showing an item once less brings it one nearer to
    every item shown less often and one further from all others, except from those that lose a place with it.
    """
    size = len(exposure)
    below = np.searchsorted(np.sort(exposure), exposure)
    change = np.append(size - 1 - 2 * below, 0)  # the last is what an empty place (id -1) changes
    pairs = (np.sort(exposure) * (2 * np.arange(1, size + 1) - size - 1)).sum()
    left = exposure.sum() - (lists >= 0).sum(1)
    return (pairs + change[lists].sum(1) - 2 * _equal_pairs(lists, exposure)) / (size * np.maximum(left, 1))


def _equal_pairs(lists: Int[np.ndarray, "U k"], exposure: Int[np.ndarray, "V"]) -> Int[np.ndarray, "U"]:
    """How many pairs of items in each list are shown equally often."""
    places = np.arange(lists.shape[1])
    shown = np.sort(np.where(lists >= 0, exposure[lists], -1 - places), axis=1)  # empty places equal nothing
    first = np.zeros_like(shown)
    first[:, 1:] = np.where(shown[:, 1:] == shown[:, :-1], 0, places[1:])
    return (places - np.maximum.accumulate(first, axis=1)).sum(1)


def mean_over_items(ids: Int[np.ndarray, "U k"], value: np.ndarray) -> Float[np.ndarray, "U"]:
    """Mean of value[item] over the filled places of each list; 0 for an empty list."""
    filled = ids >= 0
    return np.where(filled, value[ids], 0.0).sum(1) / np.maximum(filled.sum(1), 1)


def full_lists(table: MetricInputs) -> tuple[Int[np.ndarray, "U k"], Int[np.ndarray, "V"]]:
    assert table.ids is not None and table.popularity is not None, "this metric reads full lists"
    return table.ids, table.popularity


def coverage(exposure: Int[np.ndarray, "R V"]) -> Float[np.ndarray, "R"]:
    """Share of the catalogue's items that occur in at least one list."""
    return (exposure > 0).mean(-1)


def coverage_without(lists: Int[np.ndarray, "U k"], exposure: Int[np.ndarray, "V"]) -> Float[np.ndarray, "U"]:
    """The coverage of all lists but user u's, for every u. `exposure` is that of all lists."""
    alone = (exposure == 1)[lists] & (lists >= 0)
    return ((exposure > 0).sum() - alone.sum(1)) / len(exposure)


def novelty(table: MetricInputs, k: int) -> Float[np.ndarray, "U"]:
    """Mean self-information, in bits, of the items in the first k places (Zhou et al. 2010); empty places do not count.

    An item's probability is (events + 1) / (all events + V): one is added so that items never seen stay finite.
    """
    ids, popularity = full_lists(table)
    bits = -np.log2((popularity + 1) / (popularity.sum() + len(popularity)))
    return mean_over_items(ids[:, :k], bits)


def exposures(ids: Int[np.ndarray, "U k"], size: int) -> Int[np.ndarray, "V"]:
    """How often each of `size` items occurs in the lists."""
    return np.bincount(ids[ids >= 0], minlength=size)
