"""What counts say of a store of impressions: labels, copies, fields that are constant or tell the label, unseen values.

Rows are read once, a block at a time, and every number is a sum over rows, so a store in parts gives those of the one.
Rows are compared by a hash of their fields, sum_f m_f x_f modulo 2^64 with odd m_f; of many rows those whose hash
(without bags) ends with zeros, copies included.

A field alone: its values are put in order of their click rate in training (shrunk by `PRIOR` rows of the mean), and
this order has an AUC on the rows of validation. Numbers are cut at quantiles of training first. Bags and sequences are
compared for copies alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float, Int, Int64, UInt64

from fullrank.core.parted import Flat
from fullrank.core.random import bits_of_rows, finalise
from fullrank.data.findings import Finding, finding, share
from fullrank.data.impressions.schema import PARTS
from fullrank.data.impressions.store import ImpressionStore
from fullrank.data.impressions.vocabulary import UNKNOWN
from fullrank.metrics.ctr import dense_ranks, weighted_auc

BLOCK = 1 << 15
"""Rows that are looked at at once."""
COMPARED = 1 << 18
"""Rows above which those are compared whose hash ends with zeros."""
LOOKED, BUCKETS = 10_000, 64
"""Training rows that quantiles are taken of, and how many."""
PRIOR = 10.0
CONSTANT = 0.999
"""Share of one value from which on a field is nearly constant."""
NAMED = 3
"""Most fields that a sentence names."""


def impression_findings(store: ImpressionStore) -> Iterator[Finding]:
    """All findings of a store."""
    tally = Tally.of(store)
    yield _of_labels(tally)
    yield from _of_copies(tally)
    yield from _of_fields(store, tally)
    if store.num_groups:
        yield _of_groups(tally)
    yield _of_times(store)


def _of_labels(tally: Tally) -> Finding:
    rows, rates = tally.labels.sum(1), [share(int(one[1]), int(one.sum())) for one in tally.labels]
    told = ", ".join(f"{rate:.1%} of {part}" for rate, part in zip(rates, PARTS, strict=True))
    away = max((abs(rate / rates[0] - 1) for rate, count in zip(rates, rows, strict=True) if count), default=0.0)
    return finding(
        "positives", away, f"positive are {told}", "probabilities learned on one are off on the other: LogLoss and "
        "PCOC say by how much, fullrank calibrate corrects it", note=0.1, warning=1.0,
    )  # fmt: skip


def _of_copies(tally: Tally) -> Iterator[Finding]:
    """Rows in order of their hash, behind which stand part and label: `codes` are 2 * part + label."""
    keys = np.sort(np.concatenate(tally.hashes)) if tally.hashes else np.zeros(0, np.uint64)
    codes, groups = (keys & np.uint64(7)).astype(np.int64), keys >> np.uint64(3)
    starts = np.flatnonzero(np.concatenate([[len(keys) > 0], groups[1:] != groups[:-1]]))
    sizes = np.diff(np.append(starts, len(keys)))
    held = np.bitwise_or.reduceat(1 << codes, starts) if len(keys) else codes
    copies = share(len(keys) - len(starts), len(keys))
    both = (held & 0b010101 > 0) & (held & 0b101010 > 0)
    torn = share(int(sizes[both].sum()), len(keys))
    yield finding(
        "copies", copies,
        f"{copies:.1%} of the rows have all fields of another one, {torn:.1%} of one with the other label",
        "no ranker tells these apart: the fields lack what decided, or a click and its impression were both written",
        note=0.01, warning=0.5,
    )  # fmt: skip
    later = codes >= 2
    known = np.repeat(held & 0b11 > 0, sizes)
    leaked = share(int((later & known).sum()), int(later.sum()))
    yield finding(
        "copies_of_training", leaked, f"{leaked:.1%} of the validation and test rows have all fields of a training row",
        "a ranker can remember these, so metrics flatter those that do: split by time or drop the copies",
        note=0.01, warning=0.2,
    )  # fmt: skip


def _of_fields(store: ImpressionStore, tally: Tally) -> Iterator[Finding]:
    cells = tally.cells
    trained = {name: one[0].sum(1) for name, one in cells.items()}
    constant = {name: share(int(one.max()), int(one.sum())) for name, one in trained.items()}
    yield _worst(
        "constant", constant, "is one value in {} of the training rows", "a field that never changes says nothing: "
        "leave it out", note=CONSTANT,
    )  # fmt: skip
    part = 1 if tally.labels[1].all() else 2
    alone = {name: _auc_alone(one[0], one[part]) for name, one in cells.items()} if tally.labels[part].all() else {}
    if alone:
        yield _worst(
            "tells_label", alone, f"alone has an AUC of {{}} on {PARTS[part]}", "so much is mostly written after the "
            "click, or made of it: leave the field out unless it is known before", note=0.9, warning=0.95, form=".4f",
        )  # fmt: skip
    for number, name in ((1, "validation"), (2, "test")):
        rows = int(tally.labels[number].sum())
        unseen = {one.name: share(int(cells[one.name][number][UNKNOWN].sum()), rows)
                  for one in store.encoder.categorical}  # fmt: skip
        if unseen and rows:
            yield _worst(
                f"unseen_{name}", unseen, f"is unknown in {{}} of the {name} rows", "of values that training never saw "
                "a ranker knows nothing: add fields that say what they are (of users and items), or hash_buckets",
                note=0.01, warning=0.2,
            )  # fmt: skip


def _worst(
    name: str, values: dict[str, float], fact: str, meaning: str, *, note: float, warning: float = np.inf,
    form: str = ".1%",
) -> Finding:  # fmt: skip
    """A finding about the field with the highest value; it names others that are above `note`."""
    first, *others = sorted(values, key=lambda one: -values[one])
    more = [f"{one!r} {values[one]:{form}}" for one in others[: NAMED - 1] if values[one] > note]
    told = f"{first!r} {fact.format(format(values[first], form))}" + f" ({', '.join(more)})" * bool(more)
    return finding(name, values[first], f"the field {told}", meaning, note=note, warning=warning)


def _auc_alone(train: Int64[np.ndarray, "ids 2"], other: Int64[np.ndarray, "ids 2"]) -> float:
    """The AUC of a field's values, in order of their click rate in `train`, on other rows."""
    mean = share(int(train[:, 1].sum()), int(train.sum()))
    places = dense_ranks((train[:, 1] + PRIOR * mean) / (train.sum(1) + PRIOR))
    labels = np.repeat([0.0, 1.0], len(other))
    return weighted_auc(np.tile(places, 2), labels, other.T.ravel().astype(np.float64))


