"""Metrics of ranked lists, one value per user: whether and how early targets come, what is shown, how much it differs.

Accuracy: hit, recall, precision, F1, nDCG, reciprocal rank and average precision at k. Relevance is
0 or 1. k places, `table.relevant` targets per user; a target can be hit once. All are 0 .. 1 and
equal the measures of the same name in trec_eval (Success, R, P, nDCG, RR, AP with a cut-off; it has
no F1 with one).

Exposure: of unpopular items, mean popularity, inequality, coverage and novelty (SPRINT). Popularity
is a count of events per item from the source that the protocol names; training events by default,
because counting validation and test events leaks them (SPRINT's own code does;
`Evaluation.popularity = "all"` repeats it).

Diversity: how different the items of one list are, by a category of theirs or by lists of
categories.

Shapes: U users, k list length, V items, R resamples of the users.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from jaxtyping import Bool, Float, Int

from fullrank.core.jagged import Jagged
from fullrank.metrics import ItemCounts, MetricInputs, RankedIds, UserValues


def hit(table: MetricInputs, k: int) -> UserValues:
    """1 where any of the first k places holds a target."""
    return np.asarray(table.hits[:, :k].any(1), np.float64)


def recall(table: MetricInputs, k: int) -> UserValues:
    """The share of the user's targets among the first k places."""
    return table.hits[:, :k].sum(1) / table.relevant


def precision(table: MetricInputs, k: int) -> UserValues:
    """The share of the k places that hold a target; an empty place holds none (trec_eval's P)."""
    return table.hits[:, :k].sum(1) / k


def f1(table: MetricInputs, k: int) -> UserValues:
    """Harmonic mean of precision and recall, 2 P R / (P + R) = 2 hits / (k + targets) (van
    Rijsbergen 1979); 0 without a hit."""
    return 2 * table.hits[:, :k].sum(1) / (k + table.relevant)


def ndcg(table: MetricInputs, k: int) -> UserValues:
    """Sum over hits of 1 / log2(place + 1), over that sum for the best list of k (Jarvelin, Kekalainen 2002)."""
    discounts = 1 / np.log2(np.arange(2, k + 2))
    ideal = np.cumsum(discounts)[np.minimum(table.relevant, k) - 1]
    hits = table.hits[:, :k]
    return hits @ discounts[: hits.shape[1]] / ideal


def mrr(table: MetricInputs, k: int) -> UserValues:
    """1 / place of the first hit within k, else 0."""
    hits = table.hits[:, :k]
    return hits.any(1) / (hits.argmax(1) + 1.0)


def average_precision(table: MetricInputs, k: int) -> UserValues:
    """Sum over hits within k of (hits so far / place), over the number of targets."""
    hits = table.hits[:, :k]
    precision = np.cumsum(hits, 1) / np.arange(1, hits.shape[1] + 1)
    return (precision * hits).sum(1) / table.relevant


def niche(popularity: ItemCounts, alpha: float) -> Bool[np.ndarray, "V"]:
    """The floor(alpha V), at least one, least popular items; equal counts by ascending id."""
    size = max(int(Fraction(str(alpha)) * len(popularity)), 1)  # 0.29 * 100 is 28.99... in binary
    chosen = np.zeros(len(popularity), dtype=bool)
    chosen[np.argsort(popularity, kind="stable")[:size]] = True
    return chosen


def fair(table: MetricInputs, k: int, alpha: float) -> UserValues:
    """Share of the k places that hold one of the floor(alpha V) least popular
    items. An empty place holds none."""
    ids, popularity = full_lists(table)
    ids = ids[:, :k]
    return (niche(popularity, alpha)[ids] & (ids >= 0)).sum(1) / k


def arp(table: MetricInputs, k: int) -> UserValues:
    """Mean popularity (events) of the items in the first k places; empty places do not count, no items give 0."""
    ids, popularity = full_lists(table)
    return mean_over_items(ids[:, :k], popularity)


def lift(table: MetricInputs, k: int) -> UserValues:
    """`arp` over the mean popularity of the user's history (its events): 1 is a list as popular as what the user chose.

    The popularity lift of Abdollahpouri et al. (RecSys 2020) is this less 1, there for groups of
    users. It is 1 where the history is empty or has no item with an event, because nothing can be
    told, and 0 where the list is empty, as in `arp`.
    """
    assert table.history is not None, "this metric reads histories"
    known = table.history > 0
    return np.where(known, arp(table, k) / np.where(known, table.history, 1.0), 1.0)


def repeat(table: MetricInputs, k: int) -> UserValues:
    """Share of the k places that hold an item of the user's own history: 0 where the history is excluded.

    Where it is ranked, a list that gives back what was chosen is as unpopular as the choices were:
    read `fair` and `arp` beside it.
    """
    assert table.repeats is not None, "this metric reads histories"
    return table.repeats[:, :k].sum(1) / k


def history_popularity(histories: Jagged, popularity: ItemCounts, chunk: int = 1 << 16) -> UserValues:
    """Mean popularity of the item ids of each of the U histories, repeats included; 0 of none."""
    means = np.zeros(len(histories))
    for low in range(0, len(histories), chunk):
        rows = histories.take(slice(low, low + chunk))
        sums = np.bincount(rows.row_of(), popularity[rows.flat()], len(rows))
        means[low : low + chunk] = sums / np.maximum(rows.lengths, 1)
    return means


