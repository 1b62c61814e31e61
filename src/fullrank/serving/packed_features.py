"""Features beside the items of a few histories, without padding: one look-up for all features of all places.

`FeatureReader` with `fuse=sum` adds, at each place, a vector for each category, the mean of those
of a list, and x u + v for a number x, of the event, of its request, of the request that is to be
answered and of the user. All of them are rows of one table here, so that a place is a weighted sum
of its rows,

    x_t + sum_j w_tj R[r_tj]

with weight 1 of a category, 1 / n of each of a list's n values, and x and 1 of a number's slope and
value at 0. Other ways to fuse, and a token of the user, are read by the model's own code. N places,
J rows of a place, L values of lists.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fullrank.core.jagged import Jagged
from fullrank.data.features import NO_TIME, Encoded, FeatureTable, HistoryFeatures
from fullrank.models.sequential.items.event_features import FeatureReader, FieldVectors

Entries = tuple[Int[np.ndarray, "N j"], Float[np.ndarray, "N j"]]
"""Rows of the table, and their weights."""


@dataclass(frozen=True)
class PackedFeatures:
    """A copy of a reader's weights, as they were."""

    reader: FeatureReader
    table: Float[Tensor, "R D"]
    bases: dict[str, tuple[int, int]]
    """Role -> the rows of the table at which its ids, and its numbers' three vectors each, begin."""

    @staticmethod
    def of(reader: FeatureReader) -> PackedFeatures | None:
        """A copy of this reader; None for a reader that does more than add vectors."""
        if reader.fuse != "sum" or reader.prefix:
            return None
        tables, bases, size = list[Tensor](), dict[str, tuple[int, int]](), 0
        for name, part in _parts(reader):
            rows = [] if part.table is None else [part.table.detach()]
            rows += [] if part.numbers is None else [part.numbers.detach().flatten(0, 1)]
            bases[name] = (size, size + (0 if part.table is None else len(part.table)))
            size += sum(map(len, rows))
            tables += rows
        return PackedFeatures(reader, torch.cat(tables).contiguous(), bases)

    def added(
        self, items: Jagged, times: Int[np.ndarray, "N"] | None, known: HistoryFeatures | None
    ) -> Float[Tensor, "N D"]:
        """The summand of each place's vector; `times` lie behind each other, `known` as in `Histories`."""
        places = _Places.of(items, times, known or HistoryFeatures())
        rows, weights, lists = [], [], []
        for name, part in _parts(self.reader):
            encoded = places.encoded(part, name)
            ids, of_ids = self._ids(part, name, encoded, self._time_ids(part, name, places))
            rows.append(ids)
            weights.append(of_ids)
            lists += list(self._lists(part, name, encoded))
        numbers, shares = torch.from_numpy(np.concatenate(rows, 1)), torch.from_numpy(np.concatenate(weights, 1))
        if numbers.shape[1]:
            shared = F.embedding_bag(numbers, self.table, mode="sum", per_sample_weights=shares)
        else:
            shared = self.table.new_zeros(len(numbers), self.table.shape[1])
        for values, starts, shares in lists:
            shared += F.embedding_bag(values, self.table, starts, mode="sum", per_sample_weights=shares)
        return shared

    def _time_ids(self, part: FieldVectors, name: str, places: _Places) -> list[np.ndarray]:
        """The ids of features made of times, as `FeatureReader` makes them of padded rows."""
        if not part.made:
            return []
        times, last, known = places.times, places.last, places.known
        assert times is not None, "a model that reads what times tell gets them"
        if name == "asked":  # as of the next event's time, and after the last event as of the request's
            answered_at = np.full(len(places.items), NO_TIME) if known.asked_at is None else np.asarray(known.asked_at)
            at, since = np.where(last, answered_at[places.row], np.append(times[1:], 0)), times
        else:
            first = np.append(True, last[:-1])
            at, since = times, np.where(first, NO_TIME, np.append(NO_TIME, times[:-1]))
        tensors = (
            torch.from_numpy(numbers.astype(np.int64, copy=False)) for numbers in (at, since, places.items.flat())
        )
        return [ids.numpy() for ids in self.reader.made_ids(part, *tensors)]

    def _ids(self, part: FieldVectors, name: str, encoded: Encoded, time_ids: list[np.ndarray]) -> Entries:
        """Rows and weights of each place: a row for each category and feature of times, two for each number.

        A number x has three vectors in the table: its slope (weight x), its value at 0 (weight 1),
        and one that replaces the slope where the number is missing (weight 1, and the value at 0
        then weighs 0). The table holds the slopes of all numbers, then the values at 0 of all, then
        those for missing ones.
        """
        ids_at, numbers_at = self.bases[name]
        category_rows = np.column_stack([encoded.categorical[:, part.id_columns.numpy()], *time_ids]) + (
            ids_at + part.offsets.numpy()
        )
        numbers = encoded.numeric[:, part.number_columns.numpy()]
        missing, count = np.isnan(numbers), numbers.shape[1]
        slope = numbers_at + np.arange(count)
        at_zero = np.broadcast_to(slope + count, numbers.shape)
        rows = [category_rows, np.where(missing, slope + 2 * count, slope), at_zero]
        weights = [np.ones(category_rows.shape), np.where(missing, 1, numbers), ~missing]
        return (
            np.concatenate(rows, 1).astype(np.int64, copy=False),
            np.concatenate(weights, 1).astype(np.float32, copy=False),
        )

    def _lists(self, part: FieldVectors, name: str, encoded: Encoded) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """For each list feature its values' rows behind each other, where each place begins among them, and weights.

        Values of 0 are missing and left out; a list without others has one row, that of a missing
        value.
        """
        base = self.bases[name][0]
        for at, start in part.bags:
            bag = encoded.bags[at]
            values, position = bag.flat(), bag.row_of()
            present = values > 0
            counts = np.bincount(position[present], minlength=len(bag))
            filled = np.maximum(counts, 1)
            starts = filled.cumsum() - filled
            rows = np.full(int(filled.sum()), base + start)
            rows[np.repeat(counts > 0, filled)] = base + start + values[present]
            shares = np.repeat(1 / filled, filled).astype(np.float32)
            yield torch.from_numpy(rows), torch.from_numpy(starts), torch.from_numpy(shares)


