"""Findings about a store of impressions from counts: labels, copies, constant or leaking fields, unseen values.

Rows are read once, a block at a time, and every number is a sum over rows, so a store in parts
gives those of the one. Rows are compared by a hash of their fields, sum_f m_f x_f modulo 2^64
with odd m_f. Of many rows only those are compared whose hash (without bags) ends with zeros:
with a row, its copies are.

A field alone: its values are put in order of their click rate in training (shrunk by `PRIOR` rows
of the mean), and this order has an AUC on the rows of validation. Numbers are cut at quantiles of
training first. Bags and sequences are compared for copies alone.
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
"""Rows above which only those are compared whose hash ends with zeros."""
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
    yield _label_finding(tally)
    yield from _copy_findings(tally)
    yield from _field_findings(store, tally)
    if store.num_groups:
        yield _group_finding(tally)
    yield _time_finding(store)


def _label_finding(tally: Tally) -> Finding:
    rows, rates = tally.labels.sum(1), [share(int(counts[1]), int(counts.sum())) for counts in tally.labels]
    shares = ", ".join(f"{rate:.1%} of {part}" for rate, part in zip(rates, PARTS, strict=True))
    away = max((abs(rate / rates[0] - 1) for rate, count in zip(rates, rows, strict=True) if count), default=0.0)
    return finding(
        "positives",
        away,
        f"positive are {shares}",
        "probabilities learned on one are off on the other: LogLoss and PCOC say by how much, fullrank calibrate "
        "corrects it",
        note=0.1,
        warning=1.0,
    )


def _copy_findings(tally: Tally) -> Iterator[Finding]:
    """Findings about equal rows, sorted by hash; its last bits, `codes`, are 2 * part + label."""
    keys = np.sort(np.concatenate(tally.hashes)) if tally.hashes else np.zeros(0, np.uint64)
    codes, groups = (keys & np.uint64(7)).astype(np.int64), keys >> np.uint64(3)
    starts = np.flatnonzero(np.concatenate([[len(keys) > 0], groups[1:] != groups[:-1]]))
    sizes = np.diff(np.append(starts, len(keys)))
    # of each group of equal rows a bit for each code in it: an even bit is label 0, an odd one
    # label 1
    held = np.bitwise_or.reduceat(1 << codes, starts) if len(keys) else codes
    copies = share(len(keys) - len(starts), len(keys))
    both = (held & 0b010101 > 0) & (held & 0b101010 > 0)
    torn = share(int(sizes[both].sum()), len(keys))
    yield finding(
        "copies",
        copies,
        f"{copies:.1%} of the rows have all fields of another one, {torn:.1%} of one with the other label",
        "no ranker tells these apart: the fields lack what decided, or a click and its impression were both written",
        note=0.01,
        warning=0.5,
    )
    later = codes >= 2
    known = np.repeat(held & 0b11 > 0, sizes)
    leaked = share(int((later & known).sum()), int(later.sum()))
    yield finding(
        "copies_of_training",
        leaked,
        f"{leaked:.1%} of the validation and test rows have all fields of a training row",
        "a ranker can remember these, so metrics flatter those that do: split by time or drop the copies",
        note=0.01,
        warning=0.2,
    )


def _field_findings(store: ImpressionStore, tally: Tally) -> Iterator[Finding]:
    cells = tally.cells
    yield _worst(
        "constant",
        {name: share(int(counts[0].sum(1).max()), int(counts[0].sum())) for name, counts in cells.items()},
        "is one value in {} of the training rows",
        "a field that never changes says nothing: leave it out",
        note=CONSTANT,
    )
    part = 1 if tally.labels[1].all() else 2
    if cells and tally.labels[part].all():
        yield _worst(
            "tells_label",
            {name: _auc_alone(counts[0], counts[part]) for name, counts in cells.items()},
            f"alone has an AUC of {{}} on {PARTS[part]}",
            "so much is mostly written after the click, or made of it: leave the field out unless it is known before",
            note=0.9,
            warning=0.95,
            form=".4f",
        )
    for number, name in ((1, "validation"), (2, "test")):
        rows = int(tally.labels[number].sum())
        fields = store.encoder.categorical
        if fields and rows:
            yield _worst(
                f"unseen_{name}",
                {field.name: share(int(cells[field.name][number][UNKNOWN].sum()), rows) for field in fields},
                f"is unknown in {{}} of the {name} rows",
                "of values that training never saw a ranker knows nothing: add fields that say what they are (of users "
                "and items), or hash_buckets",
                note=0.01,
                warning=0.2,
            )


def _worst(
    name: str,
    values: dict[str, float],
    fact: str,
    meaning: str,
    *,
    note: float,
    warning: float = np.inf,
    form: str = ".1%",
) -> Finding:
    """A finding about the field with the highest value; it names others that are above `note`."""
    first, *others = sorted(values, key=lambda field: -values[field])
    more = [f"{field!r} {values[field]:{form}}" for field in others[: NAMED - 1] if values[field] > note]
    sentence = f"{first!r} {fact.format(format(values[first], form))}" + f" ({', '.join(more)})" * bool(more)
    return finding(name, values[first], f"the field {sentence}", meaning, note=note, warning=warning)


def _auc_alone(train: Int64[np.ndarray, "ids 2"], other: Int64[np.ndarray, "ids 2"]) -> float:
    """The AUC of a field's values, in order of their click rate in `train`, on other rows: each
    value is two points, one for each label, weighted by its rows."""
    mean = share(int(train[:, 1].sum()), int(train.sum()))
    ranks = dense_ranks((train[:, 1] + PRIOR * mean) / (train.sum(1) + PRIOR))
    labels = np.repeat([0.0, 1.0], len(other))
    return weighted_auc(np.tile(ranks, 2), labels, other.T.ravel().astype(np.float64))


def _group_finding(tally: Tally) -> Finding:
    part = 2 if tally.labels[2].sum() else 1
    counts = tally.groups[part]
    seen, single = counts.sum(1) > 0, counts.min(1) == 0
    rows = share(int(counts[single].sum()), int(counts.sum()))
    return finding(
        "groups",
        rows,
        f"{int((seen & single).sum()):,} of {int(seen.sum()):,} groups of the {PARTS[part]} have one "
        f"label only, with {rows:.1%} of its rows",
        "gauc leaves them out: compare by auc too",
        note=0.1,
        warning=0.5,
    )


def _time_finding(store: ImpressionStore) -> Finding:
    times = store.arrays.get("times")
    if times is None:
        return Finding(
            "split_times", "note", None, "there are no times: whether training ends before the test is unknown"
        )
    train, later = store.split("train"), min(store.split("validation").start, store.split("test").start)
    begins = min((int(block.min()) for block in _blocks(times, range(later, len(store)))), default=None)
    ahead = 0 if begins is None else sum(int((block > begins).sum()) for block in _blocks(times, train))
    return finding(
        "split_times",
        share(ahead, len(train)),
        f"{share(ahead, len(train)):.1%} of the training rows are later than the first row of validation and test",
        "a ranker learns from what came after: --set split.kind=temporal does not",
    )


def _blocks(array: Flat, rows: range) -> Iterator[np.ndarray]:
    """An array's values at some rows, `BLOCK` at a time."""
    for start in range(rows.start, rows.stop, BLOCK):
        yield np.asarray(array[start : min(start + BLOCK, rows.stop)])


