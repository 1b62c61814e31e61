"""Findings about a store of events, by counts: copies, bots, leaks, ties, cold targets, popularity, order (`order.py`).

Events are read once, a block of users at a time; every number is a sum over users, so a store in
parts gives those of the store in one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int32, Int64

from fullrank.core.jagged import Jagged, stable_order
from fullrank.core.parted import Flat
from fullrank.core.random import uniform_of_rows
from fullrank.data.events import splits
from fullrank.data.events.features import encoder_of
from fullrank.data.events.order import LEAST, Block, Order, blocks, order_of, slots
from fullrank.data.events.store import Store
from fullrank.data.features import FeatureTable
from fullrank.data.findings import Finding, finding, share
from fullrank.data.values import with_date

EARLIEST = 631_152_000
"""1990-01-01: times before it are zeros, ranks, or in another unit."""
DAY = 86_400
BURSTS = ((60, 60, "minute"), (1_000, DAY, "day"))
"""Bursts of a bot: no person has more events than the first number within so many seconds."""
HUGE, TIMES_MEAN = 0.01, 20
"""A bot too is who has more than this share of all events, and more than so many times the mean of the users."""
UNITS = ((DAY, "day"), (3_600, "hour"), (60, "minute"))
REQUEST_EVENTS = 1 << 17
"""Events, about so many, on which request features are judged."""
EXAMPLES = 3
"""Users that a sentence names."""
LITTLE = 1.2
"""A factor of order (`order.py`) below which order matters little."""
NEVER = np.iinfo(np.int64).max
"""The time of the first training event of an item that has none."""
TOP = 0.01
"""Share of the items that are called the most popular."""


def event_findings(store: Store) -> Iterator[Finding]:
    """All findings of a store; those that need times where it has some."""
    tally = Tally.of(store)
    yield from _split_findings(store)
    yield from _user_findings(store, tally)
    yield from _time_findings(store, tally)
    yield _order_finding(order_of(store), tally.unit)
    yield _popularity_finding(store)
    if store.request_features is not None:
        yield from _request_findings(store, store.request_features)


def _split_findings(store: Store) -> Iterator[Finding]:
    split = store.manifest["split"]
    yield from (Finding("split", "warning", None, note) for note in splits.empty_notes(split))
    repeated, parts = store.repeated_share("test"), [split["validation"], split["test"]]
    notes = splits.repeat_notes(split)
    fine = f"{repeated:.1%} of the test targets stand in their own user's history"
    yield Finding("repeats", "note" if notes else "ok", round(repeated, 6), next(iter(notes), fine))
    events, cold, users, new = (
        sum(part.get(name, 0) for part in parts)
        for name in ("events", "events_of_items_not_in_train", "users", "users_without_history")
    )
    cold_share, new_share = share(cold, events), share(new, users)
    yield finding(
        "cold_targets",
        cold_share,
        f"{cold:,} of {events:,} targets ({cold_share:.1%}) are items without a training event",
        "no recipe of ids can hit them, items made of text can (srt, unisrec)",
        note=0.01,
        warning=0.1,
    )
    yield finding(
        "cold_users",
        new_share,
        f"{new:,} of {users:,} users with targets ({new_share:.1%}) have no training event",
        "metrics leave them out, and in use they get what is popular",
        note=0.01,
        warning=0.5,
    )


def _user_findings(store: Store, tally: Tally) -> Iterator[Finding]:
    events, sizes = store.num_events, np.diff(store.offsets)
    in_a_row = share(tally.in_a_row, events)
    yield finding(
        "in_a_row",
        in_a_row,
        f"{tally.in_a_row:,} events ({in_a_row:.1%}) have the item of the event before",
        "a model learns to say the last item again: keep one of them in the table, or rank the history "
        "(--set evaluation.seen=keep)",
        note=0.01,
        warning=0.1,
    )
    bots = np.flatnonzero(tally.bots)
    bot_share = share(int(sizes[bots].sum()), events)
    limits = " or ".join([*(f"{most:,} in a {unit}" for most, _, unit in tally.bursts), f"{HUGE:.0%} of all events"])
    fact = f"{len(bots):,} users have more than {limits}"
    if len(bots):
        largest = bots[stable_order(-sizes[bots], store.user_keys[bots])][:EXAMPLES]
        names = ", ".join(sorted(map(str, store.user_ids.gather(largest))))
        fact += f", with {bot_share:.1%} of the events (such as {names})"
    advice = "leave them out of the table, unless they entered at once what they did before"
    yield finding("bots", bot_share, fact, advice, warning=0.01)


def _time_findings(store: Store, tally: Tally) -> Iterator[Finding]:
    events, times = store.num_events, store.times
    if times is None or tally.early == events:
        reason = "there are no times"
        if times is not None:
            reason = (
                f"all times lie before 1990 ({tally.span[0]} to {tally.span[1]}): "
                "they are ranks, or another --time-unit"
            )
        sentence = f"{reason}; the order is taken, and leaks, rates and ties cannot be counted: split by leave_one_out"
        yield Finding("times", "note", None, sentence)
        return
    wrong = tally.early + tally.future
    yield finding(
        "times",
        share(wrong, events),
        f"{wrong:,} events lie before 1990 or in the future; times are {with_date(tally.span[0])} to "
        f"{with_date(tally.span[1])}, told apart by the {tally.unit}",
        "zeros or another unit, which put events first or last in a history: correct them, or leave them out",
        warning=0.0,
    )
    copies = share(tally.duplicates, events)
    yield finding(
        "duplicates",
        copies,
        f"{tally.duplicates:,} events ({copies:.2%}) have user, item and time of another",
        "drop the copies in the table (--duplicates first drops all repeats of an item)",
        warning=0.001,
    )
    leak, fact = _leak(store, times), "training ends for all before validation begins"
    if store.manifest["split"].get("leak"):
        fact = f"{leak:.1%} of the training events lie after a test event, on average of test events"
    yield finding(
        "leak",
        leak,
        fact,
        "leave_one_out trains on what others did later, so its metrics are higher than those in use; "
        "--split global_time has no such leak",
        note=0.01,
    )
    ends = store.bounds[:, 1]  # the first test target of each user who has one, and an event before it
    targets = ends[(ends < store.offsets[1:]) & (ends > store.offsets[:-1])]
    moments, first = times[targets], tally.first[store.items[targets]]
    late = share(int(((first > moments) & (first < NEVER)).sum()), len(targets))
    yield finding(
        "late_items",
        late,
        f"{late:.1%} of the test targets are items whose first training event lies after them",
        "a model knows these from the future alone; by --split global_time they are new, as in use",
        note=0.01,
        warning=0.1,
    )
    tied = share(int((moments == times[targets - 1]).sum()), len(targets))
    yield finding(
        "ties",
        tied,
        f"{share(tally.ties, events):.1%} of the events and {tied:.1%} of the test targets share the "
        f"{tally.unit} with the event before of their user",
        "which of them comes last, and is the target, the order of the rows decides: give finer times, or rows in "
        "the order in which things happened",
        note=0.01,
        warning=0.1,
    )


def _leak(store: Store, times: Flat) -> float:
    """The share of training events later than a test event, averaged over test events."""
    split = store.manifest["split"]
    if "train_share_after_test" in split or not split.get("leak"):
        return float(split.get("train_share_after_test", 0.0))
    # subsets and joined stores: their manifests say no share
    train = np.sort(Jagged(times, store.offsets[:-1], store.bounds[:, 0]).flat())
    test = np.sort(Jagged(times, store.bounds[:, 1], store.offsets[1:]).flat())
    before = int(np.searchsorted(train, test, side="right").sum())
    return 1 - share(before, len(train) * len(test)) if len(test) else 0.0


def _order_finding(order: Order, unit: str) -> Finding:
    users = min(map(len, order))
    if users < LEAST:
        return Finding("order", "note", None, f"{users} users are too few to say whether order matters")
    factor, low, high = order.factor(order.real)
    untied = order.factor(order.untied)[0]
    fact = (
        f"the last event makes the validation target {factor:.2f} times ({low:.2f} to {high:.2f}) as likely as it does "
        f"when each user's events are shuffled; {untied:.2f} times when those of one {unit} are"
    )
    if low <= 1 or factor < LITTLE:
        meaning = "a model of sequences has little to gain, so train ease, ials or item_to_item first"
    elif untied < LITTLE:
        meaning = f"most of it is the order of rows within a {unit}: is that the order in which things happened?"
    else:
        return Finding("order", "ok", round(factor, 6), fact)
    return Finding("order", "note", round(factor, 6), f"{fact}: {meaning}")


def _popularity_finding(store: Store) -> Finding:
    popularity = store.catalog.popularity
    count = math.ceil(TOP * len(popularity))
    top = np.zeros(len(popularity), bool)
    top[np.argsort(-popularity, kind="stable")[:count]] = True
    targets = Jagged(store.items, store.bounds[:, 1], store.offsets[1:]).flat()
    hit = share(int(top[targets].sum()), len(targets))
    trained = share(int(popularity[top].sum()), int(popularity.sum()))
    return finding(
        "popularity",
        hit,
        f"the {count:,} most popular items ({TOP:.0%}) have {trained:.1%} of the training events and {hit:.1%} of "
        "the test targets",
        "the recipe popularity is hard to beat, and fullrank diagnose says whether a model is more",
        note=0.5,
    )


def _request_findings(store: Store, table: FeatureTable) -> Iterator[Finding]:
    """The request feature that best gives the validation target away.

    Each value is taken to mean the item that it mostly came with in training. Of many events, those
    of users drawn by their key are judged.
    """
    starts, (ends, until) = store.offsets[:-1], store.bounds.T
    users = np.flatnonzero(uniform_of_rows(5, store.user_keys) * store.num_events < REQUEST_EVENTS)
    train = Jagged(store.items, starts, ends).take(users).places()
    targets = ends[users][until[users] > ends[users]]
    known = table.take(np.concatenate([train, targets]))
    answers, width = store.items[targets], np.int64(store.num_items)
    fields = encoder_of(store.catalog.features, "request") if store.catalog.features else None
    columns = {
        field.name: column
        for kind in ("categorical", "numeric")
        for field, column in zip(getattr(fields, kind), getattr(known, kind).T, strict=True)
    }
    shares = {}
    for name, column in columns.items():
        code = np.unique(column, return_inverse=True)[1]
        # pairs (code, item) as single numbers, in order of their counts: a later one overwrites, so
        # the most frequent item of each code stays
        pairs, counts = np.unique(code[: len(train)] * width + store.items[train], return_counts=True)
        pairs = pairs[stable_order(counts)]
        likeliest = np.full(int(code.max(initial=0)) + 1, -1)
        likeliest[pairs // width] = pairs % width
        shares[name] = share(int((likeliest[code[len(train) :]] == answers).sum()), len(answers))
    if shares:
        name = max(shares, key=lambda name: shares[name])
        yield finding(
            "request_features",
            shares[name],
            f"the request feature {name!r} alone tells {shares[name]:.1%} of the validation targets",
            "it is likely known only when the item is: declare it as an event feature, or leave it out",
            note=0.3,
            warning=0.6,
        )


@dataclass
class Tally:
    """Sums over the events of all users."""

    bots: Bool[np.ndarray, "U"]
    first: Int64[np.ndarray, "V"]
    """The time of the first training event of each item; `NEVER` where there is none."""
    unit: str = "second"
    """The unit in which times are told apart."""
    span: tuple[int, int] = (0, 0)
    """The first and the last time."""
    bursts: tuple[tuple[int, int, str], ...] = ()
    """The `BURSTS` that can be seen in times of this unit: a whole hour holds many events by itself."""
    in_a_row: int = 0
    """Events of the same item as the event before, of the same user."""
    early: int = 0
    future: int = 0
    ties: int = 0
    """Events at the moment of the event before, of the same user."""
    duplicates: int = 0

    @classmethod
    def of(cls, store: Store) -> Tally:
        sizes = np.diff(store.offsets)
        huge = (sizes > HUGE * store.num_events) & (sizes > TIMES_MEAN * sizes.mean())
        tally = cls(huge, np.full(store.num_items, NEVER))
        if store.times is not None:
            ends = store.offsets[1:][sizes > 0] - 1
            firsts, lasts = store.times[store.offsets[:-1][sizes > 0]], store.times[ends]
            tally.span = int(firsts.min()), int(lasts.max())
            tally.unit = next((name for unit, name in UNITS if not (firsts % unit).any()), "second")
            if tally.span[1] >= EARLIEST:
                tally.bursts = BURSTS if tally.unit == "second" else BURSTS[1:]
        for block in blocks(store):
            tally._add(store, block)
        return tally

    def _add(self, store: Store, block: Block) -> None:
        items, times, begins = block.items, block.times, block.begins
        self.in_a_row += int((~begins[1:] & (items[1:] == items[:-1])).sum())
        if times is None:
            return
        self.early += int((times < EARLIEST).sum()) if self.span[0] < EARLIEST else 0
        self.future += int((times > time.time() + DAY).sum())
        self.ties += int(block.tied.sum())
        self.duplicates += _duplicates(block.tied, items, store.num_items)
        users = np.cumsum(begins, dtype=np.int32)
        for most, seconds, _ in self.bursts:  # the event `most` places on is of the same user, and too soon
            fast = (users[most:] == users[:-most]) & (times[most:] - times[:-most] < seconds)
            self.bots[np.searchsorted(store.offsets, np.flatnonzero(fast) + block.start, side="right") - 1] = True
        rows = slice(block.users.start, block.users.stop)
        later = Jagged(items, store.bounds[rows, 0] - block.start, store.offsets[1:][rows] - block.start).places()
        trained = np.array(times)
        trained[later] = NEVER  # events of validation and test
        np.minimum.at(self.first, items, trained)


def _duplicates(tied: Bool[np.ndarray, "n"], items: Int32[np.ndarray, "n"], width: int) -> int:
    """How many events repeat an item of their user and moment; `tied` are at the moment of the user's event before.

    Counted by a table of hashes, several times as fast as a sort: of the keys that share a slot one
    stays, those equal to it are counted, and the others go another round.
    """
    among = tied.copy()
    among[:-1] |= tied[1:]
    moments, among = np.cumsum(~tied, dtype=np.int32), np.flatnonzero(among)
    keys, count = moments[among] * np.int64(width) + items[among], 0
    while len(keys):
        at, rows = slots(keys, len(keys)), np.arange(len(keys), dtype=np.int32)
        table = np.empty(int(at.max()) + 1, np.int32)
        table[at] = rows  # the last row of each slot stays
        stayed = table[at]
        same = keys[stayed] == keys
        count += int(same.sum() - (stayed == rows).sum())
        keys = keys[~same]
    return count
