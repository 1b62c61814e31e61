"""What is done with one part of a store of impressions: look at its times, fit, encode and write.

A part is a stretch of input rows. Each task knows a folder that all processes see, the rows of its part, and what was
fitted on all; what parts know together are sums (`PartRunner.total`), as for events.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import polars as pl
from jaxtyping import Int64

from fullrank.core.files import copy_file, whole_folder, write_json
from fullrank.core.parquet import read_parquet
from fullrank.core.readers import read_json
from fullrank.data import manifest as manifests
from fullrank.data.events import parts
from fullrank.data.frames import Chunks
from fullrank.data.impressions import encoder_files
from fullrank.data.impressions.encoding import FieldEncoder
from fullrank.data.impressions.fields import Schema
from fullrank.data.impressions.fingerprints import TABLES, BlockHashes, part_edges
from fullrank.data.impressions.fitting import Fit, RowCounts
from fullrank.data.impressions.part_times import Borders, TimeSpan
from fullrank.data.impressions.splits import TemporalSplit
from fullrank.data.impressions.vocabulary import Vocabulary
from fullrank.data.impressions.write import RowCoder, RowSplit, StoreFiles, name_rows, split_times, write_store_manifest

SCRATCH, FITTED = "scratch", "fitted.json"
HASHES = "blocks"
"""The key of a part's manifest that holds the hash of each of its blocks."""


@runtime_checkable
class PartRows(Protocol):
    """The rows of a table, part by part."""

    @property
    def name(self) -> str: ...
    @property
    def rows(self) -> int: ...
    def of(self, number: int, columns: Sequence[str]) -> Iterator[tuple[int, pl.DataFrame]]:
        """Some columns of a part in chunks, in input order, with the row number of the first of each."""
        ...


@dataclass(frozen=True)
class CutRows:
    """The rows of a table that is read from the middle."""

    chunks: Chunks
    count: int

    @property
    def name(self) -> str:
        return self.chunks.name

    @property
    def rows(self) -> int:
        return self.chunks.rows

    def of(self, number: int, columns: Sequence[str]) -> Iterator[tuple[int, pl.DataFrame]]:
        first, stop = part_edges(self.rows, self.count)[number : number + 2].tolist()
        return self.chunks.of(columns, first, stop)


@dataclass(frozen=True)
class PartTasks:
    """The tasks."""

    work: Path
    rows: PartRows
    schema: Schema
    typed: bool

    def span(self, number: int) -> TimeSpan:
        """The first and the last time of a part."""
        found = TimeSpan()
        for times in self._times(number):
            found += TimeSpan.of(times)
        return found

    def before(self, number: int, moments: np.ndarray) -> Int64[np.ndarray, "m"]:
        """How many rows of a part lie before each of some moments, which rise."""
        behind = np.zeros(len(moments) + 1, np.int64)
        for times in self._times(number):
            behind += np.bincount(np.searchsorted(moments, times, side="right"), minlength=len(behind))
        return np.cumsum(behind)[:-1]

    def equal(self, number: int, moments: tuple[Any, ...], count: int) -> Int64[np.ndarray, "borders parts"]:
        """How many rows of a part are of each of some moments, in its column; the others are 0."""
        found = np.zeros((len(moments), count), np.int64)
        for times in self._times(number):
            found[:, number] += [int(np.count_nonzero(times == moment)) for moment in moments]
        return found

    def fit(self, number: int, borders: Borders | None) -> Fit:
        """The statistics of a part; what is counted of its rows is left for `write`."""
        fit, split = Fit(self.schema, self.typed, exact=True), self._split(number, borders)
        for start, frame in self.rows.of(number, self.schema.columns):
            what = name_rows(self.rows.name, self.rows.rows, start, frame)
            fit.add(start, frame, split.parts(start, frame, what), what)
        write_json(self._counts(number), fit.counted.dump())
        return fit

    def write(self, number: int, borders: Borders | None) -> int:
        """Write a part, by what was fitted on all. Returns how many were written: 1."""
        out = self.work / parts.part_folder(number)
        if (out / manifests.NAME).is_file():  # of an earlier preparation that was killed
            return 1
        counted = RowCounts.restore(read_json(self._counts(number)))
        encoder, coder, split = self._encoder, self._coder, self._split(number, borders)
        hashes = BlockHashes(self.rows.rows)
        with whole_folder(out) as folder:
            store = StoreFiles(folder, encoder, counted)
            try:
                for start, frame in self.rows.of(number, self.schema.columns):
                    what = name_rows(self.rows.name, self.rows.rows, start, frame)
                    part, block = split.parts(start, frame, what), coder.block(start, frame, what)
                    hashes.add(start, part, block)
                    store.add(part, block)
            finally:
                store.close()
            for name in TABLES:
                if (self.work / name).is_file():
                    copy_file(self.work / name, folder / name)
            groups = None if self._groups is None else len(self._groups)
            facts: dict[str, Any] = {"input": None, "notes": [], "part": number, HASHES: hashes.done()}
            write_store_manifest(folder, self.schema, encoder, counted.manifest(groups), facts)
        return 1

    def _times(self, number: int) -> Iterator[np.ndarray]:
        assert self.schema.time is not None
        for start, frame in self.rows.of(number, [self.schema.time]):
            what = name_rows(self.rows.name, self.rows.rows, start, frame)
            yield split_times(self.schema, self.typed, frame, what)

    def _split(self, number: int, borders: Borders | None) -> RowSplit:
        temporal = isinstance(self.schema.split, TemporalSplit) and borders is not None
        return RowSplit(self.schema, self.typed, borders.of_part(number) if temporal and borders else None)

    def _counts(self, number: int) -> Path:
        return self.work / SCRATCH / f"counts-{number:05}.json"

    @cached_property
    def _encoder(self) -> FieldEncoder:
        tree = read_json(self.work / SCRATCH / FITTED)
        return encoder_files.restore_encoder(self.work / manifests.NAME, tree)

    @cached_property
    def _groups(self) -> pl.Series | None:
        return None if self.schema.group is None else read_parquet(self.work / TABLES[1], "the groups")["value"]

    @cached_property
    def _coder(self) -> RowCoder:
        names = self._groups
        groups = None if names is None else Vocabulary(names.cast(pl.String))
        return RowCoder(self.schema, self._encoder, groups, self.typed)
