"""Sets that reczoo distributes for BARS (J. Zhu et al., SIGIR 2022): one zip archive of CSV files, one for each part.

The sets with behaviour sequences have train.csv and test.csv and no validation rows: BARS stops training and selects
settings on the test rows. Here a tenth of the training rows is held out, or the test rows validate too, as there.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import polars as pl

from fullrank.core.errors import UserError, command_line
from fullrank.core.random import uniform_of_rows
from fullrank.core.spec import Spec
from fullrank.data.impressions.fields import Schema, SequenceOf
from fullrank.data.sources import ImpressionTables, RemoteFile
from fullrank.data.sources._archive import unpacked
from fullrank.data.sources._parse import reading, scanned

HOST = "https://huggingface.co/datasets/reczoo"
TRAIN, TEST = "train.csv", "test.csv"
PARTS = {TRAIN: "train", "valid.csv": "validation", TEST: "test"}
"""Of the sets that have three files: which rows each holds."""
HELD_OUT = 0.1
"""Share of train.csv that validates where the test rows do not."""
SEPARATOR = "^"
"""Between the values of a sequence."""
LOOK = 1_000
"""Rows whose sequences are looked at."""
Validation = Literal["train", "test"]


class SequenceSet(Spec):
    """A set of train.csv and test.csv with behaviour sequences, and without validation rows."""

    kind: str
    validation: Validation = "train"
    """train: a tenth of train.csv, drawn by row; test: the test rows, on which BARS selects too."""
    base_url: str
    """Folder of the archive on the server."""
    archive: ClassVar[str]
    columns: ClassVar[Schema]
    note: ClassVar[str]

    def files(self) -> tuple[RemoteFile, ...]:
        """One zip archive of the two CSV files."""
        return (remote_file(self.base_url, self.archive),)

    def impressions(self, folder: Path) -> ImpressionTables:
        """Both files behind each other, unpacked into `folder` where they lie there as an archive.

        The column `split` says which rows are trained on.
        """
        hint = f"run: {command_line('download', self.kind, '--out', folder)}"
        paths = unpacked(folder, (TRAIN, TEST), self.archive, hint=hint).values()
        columns = [name for name in self.columns.columns if name != "split"]
        train, test = (scanned(path, columns).select(*columns) for path in paths)
        for path, frame in zip(paths, (train, test), strict=True):
            _require_separator(path, frame, [field.name for field in self.columns.several()])
        parts = [train.with_columns(split=pl.lit("train"))]
        if self.validation == "train":
            # by a hash of the row number: a rule such as every tenth row would meet the order positive, negative, ...
            held_out = pl.col("row").map_batches(_held_out, return_dtype=pl.Boolean, is_elementwise=True)
            split = pl.when(held_out).then(pl.lit("validation")).otherwise(pl.lit("train"))
            parts = [train.with_row_index("row").with_columns(split=split).drop("row")]
        else:
            parts.append(test.with_columns(split=pl.lit("validation")))
        table = pl.concat([*parts, test.with_columns(split=pl.lit("test"))])
        return ImpressionTables(table, self.columns, (self.note,))


def history(name: str, shares: str, max_length: int = 100) -> SequenceOf:
    """A behaviour sequence of values of another field, which all have ids."""
    return SequenceOf(name=name, shares=shares, extends=True, separator=SEPARATOR, max_length=max_length)


def remote_file(base_url: str, archive: str, names: Sequence[str] = (TRAIN, TEST)) -> RemoteFile:
    """The archive below `base_url`; the files `names` that were taken out of it serve as well."""
    return RemoteFile(f"{base_url.rstrip('/')}/{archive}", archive, alternatives=tuple(names))


def _held_out(rows: pl.Series) -> pl.Series:
    return pl.Series(uniform_of_rows(0, rows.to_numpy().astype(np.int64)) < HELD_OUT)


def _require_separator(path: Path, frame: pl.LazyFrame, names: Sequence[str]) -> None:
    """Refuse other separators: a whole history would be read as one value that nothing knows."""
    with reading(path):
        head = frame.select(names).head(LOOK).collect()
    for name in names:
        other = head[name].drop_nulls().str.extract(r"([\s,;|\[\]])", 1).drop_nulls()
        if len(other):
            raise UserError(
                f"{path} is not in the publisher's format: the values of {name!r} have {other[0]!r} between them "
                f"and not {SEPARATOR!r}; convert the column, or download the file again",
                code="wrong-separator",
            )