def _parts(reader: FeatureReader) -> Iterator[tuple[str, FieldVectors]]:
    for name, part in reader.vectors.items():
        yield name, cast(FieldVectors, part)


@dataclass(frozen=True)
class _Places:
    """The N places of histories behind each other, one for each event."""

    items: Jagged
    times: Int[np.ndarray, "N"] | None
    known: HistoryFeatures
    row: Int[np.ndarray, "N"]
    """The history of each place."""
    last: Bool[np.ndarray, "N"]
    """Whether a place is the last of its history."""

    @staticmethod
    def of(items: Jagged, times: Int[np.ndarray, "N"] | None, known: HistoryFeatures) -> _Places:
        lengths = items.lengths
        last = np.zeros(int(lengths.sum()), bool)
        last[lengths.cumsum() - 1] = True
        return _Places(items, times, known, np.repeat(np.arange(len(lengths)), lengths), last)

    def encoded(self, part: FieldVectors, name: str) -> Encoded:
        """The encoded features of a role at each place."""
        user, rows = self.known.user, self.items.places()
        table: FeatureTable | None
        if name == "user":
            table, rows = (None, rows) if user is None else (user.table, user.rows[self.row])
        elif name == "asked":
            table, rows = self.requests(np.where(self.last, -1, np.append(rows[1:], -1)))
        else:
            table = getattr(self.known, name)
        if table is not None:
            return table.take(rows)
        ids, numbers, bags = part.widths
        empty = Jagged.from_lengths(np.zeros(0, np.int32), np.zeros(len(rows), np.int64))
        missing: Any = np.full((len(rows), numbers), np.nan, np.float32)
        return Encoded(np.zeros((len(rows), ids), np.int32), missing, (empty,) * bags)

    def requests(self, rows: Int[np.ndarray, "N"]) -> tuple[FeatureTable | None, Int[np.ndarray, "N"]]:
        """The table of requests, and the row of the one that follows each place.

        After an event that is the next event's, in `rows`; after the last one, the
        request that is to be answered.
        """
        past, answered = self.known.request, self.known.asked
        if answered is None:
            return past, rows
        answered_rows = answered.rows[self.row]
        if past is None:
            return answered.table, np.where(self.last, answered_rows, -1)
        behind = np.where(answered_rows < 0, -1, answered_rows + len(past.categorical))
        return past.behind(answered.table), np.where(self.last, behind, rows)
