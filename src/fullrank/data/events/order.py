"""Does the order of events matter? A shuffle test on counts, without a model.

C(a, b) counts how often b comes right behind a in the training parts of the histories. A validation target v behind a
last training event a has the probability p(v | a) = (C(a, v) + A q(v)) / (C(a) + A), where q(v) is the share of the
training events that v has and A = `PRIOR`. The same is counted in two other orders: `shuffled`, where the training
events of each user stand in random order, and `untied`, where those of one moment do. If order says nothing, all give
the same but for chance. A factor of order is two to the difference of the mean logarithms.

Nothing is sorted: behind an event stands, in random order, any other one with equal chance, so one is drawn (`Order`
needs no more than which pair follows which). Draws are a function of the user's key and the place of the event. Of many
events those are counted whose item was drawn by its number, all of them, so counts are not thinned.
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
"""Events that are looked at at once, which the processor's own memory holds; those of a user lie in one block."""
FOLLOWED, FOLLOWED_SHARE = 1 << 16, 16
"""Events behind which the next are counted: at least so many, or one of so many."""
LEAST = 30
"""Users below whom there is no interval."""
PRIOR = 100.0
Ints = Int[np.ndarray, "n"]
Bits = Float64[np.ndarray, "n"]


class Block(NamedTuple):
    """The events of some users."""

    users: range
    start: int
    """The place of the first event among all."""
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
    """Bits by which the last event of a user tells their validation target better than popularity does, of those whose
    last event is of an item that was drawn."""

    real: Bits
    shuffled: Bits
    untied: Bits

    def factor(self, other: Bits) -> tuple[float, float, float]:
        """How many times as likely another order, or the real one, makes the target as `shuffled` does, and the ends of
        the interval of 95 %."""
        bits = [np.sort(one) for one in (other, self.shuffled)]  # a sum that does not depend on the order of users
        mean = float(bits[0].mean() - bits[1].mean())
        half = 1.96 * math.sqrt(sum(float(one.var()) / len(one) for one in bits))
        return 2**mean, 2 ** (mean - half), 2 ** (mean + half)


def order_of(store: Store) -> Order:
    """The bits of each order."""
    items, starts, keys, popularity = store.items, store.offsets[:-1], store.user_keys, store.catalog.popularity
    ends, until, width = store.bounds[:, 0], store.bounds[:, 1], store.num_items
    most = max(FOLLOWED, store.num_events // FOLLOWED_SHARE)
    drawn = uniform_of_rows(0, np.arange(width)) * store.num_events < most
    places, first, last, second = np.concatenate([_moments(block, drawn) for block in blocks(store)], axis=1)
    users = np.searchsorted(store.offsets, places, side="right") - 1
    trained = places < ends[users]
    places, first, last, second, users = (one[trained] for one in (places, first, last, second, users))
    start, end, key = starts[users], ends[users], keys[users] + (places - starts[users])

    other = start + _other(places - start, end - start, uniform_of_rows(1, key))
    last, second = np.minimum(last, end), np.minimum(second, end)
    chance = uniform_of_rows(2, key) * (last - first)
    is_last = chance < 1  # of its moment; what is left of its chance is one again
    untied = np.where(is_last, last + (chance * (second - last)).astype(np.int64),
                      first + (places - first + chance.astype(np.int64)) % (last - first))  # fmt: skip
    any_one = starts + (uniform_of_rows(3, keys) * (ends - starts)).astype(np.int64)  # the last one, once shuffled
    behind = (places + 1, places + 1 < end), (other, places != any_one[users]), (untied, ~is_last | (last < end))

    asked = np.flatnonzero((ends - starts >= 2) & (until > ends))
    final = ends[asked] - 1
    moment = _first_of_moment(store, starts[asked], final)
    tied = moment + (uniform_of_rows(4, keys[asked]) * (final + 1 - moment)).astype(np.int64)
    targets, found = items[ends[asked]], []
    share = (popularity + 1) / (popularity.sum() + width)
    for (next_one, there), last_one in zip(behind, (final, any_one[asked], tied), strict=True):
        a, b = items[places[there]].astype(np.int64), items[next_one[there]]
        source = items[last_one].astype(np.int64)
        source, target = source[drawn[source]], targets[drawn[source]]
        counts = _counts(a * width + b, source * width + target)
        found.append(np.log2((counts / share[target] + PRIOR) / (np.bincount(a, minlength=width)[source] + PRIOR)))
    return Order(*found)


def _moments(block: Block, drawn: Bool[np.ndarray, "V"]) -> Int64[np.ndarray, "4 n"]:
    """The places of events of items that were drawn; where their moment begins and ends, and where the next ends."""
    here, size = np.flatnonzero(drawn[block.items]), len(block.items)
    edges, number = np.concatenate([np.flatnonzero(~block.tied), [size, size]]), np.cumsum(~block.tied)[here]
    return np.stack([here, edges[number - 1], edges[number], edges[number + 1]]) + block.start


def _other(place: Ints, length: Ints, chance: Bits) -> Ints:
    """Another place of 0 .. length - 1, each with equal chance; the same one where there is no other."""
    return np.asarray((place + 1 + (chance * (length - 1)).astype(np.int64)) % length)


def _first_of_moment(store: Store, low: Ints, high: Ints) -> Ints:
    """The first place from `low` on, of the same user, that is at the moment of the event at `high`."""
    if store.times is None:
        return high
    moment = store.times[high]
    while (low < high).any():
        middle = (low + high) // 2
        before = store.times[middle] < moment
        low, high = np.where(before, middle + 1, low), np.where(before, high, middle)
    return low


def _counts(pairs: Int[np.ndarray, "p"], wanted: Ints) -> Ints:
    """How often each of the `wanted` stands among the pairs."""
    size = 4 * len(wanted)
    there = np.zeros(1 << (2 + size.bit_length()), bool)
    there[slots(wanted, size)] = True
    # few are wanted: a table of hashes leaves little to sort
    found, counts = np.unique(pairs[np.flatnonzero(there[slots(pairs, size)])], return_counts=True)
    if not len(found):
        return np.zeros(len(wanted), np.int64)
    at = np.minimum(np.searchsorted(found, wanted), len(found) - 1)
    return np.where(found[at] == wanted, counts[at], 0)


def slots(keys: Ints, size: int) -> np.ndarray:
    """A place in a table for each key, in one of at least four times `size`."""
    return (keys.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(62 - size.bit_length())
