"""Does the order of events matter? A shuffle test on counts, without a model.

C(a, b) counts how often b comes right behind a in the training parts of the histories, C(a) how
often anything does. A validation target v behind a last training event a has the probability p(v
| a) = (C(a, v) + A q(v)) / (C(a) + A), where q(v) is the share of the training events that v has
and A = `PRIOR`. The same is counted in two other orders: `shuffled`, where the training events of
each user stand in random order, and `untied`, where only those of one moment do. If order says
nothing, all three give the same but for chance. A factor of order is two to the power of a
difference of mean logarithms.

Nothing is sorted. In random order any other event stands behind an event with equal chance, so one
is drawn: `Order` needs no more than which pair follows which. Draws are a function of the user's
key and the place of the event. Of many events only those of some items are counted, items drawn by
their number, but of these items all events, so counts are not thinned.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float64, Int, Int64

from fullrank.core.random import uniform_of_rows
from fullrank.data.events.store import Store

BLOCK = 1 << 15
"""Events of a block, which fit the processor's own memory; those of a user lie in one block."""
FOLLOWED, FOLLOWED_SHARE = 1 << 16, 16
"""Events behind which the next are counted: at least the first number, or one of the second."""
LEAST = 30
"""Fewest users for whom there is an interval."""
PRIOR = 100.0
Ints = Int[np.ndarray, "n"]
Bits = Float64[np.ndarray, "n"]


class Block(NamedTuple):
    """The events of some users."""

    users: range
    start: int
    """Position of the first event among all."""
    items: Ints
    begins: Bool[np.ndarray, "n"]
    """Whether an event is its user's first."""
    times: Int64[np.ndarray, "n"] | None
    tied: Bool[np.ndarray, "n"]
    """Whether an event is at the moment of the one before, of the same user."""


def blocks(store: Store) -> Iterator[Block]:
    """All events, the users in order."""
    edges = np.searchsorted(store.offsets[:-1], np.arange(0, store.num_events + BLOCK, BLOCK))
    for low, high in zip(edges.tolist(), edges[1:].tolist(), strict=False):
        offsets = store.offsets[low : high + 1]
        start, stop = int(offsets[0]), int(offsets[-1])
        if start == stop:
            continue
        begins, tied = np.zeros(stop - start, bool), np.zeros(stop - start, bool)
        begins[offsets[:-1][offsets[:-1] < stop] - start] = True
        times = None if store.times is None else np.asarray(store.times[start:stop])
        if times is not None:
            tied[1:] = (times[1:] == times[:-1]) & ~begins[1:]
        yield Block(range(low, high), start, np.asarray(store.items[start:stop]), begins, times, tied)


class Order(NamedTuple):
    """Bits by which a user's last event predicts their validation target better than popularity
    does: a number for each user whose last item was drawn, in three orders of the events."""

    real: Bits
    shuffled: Bits
    untied: Bits

    def factor(self, other: Bits) -> tuple[float, float, float]:
        """How many times as likely the target is in an order as in `shuffled`, and
        the ends of its 95 % interval."""
        pair = [np.sort(bits) for bits in (other, self.shuffled)]  # sums do not depend on the order of users
        mean = float(pair[0].mean() - pair[1].mean())
        half = 1.96 * math.sqrt(sum(float(bits.var()) / len(bits) for bits in pair))
        return 2**mean, 2 ** (mean - half), 2 ** (mean + half)