def _of_groups(tally: Tally) -> Finding:
    part = 2 if tally.labels[2].sum() else 1
    counts = tally.groups[part]
    there, single = counts.sum(1) > 0, counts.min(1) == 0
    rows = share(int(counts[single].sum()), int(counts.sum()))
    return finding(
        "groups", rows, f"{int((there & single).sum()):,} of {int(there.sum()):,} groups of the {PARTS[part]} have one "
        f"label only, with {rows:.1%} of its rows", "gauc leaves them out: compare by auc too", note=0.1, warning=0.5,
    )  # fmt: skip


def _of_times(store: ImpressionStore) -> Finding:
    times = store.arrays.get("times")
    if times is None:
        return Finding(
            "split_times", "note", None, "there are no times: whether training ends before the test is unknown"
        )
    train, later = store.split("train"), min(store.split("validation").start, store.split("test").start)
    begins = min((int(block.min()) for block in _blocks(times, range(later, len(store)))), default=None)
    ahead = 0 if begins is None else sum(int((block > begins).sum()) for block in _blocks(times, train))
    return finding(
        "split_times", share(ahead, len(train)),
        f"{share(ahead, len(train)):.1%} of the training rows are later than the first row of validation and test",
        "a ranker learns from what came after: --set split.kind=temporal does not",
    )  # fmt: skip


