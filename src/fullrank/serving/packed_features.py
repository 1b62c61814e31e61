"""What is known beside the items of a few histories, without padding: one look-up for all features of all places.

`FeatureReader` with `fuse=sum` adds, at each place, a vector for each category, the mean of those of a list, and
x u + v for a number x, of the event, of its request, of the request that is to be answered and of the user. All of them
are rows of one table here, so that a place is a weighted sum of its rows,

    x_t + sum_j w_tj R[r_tj]

with weight 1 of a category, 1 / n of each of a list's n values, and x and 1 of a number's slope and value at 0. Other
ways to fuse, and a token of the user, are read by the model's own code. N places, J rows of a place, L values of lists.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from fullrank.core.jagged import Jagged
from fullrank.data.features import NO_TIME, Encoded, FeatureRows, FeatureTable, HistoryFeatures
from fullrank.models.sequential.features import FeatureReader, FieldVectors

Entries = tuple[Int[np.ndarray, "N j"], Float[np.ndarray, "N j"]]
"""Rows of the table, and their weights."""


@dataclass(frozen=True)
class PackedFeatures:
    """A copy of a reader's weights, as they were."""

    reader: FeatureReader
    table: Float[Tensor, "R D"]
    bases: dict[str, tuple[int, int]]
    """Of each role where its ids, and its numbers' three vectors each, begin in the table."""

    @staticmethod
    def of(reader: FeatureReader) -> PackedFeatures | None:
        """None for a reader that does more than to add vectors."""
        if reader.fuse != "sum" or reader.prefix:
            return None
        tables, bases, size = list[Tensor](), dict[str, tuple[int, int]](), 0
        for name, part in _parts(reader):
            own = [] if part.table is None else [part.table.detach()]
            own += [] if part.numbers is None else [part.numbers.detach().flatten(0, 1)]
            bases[name] = (size, size + (0 if part.table is None else len(part.table)))
            size += sum(map(len, own))
            tables += own
        return PackedFeatures(reader, torch.cat(tables).contiguous(), bases)

    def added(
        self, items: Jagged, times: Int[np.ndarray, "N"] | None, known: HistoryFeatures | None
    ) -> Float[Tensor, "N D"]:
        """What is added at each place of histories; `times` lie behind each other, `known` as in `Histories`."""
        known, lengths = known or HistoryFeatures(), items.lengths
        history, ends = np.repeat(np.arange(len(lengths)), lengths), lengths.cumsum()
        last = np.zeros(len(history), bool)
        last[ends - 1] = True
        flat = torch.from_numpy(items.flat().astype(np.int64, copy=False))
        rows, weights, lists = [], [], []
        for name, part in _parts(self.reader):
            encoded = _encoded(part, name, known, items, history, last)
            ids, of_ids = self._ids(part, name, encoded, self._made(part, name, flat, times, known, last, history))
            rows.append(ids)
            weights.append(of_ids)
            lists += list(self._lists(part, name, encoded))
        shared = F.embedding_bag(
            torch.from_numpy(np.concatenate(rows, 1)), self.table, mode="sum",
            per_sample_weights=torch.from_numpy(np.concatenate(weights, 1)),
        ) if sum(one.shape[1] for one in rows) else self.table.new_zeros(len(history), self.table.shape[1])  # fmt: skip
        for values, starts, shares in lists:
            shared += F.embedding_bag(values, self.table, starts, mode="sum", per_sample_weights=shares)
        return shared

    def _made(
        self, part: FieldVectors, name: str, items: Tensor, times: np.ndarray | None, known: HistoryFeatures,
        last: np.ndarray, history: np.ndarray,
    ) -> list[np.ndarray]:  # fmt: skip
        """The ids of what times tell, as `FeatureReader` makes them of padded rows."""
        if not part.made:
            return []
        assert times is not None, "a model that reads what times tell gets them"
        if name == "asked":
            asked = np.full(int(last.sum()), NO_TIME) if known.asked_at is None else np.asarray(known.asked_at)
            at = np.where(last, asked[history], np.append(times[1:], 0))
            since = times
        else:
            first = np.append(True, last[:-1])
            at, since = times, np.where(first, NO_TIME, np.append(NO_TIME, times[:-1]))
        moment, start = (torch.from_numpy(one.astype(np.int64, copy=False)) for one in (at, since))
        return [one.numpy() for one in self.reader.made_ids(part, moment, start, items)]

    def _ids(self, part: FieldVectors, name: str, encoded: Encoded, made: list[np.ndarray]) -> Entries:
        """One row for each category and what times tell, two for each number."""
        ids_at, numbers_at = self.bases[name]
        own = np.column_stack([encoded.categorical[:, part.id_columns.numpy()], *made]) + (
            ids_at + part.offsets.numpy()
        )
        numbers = encoded.numeric[:, part.number_columns.numpy()]
        missing, count = np.isnan(numbers), numbers.shape[1]
        slope = numbers_at + np.arange(count)  # then as many values at 0, then as many where it is missing
        rows = [own, np.where(missing, slope + 2 * count, slope), np.broadcast_to(slope + count, numbers.shape)]
        weights = [np.ones(own.shape), np.where(missing, 1, numbers), ~missing]
        return (
            np.concatenate(rows, 1).astype(np.int64, copy=False),
            np.concatenate(weights, 1).astype(np.float32, copy=False),
        )

    def _lists(self, part: FieldVectors, name: str, encoded: Encoded) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Of each list the rows of its values behind each other, where each place begins, and their weights: an empty
        one has the row of what is missing."""
        base = self.bases[name][0]
        for at, start in part.bags:
            bag = encoded.bags[at]
            values, place = bag.flat(), bag.row_of()
            there = values > 0
            counts = np.bincount(place[there], minlength=len(bag))
            filled = np.maximum(counts, 1)
            starts = filled.cumsum() - filled
            rows = np.full(int(filled.sum()), base + start)
            rows[np.repeat(counts > 0, filled)] = base + start + values[there]
            shares = np.repeat(1 / filled, filled).astype(np.float32)
            yield torch.from_numpy(rows), torch.from_numpy(starts), torch.from_numpy(shares)


def _parts(reader: FeatureReader) -> Iterator[tuple[str, FieldVectors]]:
    for name, part in reader.vectors.items():
        yield name, cast(FieldVectors, part)


def _encoded(
    part: FieldVectors, name: str, known: HistoryFeatures, items: Jagged, history: np.ndarray, last: np.ndarray
) -> Encoded:
    """The encoded features of a role at each place."""
    table: FeatureTable | None
    places = items.places()
    if name == "user":
        table, rows = (None, places) if known.user is None else (known.user.table, known.user.rows[history])
    elif name != "asked":
        table, rows = getattr(known, name), places
    else:
        table, rows = _asked(known.request, known.asked, np.where(last, -1, np.append(places[1:], -1)), history, last)
    if table is not None:
        return table.take(rows)
    ids, numbers, bags = part.widths
    empty = Jagged.from_lengths(np.zeros(0, np.int32), np.zeros(len(history), np.int64))
    missing: Any = np.full((len(history), numbers), np.nan, np.float32)
    return Encoded(np.zeros((len(history), ids), np.int32), missing, (empty,) * bags)


def _asked(
    past: FeatureTable | None, asked: FeatureRows | None, rows: np.ndarray, history: np.ndarray, last: np.ndarray
) -> tuple[FeatureTable | None, np.ndarray]:
    """The request behind each place: the next event's, and behind the last one that which is to be answered."""
    if asked is None:
        return past, rows
    own = asked.rows[history]
    if past is None:
        return asked.table, np.where(last, own, -1)
    known = np.where(own < 0, -1, own + len(past.categorical))
    return past.behind(asked.table), np.where(last, known, rows)