def order_of(store: Store) -> Order:
    """The bits of each order. Arrays without a user in their name are of training events of drawn items."""
    items, starts, keys, popularity = store.items, store.offsets[:-1], store.user_keys, store.catalog.popularity
    ends, until, width = store.bounds[:, 0], store.bounds[:, 1], store.num_items
    most = max(FOLLOWED, store.num_events // FOLLOWED_SHARE)
    drawn = uniform_of_rows(0, np.arange(width)) * store.num_events < most
    places, first, last, second = np.concatenate([_moments(block, drawn) for block in blocks(store)], axis=1)
    users = np.searchsorted(store.offsets, places, side="right") - 1
    trained = places < ends[users]
    places, first, last, second, users = (x[trained] for x in (places, first, last, second, users))
    start, end, key = starts[users], ends[users], keys[users] + (places - starts[users])

    # The event behind each, in the three orders, and whether there is one. `untied`: an event is
    # the last of its moment with equal chance, and any event of the next moment follows; else
    # another one of its own moment does.
    shuffled = start + _other(places - start, end - start, uniform_of_rows(1, key))
    last, second = np.minimum(last, end), np.minimum(second, end)
    chance = uniform_of_rows(2, key) * (last - first)
    is_last = chance < 1  # a chance below 1 is uniform again, and serves the next draw
    to_next = last + (chance * (second - last)).astype(np.int64)
    within = first + (places - first + chance.astype(np.int64)) % (last - first)  # 1 .. size - 1 places on, in a circle
    untied = np.where(is_last, to_next, within)
    user_last = starts + (uniform_of_rows(3, keys) * (ends - starts)).astype(np.int64)  # once shuffled
    behind = (places + 1, places + 1 < end), (shuffled, places != user_last[users]), (untied, ~is_last | (last < end))

    # The last event of each user with a validation target, in the three orders.
    tested = np.flatnonzero((ends - starts >= 2) & (until > ends))
    final = ends[tested] - 1
    moment = _first_of_moment(store, starts[tested], final)
    tied = moment + (uniform_of_rows(4, keys[tested]) * (final + 1 - moment)).astype(np.int64)
    targets, bits = items[ends[tested]], []
    share = (popularity + 1) / (popularity.sum() + width)
    for (follower, exists), last_event in zip(behind, (final, user_last[tested], tied), strict=True):
        a, b = items[places[exists]].astype(np.int64), items[follower[exists]]
        source = items[last_event].astype(np.int64)
        source, target = source[drawn[source]], targets[drawn[source]]
        counts = _counts(a * width + b, source * width + target)
        bits.append(np.log2((counts / share[target] + PRIOR) / (np.bincount(a, minlength=width)[source] + PRIOR)))
    return Order(*bits)


def _moments(block: Block, drawn: Bool[np.ndarray, "V"]) -> Int64[np.ndarray, "4 n"]:
    """Positions of the events of drawn items; where the moment of each begins and ends,
    and where the next one ends."""
    rows, size = np.flatnonzero(drawn[block.items]), len(block.items)
    # moment m is from edges[m - 1] to edges[m]; the size twice, for the moment behind the last
    edges, moment = np.concatenate([np.flatnonzero(~block.tied), [size, size]]), np.cumsum(~block.tied)[rows]
    return np.stack([rows, edges[moment - 1], edges[moment], edges[moment + 1]]) + block.start


def _other(index: Ints, length: Ints, chance: Bits) -> Ints:
    """Another index of 0 .. length - 1, each with equal chance; the same
    one where there is no other."""
    return np.asarray((index + 1 + (chance * (length - 1)).astype(np.int64)) % length)


def _first_of_moment(store: Store, low: Ints, high: Ints) -> Ints:
    """The first position from `low` on whose time is that of `high`, by
    bisection: times rise within a user."""
    if store.times is None:
        return high
    moment = store.times[high]
    while (low < high).any():
        middle = (low + high) // 2
        before = store.times[middle] < moment
        low, high = np.where(before, middle + 1, low), np.where(before, high, middle)
    return low


def _counts(pairs: Int[np.ndarray, "p"], wanted: Ints) -> Ints:
    """How often each of the `wanted` stands among the pairs, of which a table
    of hashes leaves few to sort."""
    size = 4 * len(wanted)
    filled = np.zeros(1 << (2 + size.bit_length()), bool)
    filled[slots(wanted, size)] = True
    likely, counts = np.unique(pairs[np.flatnonzero(filled[slots(pairs, size)])], return_counts=True)
    if not len(likely):
        return np.zeros(len(wanted), np.int64)
    at = np.minimum(np.searchsorted(likely, wanted), len(likely) - 1)
    return np.where(likely[at] == wanted, counts[at], 0)


def slots(keys: Ints, size: int) -> np.ndarray:
    """The slot of each key in a table of at least four times `size` (Fibonacci hashing)."""
    return (keys.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(62 - size.bit_length())