def gini(exposure: Int[np.ndarray, "R V"]) -> Float[np.ndarray, "R"]:
    """Inequality of exposure over all items: 0 where all are shown equally often, (V - 1) / V where only one is shown.

    It is the sum over ascending places r = 1 .. V of (2r - V - 1) x_r / (V sum x), where x_r
    is how often the item at place r is shown; items never shown count too. One number for
    each of R sets of lists.
    """
    size = exposure.shape[-1]
    weights = 2.0 * np.arange(1, size + 1) - size - 1
    total = exposure.sum(-1)
    return (np.sort(exposure, axis=-1) @ weights) / (size * np.maximum(total, 1))


def gini_without(lists: RankedIds, exposure: ItemCounts) -> UserValues:
    """The Gini of all lists but user u's, for every u. `exposure` is that of all lists.

    V sum(x) gini is the sum over pairs of items of |x_i - x_j|. Showing an item once less brings it
    one nearer to every item shown less often and one further from all others, except from those
    that lose a place with it.
    """
    size = len(exposure)
    below = np.searchsorted(np.sort(exposure), exposure)
    change = np.append(size - 1 - 2 * below, 0)  # the last is what an empty place (id -1) changes
    pairs = (np.sort(exposure) * (2 * np.arange(1, size + 1) - size - 1)).sum()
    left = exposure.sum() - (lists >= 0).sum(1)
    return (pairs + change[lists].sum(1) - 2 * _equal_pairs(lists, exposure)) / (size * np.maximum(left, 1))


def _equal_pairs(lists: RankedIds, exposure: ItemCounts) -> Int[np.ndarray, "U"]:
    """Number of pairs of items in each list that are shown equally often."""
    places = np.arange(lists.shape[1])
    shown = np.sort(np.where(lists >= 0, exposure[lists], -1 - places), axis=1)  # empty places equal nothing
    # Sorted, equal counts are a run: an item has as many pairs as it stands behind its run's first.
    first = np.zeros_like(shown)
    first[:, 1:] = np.where(shown[:, 1:] == shown[:, :-1], 0, places[1:])
    return (places - np.maximum.accumulate(first, axis=1)).sum(1)


def mean_over_items(ids: RankedIds, value: np.ndarray) -> UserValues:
    """Mean of value[item] over the filled places of each list; 0 for an empty list."""
    filled = ids >= 0
    return np.where(filled, value[ids], 0.0).sum(1) / np.maximum(filled.sum(1), 1)


def full_lists(table: MetricInputs) -> tuple[RankedIds, ItemCounts]:
    """The lists and the popularity of items, for metrics that read both."""
    assert table.ids is not None and table.popularity is not None, "this metric reads full lists"
    return table.ids, table.popularity


def coverage(exposure: Int[np.ndarray, "R V"]) -> Float[np.ndarray, "R"]:
    """Share of the catalogue's items that occur in at least one list."""
    return (exposure > 0).mean(-1)


def coverage_without(lists: RankedIds, exposure: ItemCounts) -> UserValues:
    """The coverage of all lists but user u's, for every u. `exposure` is that of all lists."""
    alone = (exposure == 1)[lists] & (lists >= 0)
    return ((exposure > 0).sum() - alone.sum(1)) / len(exposure)


def novelty(table: MetricInputs, k: int) -> UserValues:
    """Mean self-information, in bits, of the items in the first k places (Zhou et al. 2010); empty places do not count.

    An item's probability is (events + 1) / (all events + V): one is added so that
    items never seen stay finite.
    """
    ids, popularity = full_lists(table)
    bits = -np.log2((popularity + 1) / (popularity.sum() + len(popularity)))
    return mean_over_items(ids[:, :k], bits)


def exposures(ids: RankedIds, size: int) -> ItemCounts:
    """Counts of each of `size` items in the lists."""
    return np.bincount(ids[ids >= 0], minlength=size)


CELLS = 1 << 22
"""Comparisons of two categories held at once."""


def ild(table: MetricInputs, k: int) -> UserValues:
    """Intra-list diversity: mean distance of all pairs of items in the first k places (Smyth,
    McClave 2001; Ziegler et al. 2005).

    ILD = 2 / (n (n - 1)) * sum over pairs of d(i, j), with the Jaccard distance d = 1 - |A
    and B| / |A or B| of the items' categories: of one category each, 0 where it is the same
    and 1 where not. Items without a category have no distance and are left out; a list with
    fewer than two others has 0.
    """
    assert table.ids is not None and table.categories is not None, "this metric reads lists and categories"
    codes = table.categories
    chunk = max(CELLS // codes.shape[1] ** 2, 1)
    parts = [_ild(table.ids[low : low + chunk, :k], codes) for low in range(0, len(table.ids), chunk)]
    return np.concatenate([*parts, np.zeros(0)])


def _ild(ids: RankedIds, codes: Int[np.ndarray, "V L"]) -> UserValues:
    size = (codes > 0).sum(1)
    counts = (ids >= 0) & (size[ids] > 0)  # an empty place (-1) reads the last item, and is masked
    total, pairs = np.zeros(len(ids)), np.zeros(len(ids))
    for i in range(1, ids.shape[1]):
        for j in range(i):
            both = counts[:, i] & counts[:, j]
            a, b = codes[ids[:, i]], codes[ids[:, j]]
            shared = ((a[:, :, None] == b[:, None, :]) & (a > 0)[:, :, None]).sum((1, 2))
            union = size[ids[:, i]] + size[ids[:, j]] - shared
            total += np.where(both, 1 - shared / np.maximum(union, 1), 0)
            pairs += both
    return total / np.maximum(pairs, 1)
