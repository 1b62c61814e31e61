"""Tasks on one part of a store of impressions: look at its times, fit, encode and write.

A part is a stretch of input rows. Each task knows a folder that all processes see, the rows of
its part, and what was fitted on all rows; what the parts know together are sums
(`Runner.total`), as for events.

The borders of the temporal split are found by counting in every part. A border is the time of the
row that a share of all rows precede; equal times go by input order, so a part has to know how many
rows of that time the parts before it have.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from jaxtyping import Int64

from fullrank.core.files import copy_file, whole_folder, write_json
from fullrank.core.parquet import read_parquet
from fullrank.core.readers import read_json
from fullrank.data import manifest as manifests
from fullrank.data.events import parts
from fullrank.data.events.part_work import Moments, moments_at
from fullrank.data.frames import Chunks, InputTable, name_rows
from fullrank.data.impressions import encoder_files
from fullrank.data.impressions.arrays import TABLES, BlockHashes, part_edges
from fullrank.data.impressions.encoding import FieldEncoder
from fullrank.data.impressions.fitting import Fit, RowCounts
from fullrank.data.impressions.schema import Schema, Shares, TimeParts
from fullrank.data.impressions.write import RowCoder, RowSplit, StoreFiles, split_times, write_store_manifest

FITTED = "fitted.json"
HASHES = "blocks"
"""The key of a part's manifest that holds the hash of each of its blocks."""
_MAGNITUDE = 2**63 - 1


@dataclass(frozen=True)
class TimeSpan:
    """First and last time of some rows, None for no rows, and whether all are whole numbers."""

    low: Any = None
    high: Any = None
    whole: bool = True

    @classmethod
    def of(cls, times: np.ndarray) -> TimeSpan:
        return cls(times.min().item(), times.max().item(), times.dtype.kind == "i") if len(times) else cls()

    def __add__(self, other: TimeSpan) -> TimeSpan:
        both = [span for span in (self, other) if span.low is not None]
        whole = all(span.whole for span in both)
        low, high = min((span.low for span in both), default=None), max((span.high for span in both), default=None)
        return TimeSpan(low, high, whole)


@dataclass(frozen=True)
class Borders:
    """The rule that puts each row into a part of the split by its time."""

    moments: tuple[Any, ...]
    """The time of each border; None lies behind all rows."""
    ties: tuple[int, ...]
    """How many rows of that time lie before the border."""
    earlier: tuple[tuple[int, ...], ...]
    """For each border, how many rows of its time lie in the parts before each part."""

    def of_part(self, number: int) -> TimeParts:
        """The rule of one part, whose rows are asked for in input order."""
        borders = zip(self.moments, self.ties, self.earlier, strict=True)
        return TimeParts([None if m is None else (m, max(ties - before[number], 0)) for m, ties, before in borders])

    @classmethod
    def at(cls, moments: tuple[int, ...], count: int) -> Borders:
        """The borders at these moments, for `count` parts of the store."""
        return cls(moments, (0,) * len(moments), ((0,) * count,) * len(moments))


def find_borders(
    rows: int,
    parts: int,
    shares: Shares,
    span: TimeSpan,
    before: Callable[[np.ndarray], Moments],
    equal: Callable[[tuple[Any, ...]], Int64[np.ndarray, "borders parts"]],
) -> Borders:
    """The borders of so many rows in so many parts, found by counting.

    `before` counts the rows before each of some rising moments, `equal` those at
    some moments in each part.
    """
    ranks = [int(rows * share + 1e-6) for share in (shares[0], shares[0] + shares[1])]
    inside = [rank for rank in ranks if rank < rows]
    if not inside:
        moments: list[Any] = []
    elif span.whole:
        moments = moments_at(inside, span.low, span.high, before)
    else:  # doubles, which are in the order of their bits
        ends = _bits(float(span.low)), _bits(float(span.high))
        moments = _doubles(np.array(moments_at(inside, *ends, lambda bits: before(_doubles(bits))), np.int64)).tolist()
    ties = [rank - int(before(np.array([moment]))[0]) for rank, moment in zip(inside, moments, strict=True)]
    counts = equal(tuple(moments)) if moments else np.zeros((0, parts), np.int64)
    earlier = [tuple(row) for row in (np.cumsum(counts, axis=1) - counts).tolist()]
    behind = len(ranks) - len(inside)  # borders behind all rows
    return Borders((*moments, *[None] * behind), (*ties, *[0] * behind), (*earlier, *[(0,) * parts] * behind))


def _bits(number: float) -> int:
    """A double as a whole number, in the same order (`_doubles` is the inverse).

    It is the bits of the double; those of a negative one, but its sign, are flipped. Adding 0
    makes one zero of -0 and 0.
    """
    bits = int(np.float64(number + 0.0).view(np.int64))
    return bits if bits >= 0 else bits ^ _MAGNITUDE


def _doubles(bits: Int64[np.ndarray, "n"]) -> np.ndarray:
    """The doubles of whole numbers that `_bits` made."""
    return np.where(bits >= 0, bits, bits ^ np.int64(_MAGNITUDE)).view(np.float64)


@dataclass(frozen=True)
class PartRows(ABC):
    """The rows of a table, part by part."""

    name: str
    rows: int
    count: int
    """Number of parts."""

    @abstractmethod
    def of(self, number: int, columns: Sequence[str]) -> Iterator[tuple[int, pl.DataFrame]]:
        """Columns of a part in chunks, in input order, each with its first row number."""

    def stretch(self, number: int) -> list[int]:
        """The first row of a part, and the first behind it."""
        return part_edges(self.rows, self.count)[number : number + 2].tolist()


