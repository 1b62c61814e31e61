"""Ragged arrays: R rows of different lengths in one flat array of values (the words are torchrec's).

    values   every value, row after row; a row may also be a stretch of a longer array, such as a memory-mapped store
    starts   [R] where each row begins in `values`, and `ends` [R] where it ends; rows may overlap, repeat or skip
    lengths  [R] values of each row;  offsets [R + 1] of rows that lie behind each other from 0

`stable_order` sorts what is to become rows. Choosing rows (`take`) or parts of rows (`last`) moves
no values: it makes new starts and ends. `flat` and `padded` copy, and take values of any shape
behind the first axis. E are the values of the array, R the rows, n the values in all rows together,
O = R + 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Int, Int64, Integer, Shaped

from fullrank.core.parted import Flat

Rows = Integer[np.ndarray, "r"] | Bool[np.ndarray, "R"] | slice
"""Which rows: their numbers in any order, a mask, or a slice."""


@dataclass(frozen=True)
class Jagged:
    """Row r is ``values[starts[r]:ends[r]]``."""

    values: Shaped[Flat, "E *d"]
    starts: Int[np.ndarray, "R"]
    ends: Int[np.ndarray, "R"]

    @classmethod
    def from_offsets(cls, values: Shaped[Flat, "E *d"], offsets: Int[np.ndarray, "O"]) -> Jagged:
        """Rows behind each other; O = R + 1."""
        return cls(values, offsets[:-1], offsets[1:])

    @classmethod
    def from_lengths(cls, values: Shaped[Flat, "E *d"], lengths: Int[np.ndarray, "R"]) -> Jagged:
        """Rows behind each other, from the first value on."""
        ends = np.cumsum(lengths, dtype=np.int64)
        return cls(values, ends - lengths, ends)

    @classmethod
    def from_lists(cls, rows: Iterable[Sequence[Any]], dtype: Any = np.int64) -> Jagged:
        """Rows given one by one: for small inputs, since it loops over them."""
        lists = [list(row) for row in rows]
        flat = np.array([value for row in lists for value in row], dtype)
        return cls.from_lengths(flat, np.array([len(row) for row in lists], np.int64))

    @classmethod
    def from_pairs(cls, rows: Int[np.ndarray, "n"], values: Shaped[np.ndarray, "n *d"], count: int) -> Jagged:
        """`count` rows from pairs (row, value) in any order; values of a row keep their order."""
        order = np.argsort(rows, kind="stable")
        return cls.from_lengths(values[order], np.bincount(rows, minlength=count))

    def __len__(self) -> int:
        return len(self.starts)

    def __iter__(self) -> Iterator[Shaped[np.ndarray, "n *d"]]:
        """The rows, one by one: for tests and small things, since Python loops over them."""
        for start, end in zip(self.starts.tolist(), self.ends.tolist(), strict=True):
            yield self.values[start:end]

    @property
    def lengths(self) -> Int[np.ndarray, "R"]:
        return np.asarray(self.ends - self.starts, dtype=np.int64)

    @property
    def offsets(self) -> Int[np.ndarray, "O"]:
        """Where rows begin in `flat`, one behind the other, and where the last one ends."""
        return offsets_of(self.lengths)

    def take(self, rows: Rows) -> Jagged:
        """Some of the rows, over the same values."""
        return Jagged(self.values, self.starts[rows], self.ends[rows])

    def last(self, count: int) -> Jagged:
        """At most the last `count` values of each row."""
        return Jagged(self.values, np.maximum(self.ends - count, self.starts), self.ends)

    def over(self, values: Shaped[Flat, "E *d"]) -> Jagged:
        """The same rows of another array that lies beside `values`, such as the times of events."""
        return Jagged(values, self.starts, self.ends)

    def places(self) -> Int[np.ndarray, "n"]:
        """Where in `values` each value of each row stands, row after row."""
        lengths = self.lengths
        before = np.cumsum(lengths) - lengths  # of the rows once they lie behind each other
        return np.arange(int(lengths.sum())) + np.repeat(self.starts - before, lengths)

    def row_of(self) -> Int[np.ndarray, "n"]:
        """The row of each value of `flat`."""
        if len(self) == 1:
            return np.zeros(self.ends[0] - self.starts[0], np.int64)
        return np.repeat(np.arange(len(self)), self.lengths)

    def flat(self) -> Shaped[np.ndarray, "n *d"]:
        """The values of all rows behind each other, copied."""
        if len(self) == 1:  # a request of one user: a slice needs no places
            return np.array(self.values[self.starts[0] : self.ends[0]])
        return self.values[self.places()]

    def keys(self, width: int) -> Int[np.ndarray, "n"]:
        """row * width + value for each value of `flat`: one number a pair, for ids below width."""
        return self.row_of() * width + self.flat()

    def distinct(self) -> Jagged:
        """Each row's different ids (0 or more), rising, over values of their own."""
        flat, lengths = self.flat().astype(np.int64), self.lengths
        if (lengths == 1).all():
            return Jagged.from_lengths(flat, lengths)  # one value in each row: nothing to sort
        width = int(flat.max(initial=0)) + 1
        keys = np.unique(self.row_of() * width + flat)
        return Jagged.from_lengths(keys % width, np.bincount(keys // width, minlength=len(self)))

    def padded(self, width: int | None = None, fill: Any = 0) -> Shaped[np.ndarray, "R W *d"]:
        """Rows padded with `fill` on the right, to the longest (at least 1) or cut to `width`."""
        if len(self) == 1 and width is None and self.ends[0] > self.starts[0]:
            return self.flat()[None]
        return _padded(self.values, *self._grid(width), fill)

    def padded_with(self, beside: Shaped[Flat, "E *d"]) -> tuple[np.ndarray, np.ndarray]:
        """`padded()` of these rows and of the same rows of another array; positions found once."""
        at, padding = self._grid()
        return _padded(self.values, at, padding), _padded(beside, at, padding)

    def _grid(self, width: int | None = None) -> tuple[Int[np.ndarray, "R W"], Bool[np.ndarray, "R W"]]:
        """Positions in `values`, which run on behind the end of a row, and which are padding."""
        lengths = self.lengths
        steps = np.arange(max(int(lengths.max(initial=0)), 1) if width is None else width)
        return self.starts[:, None] + steps, steps >= lengths[:, None]


def offsets_of(lengths: Integer[np.ndarray, "R"] | Bool[np.ndarray, "R"]) -> Int64[np.ndarray, "O"]:
    """Where rows of these lengths (or of a mask) begin, one behind the other, and where the last one ends."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])


def _padded(values: Flat, at: np.ndarray, padding: np.ndarray, fill: Any = 0) -> np.ndarray:
    if len(values) == 0:
        return np.full((*at.shape, *values.shape[1:]), fill, dtype=values.dtype)
    # One gather of the whole table, padding included, since rows that are padded together have like
    # lengths. Places behind the last value are clipped to it.
    whole = np.asarray(values) if isinstance(values, np.ndarray) else values  # of a mapped file the array, not the map
    rows = whole.take(at, axis=0, mode="clip")
    rows[padding] = fill
    return rows


_BITS = 63
"""Bits of the whole number in which a key and its row are sorted together."""


def stable_order(*keys: Shaped[np.ndarray, "n"]) -> Int64[np.ndarray, "n"]:
    """The rows in order of the first key, those where it is equal by the second, and so on; equal ones as they stood.

    The same as `np.lexsort`, by one sort of numbers that hold key and row: numpy sorts plain 64-bit
    numbers with vector instructions, ten times as fast as it sorts rows by a key. Keys that do not
    fit one number are sorted one after the other, from the last.
    """
    rows = len(keys[0])
    row_bits = max(rows - 1, 0).bit_length()
    if rows == 0 or not all(key.dtype.kind in "iu" for key in keys):
        return np.lexsort(keys[::-1])
    lows = [int(key.min()) for key in keys]
    widths = [(int(key.max()) - low).bit_length() for key, low in zip(keys, lows, strict=True)]
    if sum(widths) + row_bits <= _BITS:
        packed = np.zeros(rows, np.int64)
        for key, low, width in zip(keys, lows, widths, strict=True):
            packed <<= width
            wide = key if key.dtype.kind == "u" else key.astype(np.int64)  # so that the difference does not overflow
            packed |= (wide - wide.dtype.type(low)).astype(np.int64)
        packed <<= row_bits
        packed |= np.arange(rows)
        packed.sort()
        packed &= (1 << row_bits) - 1
        return packed
    if len(keys) == 1:
        return np.argsort(keys[0], kind="stable")
    order = stable_order(*keys[1:])
    return order[stable_order(keys[0][order])]
