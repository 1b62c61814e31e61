"""A table that grows by frames into a file, which appears whole or not at all, in the memory of one frame."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import TracebackType
from typing import Any

import polars as pl

from fullrank.errors import UserError

SUFFIXES = (".parquet", ".csv", ".jsonl")
"""What can be written."""


class Growing:
    """Use it in a `with`: leaving without an error puts the file in place of an older one, else nothing is left.

    Parquet is gathered in pieces beside the file, because its rows are known only at the end. Raises `UserError` for
    another suffix, for lists in a CSV file, and where the disk refuses.
    """

    def __init__(self, path: Path):
        if path.suffix not in SUFFIXES:
            raise UserError(f"{path} has the suffix {path.suffix!r}; allowed: {', '.join(SUFFIXES)}")
        self.path, self.rows = path, 0
        self._fresh = path.with_name(f".{path.name}.{os.getpid()}.part")
        self._pieces = path.with_name(f".{path.name}.{os.getpid()}.pieces")

    def __enter__(self) -> Growing:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.suffix == ".parquet":
            self._pieces.mkdir()
        return self

    def add(self, frame: pl.DataFrame) -> None:
        """More rows, of the same columns."""
        try:
            if self.path.suffix == ".parquet":
                frame.write_parquet(self._pieces / f"{self.rows:015}.parquet")
            else:
                with open(self._fresh, "ab") as file:
                    self._text(frame, file)
        except (OSError, pl.exceptions.PolarsError) as error:
            raise self._refused(error) from error
        self.rows += len(frame)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            if kind is None:
                if self.path.suffix == ".parquet":
                    pl.scan_parquet(self._pieces / "*.parquet").sink_parquet(self._fresh)
                with open(self._fresh, "rb+") as file:
                    os.fsync(file.fileno())
                os.replace(self._fresh, self.path)
        except (OSError, pl.exceptions.PolarsError) as problem:
            raise self._refused(problem) from problem
        finally:
            self._fresh.unlink(missing_ok=True)
            shutil.rmtree(self._pieces, ignore_errors=True)

    def _text(self, frame: pl.DataFrame, file: Any) -> None:
        if self.path.suffix == ".jsonl":
            frame.write_ndjson(file)
            return
        nested = [name for name, dtype in frame.schema.items() if dtype.is_nested()]
        if nested:
            raise UserError(f"column {nested[0]!r} holds lists, which CSV cannot: write {self.path.stem}.parquet")
        frame.write_csv(file, include_header=file.tell() == 0)

    def _refused(self, error: Exception) -> UserError:
        return UserError(f"cannot write {self.path}: {getattr(error, 'strerror', None) or str(error).splitlines()[0]}")