@dataclass(frozen=True)
class CutRows(PartRows):
    """The rows of a table that is read from the middle."""

    chunks: Chunks

    @classmethod
    def of_table(
        cls, source: InputTable, columns: Sequence[str], count: int, scratch: Path, *, read: bool = False
    ) -> CutRows:
        """The rows of a table; one without random access is copied to `scratch`, unless `read`."""
        chunks = Chunks(source, columns, scratch, spooled=read)
        return cls(chunks.name, chunks.rows, count, chunks)

    def of(self, number: int, columns: Sequence[str]) -> Iterator[tuple[int, pl.DataFrame]]:
        return self.chunks.of(columns, *self.stretch(number))


@dataclass(frozen=True)
class PartTasks:
    """The tasks of a preparation, each on the part with a number."""

    work: Path
    """Where the parts go."""
    scratch: Path
    """A folder for what tasks leave for one another."""
    rows: PartRows
    schema: Schema
    typed: bool

    exact: bool = True
    """Whether statistics add up to the last bit in any order."""

    def span(self, number: int) -> TimeSpan:
        """The first and the last time of a part."""
        return sum(map(TimeSpan.of, self._times(number)), TimeSpan())

    def before(self, number: int, moments: np.ndarray) -> Moments:
        """How many rows of a part lie before each of some moments, which rise."""
        behind = np.zeros(len(moments) + 1, np.int64)
        for times in self._times(number):
            behind += np.bincount(np.searchsorted(moments, times, side="right"), minlength=len(behind))
        return np.cumsum(behind)[:-1]

    def equal(self, number: int, moments: tuple[Any, ...]) -> Int64[np.ndarray, "borders parts"]:
        """How many rows of a part are of each of some moments, in its column; the others are 0."""
        counts = np.zeros((len(moments), self.rows.count), np.int64)
        for times in self._times(number):
            counts[:, number] += [int(np.count_nonzero(times == moment)) for moment in moments]
        return counts

    def fit(self, number: int, borders: Borders | None) -> Fit:
        """The statistics of a part; what is counted of its rows is left for `encode`."""
        fit, split = Fit(self.schema, self.typed, exact=self.exact), self._split(number, borders)
        for start, frame, what in self._chunks(number, self.schema.columns):
            fit.add(start, frame, split.parts(start, frame, what), what)
        write_json(self._counts(number), fit.counted.dump())
        return fit

    def encode(
        self, number: int, borders: Borders | None, folder: Path, hashes: BlockHashes | None = None
    ) -> RowCounts:
        """Write and hash the arrays of a part, by what was fitted on all. Returns its counts."""
        counted, split = RowCounts.restore(read_json(self._counts(number))), self._split(number, borders)
        store = StoreFiles(folder, self.encoder, counted)
        try:
            for start, frame, what in self._chunks(number, self.schema.columns):
                part, block = split.parts(start, frame, what), self._coder.block(start, frame, what)
                if hashes is not None:
                    hashes.add(start, part, block)
                store.add(part, block)
        finally:
            store.close()
        return counted

    def write(self, number: int, borders: Borders | None) -> int:
        """Write a part of several as a store. Returns how many were written: 1."""
        out = self.work / parts.part_folder(number)
        if (out / manifests.NAME).is_file():  # of an earlier preparation that was killed
            return 1
        hashes = BlockHashes(self.rows.rows)
        with whole_folder(out) as folder:
            counted = self.encode(number, borders, folder, hashes)
            for name in TABLES:
                if (self.work / name).is_file():
                    copy_file(self.work / name, folder / name)
            groups = None if self._groups is None else len(self._groups)
            facts: dict[str, Any] = {"input": None, "notes": [], "part": number, HASHES: hashes.done()}
            write_store_manifest(folder, self.encoder, counted.manifest(groups), facts)
        return 1

    @cached_property
    def encoder(self) -> FieldEncoder[Schema]:
        """The schema as it was fitted on all."""
        tree = read_json(self.scratch / FITTED)
        return encoder_files.restore_encoder(self.work / manifests.NAME, tree)

    def _chunks(self, number: int, columns: Sequence[str]) -> Iterator[tuple[int, pl.DataFrame, str]]:
        """The number of the first row, the rows, and what errors call them."""
        for start, frame in self.rows.of(number, columns):
            yield start, frame, name_rows(self.rows.name, self.rows.rows, start, frame)

    def _times(self, number: int) -> Iterator[np.ndarray]:
        assert self.schema.time is not None
        for _, frame, what in self._chunks(number, [self.schema.time]):
            yield split_times(self.schema, self.typed, frame, what)

    def _split(self, number: int, borders: Borders | None) -> RowSplit:
        return RowSplit(self.schema, self.typed, None if borders is None else borders.of_part(number))

    def _counts(self, number: int) -> Path:
        return self.scratch / f"counts-{number:05}.json"

    @cached_property
    def _groups(self) -> pl.Series | None:
        return None if self.schema.group is None else read_parquet(self.work / TABLES[1], "the groups")["value"]

    @cached_property
    def _coder(self) -> RowCoder:
        return RowCoder(self.encoder, self._groups, self.typed)