@dataclass
class Tally:
    """Counts over all rows, by part of the split and label; G groups."""

    labels: Int64[np.ndarray, "3 2"]
    groups: Int64[np.ndarray, "3 G 2"]
    cells: dict[str, Int64[np.ndarray, "3 ids 2"]]
    """By field: rows of each id and label. Numbers count in buckets of this module, the last for missing ones."""
    edges: list[Float[np.ndarray, "_"]]
    """Bucket edges of each numeric field."""
    hashes: list[UInt64[np.ndarray, "n"]] = field(default_factory=list)

    @classmethod
    def of(cls, store: ImpressionStore) -> Tally:
        train = store.split("train")
        sample = np.asarray(train[:: max(1, len(train) // LOOKED)])
        cells = {
            field.name: np.zeros((3, field.size, 2), np.int64) for field in store.fields if field.kind == "categorical"
        }
        edges = []
        for number, numeric in enumerate(store.encoder.numeric):
            known = store.arrays["numeric"][sample][:, number]
            known = known[~np.isnan(known)]
            edges.append(np.unique(np.quantile(known, np.arange(1, BUCKETS) / BUCKETS)) if len(known) else known)
            cells[numeric.name] = np.zeros((3, len(edges[-1]) + 2, 2), np.int64)
        tally = cls(np.zeros((3, 2), np.int64), np.zeros((3, store.num_groups, 2), np.int64), cells, edges)
        for number, part in enumerate(PARTS):
            rows = store.split(part)
            for start in range(0, len(rows), BLOCK):
                tally._add(store, number, rows[start : start + BLOCK])
        return tally

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
            for column, described in zip(block.T, getattr(store.encoder, name), strict=True):
                ids, hashable, cells = column, column, self.cells[described.name]
                if name == "numeric":
                    missing = np.isnan(column)
                    ids = np.searchsorted(self.edges[number - len(store.encoder.categorical)], column, side="right")
                    ids[missing] = cells.shape[1] - 1
                    hashable = np.where(missing, np.float32(np.nan), column).view(np.int32)  # one form of NaN
                cells[part] += _by_label(ids, labels, cells.shape[1])
                hashed += hashable * multipliers[number]
                number += 1
        hashed = finalise(hashed)
        mask = (1 << (len(store) // COMPARED).bit_length()) - 1
        chosen = np.flatnonzero(hashed & mask == 0) if mask else np.arange(len(rows))
        hashed = hashed[chosen]
        for bag in range(len(store.encoder.multivalued)):
            ids_by_row = store.bag(bag, chosen + rows.start)
            # the sum of each row's hashed ids, as a difference of sums from the first row on
            total = np.concatenate([[0], np.cumsum(finalise(ids_by_row.flat().astype(np.int64)))])
            hashed += np.diff(total[ids_by_row.offsets]) * multipliers[number + bag]
        codes = (2 * part + labels[chosen]).astype(np.uint64)  # of three bits, in place of the hash's last three
        self.hashes.append(finalise(hashed).view(np.uint64) & ~np.uint64(7) | codes)


def _by_label(ids: Int[np.ndarray, "n"], labels: Int64[np.ndarray, "n"], size: int) -> Int64[np.ndarray, "size 2"]:
    """How many rows have each id, with label 0 and with label 1."""
    return np.bincount(2 * ids.astype(np.int64) + labels, minlength=2 * size).reshape(size, 2)