def _blocks(array: Flat, rows: range) -> Iterator[np.ndarray]:
    for start in range(rows.start, rows.stop, BLOCK):
        yield np.asarray(array[start : min(start + BLOCK, rows.stop)])


@dataclass
class Tally:
    """Counts over all rows, by part of the split and label."""

    labels: Int64[np.ndarray, "3 2"]
    groups: Int64[np.ndarray, "3 G 2"]
    cells: dict[str, Int64[np.ndarray, "3 ids 2"]]
    """Of each id of each field; of numbers in buckets those of this module, the last one for what is missing."""
    edges: list[Float[np.ndarray, "_"]]
    """Of the buckets of each numeric field."""
    hashes: list[UInt64[np.ndarray, "n"]] = field(default_factory=list)

    @classmethod
    def of(cls, store: ImpressionStore) -> Tally:
        sizes, train = {one.name: one.size for one in store.fields}, store.split("train")
        looked = train[:: max(1, len(train) // LOOKED)]
        cells = {one.name: np.zeros((3, sizes[one.name], 2), np.int64) for one in store.encoder.categorical}
        edges = []
        for number, one in enumerate(store.encoder.numeric):
            known = store.arrays["numeric"][np.asarray(looked)][:, number]
            known = known[~np.isnan(known)]
            edges.append(np.unique(np.quantile(known, np.arange(1, BUCKETS) / BUCKETS)) if len(known) else known)
            cells[one.name] = np.zeros((3, len(edges[-1]) + 2, 2), np.int64)
        found = cls(np.zeros((3, 2), np.int64), np.zeros((3, store.num_groups, 2), np.int64), cells, edges)
        for number, part in enumerate(PARTS):
            rows = store.split(part)
            for start in range(rows.start, rows.stop, BLOCK):
                found._add(store, number, range(start, min(start + BLOCK, rows.stop)))
        return found

    def _add(self, store: ImpressionStore, part: int, rows: range) -> None:
        at, arrays = slice(rows.start, rows.stop), store.arrays
        labels = np.asarray(arrays["labels"][at]).astype(np.int64)
        self.labels[part] += np.bincount(labels, minlength=2)
        if store.num_groups:
            self.groups[part] += _by_label(arrays["groups"][at], labels, store.num_groups)
        hashed, number = np.zeros(len(rows), np.int64), 0
        multipliers = bits_of_rows(3, np.arange(len(store.fields))).view(np.int64) | 1
        for name in ("categorical", "numeric"):
            block = np.asarray(arrays[name][at]) if name in arrays else np.zeros((len(rows), 0), np.int32)
            for column, one in zip(block.T, getattr(store.encoder, name), strict=True):
                ids, values = column, column
                if name == "numeric":
                    missing = np.isnan(column)
                    ids = np.searchsorted(self.edges[number - len(store.encoder.categorical)], column, side="right")
                    ids[missing] = self.cells[one.name].shape[1] - 1
                    values = np.where(missing, np.float32(np.nan), column).view(np.int32)
                self.cells[one.name][part] += _by_label(ids, labels, self.cells[one.name].shape[1])
                hashed += values * multipliers[number]
                number += 1
        hashed = finalise(hashed)
        mask = (1 << (len(store) // COMPARED).bit_length()) - 1
        chosen = np.flatnonzero(hashed & mask == 0) if mask else np.arange(len(rows))
        hashed = hashed[chosen]
        for bag in range(len(store.encoder.multivalued)):
            own = store.bag(bag, chosen + rows.start)
            total = np.concatenate([[0], np.cumsum(finalise(own.flat().astype(np.int64)))])
            hashed += np.diff(total[own.offsets]) * multipliers[number + bag]
        codes = (2 * part + labels[chosen]).astype(np.uint64)
        self.hashes.append(finalise(hashed).view(np.uint64) & ~np.uint64(7) | codes)


def _by_label(ids: Int[np.ndarray, "n"], labels: Int64[np.ndarray, "n"], size: int) -> Int64[np.ndarray, "size 2"]:
    return np.bincount(2 * ids.astype(np.int64) + labels, minlength=2 * size).reshape(size, 2)
