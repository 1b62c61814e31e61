"""A table as frames of `CHUNK` rows in input order, as often as needed, in the memory of one of them.

Parquet is read by row groups. What cannot be read from the middle (CSV, JSONL, lazy queries) is first streamed into a
Parquet file in a scratch folder. A DataFrame in memory is cut as it is.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import narwhals as nw
import polars as pl

from fullrank.core.errors import UserError
from fullrank.data.frames import Source

CHUNK = 1 << 17
"""Rows of a chunk. Statistics are summed by chunk, so another size may change their last digits."""


class Chunks:
    """Some columns of a table; iterate over it for (row number of the first row, frame)."""

    def __init__(self, source: Source, columns: Sequence[str], scratch: Path):
        self.name = source.name
        self._source = source
        self._columns = list(columns)
        self._lazy: pl.LazyFrame | None = None
        self._whole: pl.DataFrame | None = None
        if isinstance(source.frame, nw.DataFrame):
            self._whole = source.read(self._columns)
            self.rows = len(self._whole)
            return
        if source.sliced:
            native = source.frame.to_native()
            assert isinstance(native, pl.LazyFrame)
            self._lazy = native.select(self._columns)
        else:
            self._lazy = self._spooled(scratch / "input.parquet")
        counted = self._lazy.select(pl.len())
        self.rows = int(source.guard(lambda: counted.collect().item()))

    def __iter__(self) -> Iterator[tuple[int, pl.DataFrame]]:
        return self.of(self._columns)

    @property
    def empty(self) -> pl.DataFrame:
        """The columns without rows."""
        return self._whole.clear() if self._whole is not None else self._read(0, self._columns).clear()

    def of(self, columns: Sequence[str]) -> Iterator[tuple[int, pl.DataFrame]]:
        """The chunks with some of the columns."""
        chosen = list(dict.fromkeys(columns))
        for start in range(0, self.rows, CHUNK):
            if self._whole is not None:
                yield start, self._whole.select(chosen).slice(start, CHUNK)
            else:
                yield start, self._read(start, chosen)

    def _read(self, start: int, columns: list[str]) -> pl.DataFrame:
        assert self._lazy is not None
        some = self._lazy.slice(start, CHUNK).select(columns)
        frame = self._source.guard(lambda: some.collect())
        assert isinstance(frame, pl.DataFrame)
        if len(frame) != min(CHUNK, self.rows - start):
            raise UserError(f"{self.name} changed while it was read; run it again")
        return frame

    def _spooled(self, path: Path) -> pl.LazyFrame:
        frame = self._source.frame.select(*self._columns)
        try:
            native = frame.to_native()
            if isinstance(native, pl.LazyFrame):
                self._source.guard(
                    lambda: native.sink_parquet(path, compression="lz4", statistics=False, row_group_size=CHUNK)
                )
            else:
                assert isinstance(frame, nw.LazyFrame)
                self._source.guard(lambda: frame.sink_parquet(path))
        except UserError as error:
            if os.strerror(errno.ENOSPC) in str(error):  # the engine's error, which would blame the input
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from None
            raise
        return pl.scan_parquet(path, glob=False)
