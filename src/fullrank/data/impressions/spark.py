"""Impressions on Spark: it numbers the rows of a table and puts the columns that are read into a folder, part by part.

What happens to a part is what happens in one process (`part_work.py`), so the store is the same, to the fingerprint.
The workers need this library, and ``OUT.preparing`` on a file system that they and the driver share.

Rows are numbered in the order of the files by name and of the rows in them; of a DataFrame that is none of files, in
the order of its partitions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import numpy as np
import polars as pl

from fullrank.core.errors import UserError
from fullrank.data.events.spark import ORDER, ordered_frame
from fullrank.data.frames import Chunks, InputTable
from fullrank.data.impressions.fields import Schema
from fullrank.data.impressions.fingerprints import BLOCKS
from fullrank.data.impressions.part_work import PartRows
from fullrank.parallel.spark import as_user_error

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FILE, _ROW = ORDER
_PART = "_fullrank_part"
"""Column that says the part of an impression."""


@dataclass(frozen=True)
class RowFiles(PartRows):
    """The rows of a table as Parquet files in a folder, those of each part in one of its own."""

    folder: Path

    def of(self, number: int, columns: Sequence[str]) -> Iterator[tuple[int, pl.DataFrame]]:
        first, stop = self.stretch(number)
        if first == stop:
            return
        (file,) = (self.folder / f"{_PART}={number}").glob("*.parquet")
        chunks = Chunks(InputTable(file, "impressions"), [_ROW, *columns], self.folder)
        for start, frame in chunks:
            own = frame[_ROW].to_numpy()
            if chunks.rows != stop - first or not np.array_equal(own, first + start + np.arange(len(frame))):
                raise UserError(
                    f"the rows of {self.name} came in another order when they were read again; write them to Parquet "
                    "files first, or sort them",
                    code="table-changed",
                )
            yield first + start, frame.drop(_ROW)


def rows_on_spark(
    session: SparkSession, table: Any, schema: Schema, count: int, scratch: Path, *, read: bool
) -> RowFiles:
    """The rows of a table in `scratch`, where Spark puts them unless they were `read` already."""
    folder = scratch / "rows"
    with as_user_error():
        frame, name = ordered_frame(session, table, schema.columns, "impressions")
        sizes = {row[0]: row[1] for row in frame.groupBy(_FILE).count().collect()}
        rows = sum(sizes.values())
        if rows and not read:
            _write(frame, sizes, rows, count, folder)
    return RowFiles(name, rows, count, folder)


def _write(frame: DataFrame, sizes: dict[str, int], rows: int, count: int, folder: Path) -> None:
    """Number the rows through all files, and write those of each part, in order."""
    from pyspark.sql import functions as F

    names = sorted(sizes, key=unquote)
    first = np.cumsum([0, *(sizes[one] for one in names)])[:-1].tolist()
    starts = frame.sparkSession.createDataFrame(list(zip(names, first, strict=True)), f"{_FILE} string, first long")
    numbered = frame.join(F.broadcast(starts), _FILE).withColumn(_ROW, F.col(_ROW) + F.col("first"))
    block = f"(({_ROW} + 1) * {BLOCKS}L - 1) div {rows}L"  # the inverse of `block_edges`
    parts = numbered.drop(_FILE, "first").withColumn(_PART, F.expr(f"cast(({block}) * {count}L div {BLOCKS}L as int)"))
    sent = parts.repartition(count, _PART).sortWithinPartitions(_PART, _ROW)
    one_file = sent.write.mode("overwrite").option("maxRecordsPerFile", 0)  # for each part
    one_file.partitionBy(_PART).parquet(folder.resolve().as_uri())
