"""Prepare a store in parts on Spark, which reads, codes and sends each event to its part, and runs the tasks on parts.

What happens to a piece of the table and to a part is what happens in one process (`pieces.py`,
`part_work.py`), so the store is the same, to the fingerprint. The driver gets the ids of items and
sums, never events. The workers need this library, and ``OUT.preparing`` on a file system that they
and the driver share.

Equal times keep the order of the files by name and of the rows in them; of a DataFrame that is none
of files, the order of its partitions.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from fullrank.core.errors import UserError
from fullrank.core.parquet import read_parquet
from fullrank.core.tables import check_suffix, write_table
from fullrank.data import values
from fullrank.data.events.feature_columns import FeatureCoder, code_types, different, plain_values
from fullrank.data.events.filters import Prepare
from fullrank.data.events.part_work import ITEM_IDS, SPILL
from fullrank.data.events.pieces import Coding, Find, Spill, coded_piece
from fullrank.data.events.table import left_out_notes, unit_notes
from fullrank.data.frames import InputTable, require_rows
from fullrank.data.impressions.schema import AnyField, Numeric
from fullrank.parallel.spark import OnSpark, as_user_error, refusals_as_text, session_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

ORDER = ("_order_file", "_order_row")
"""Columns that give the position of an event in the input."""


def require_readable(source: InputTable) -> None:
    """Raise `UserError` for a file that is no Parquet, and for files of different
    types, which Spark does not cast."""
    if source.unlike is not None:
        raise UserError(
            f"the files of {source.name} have columns of different types, or other columns, which the engine spark "
            "does not cast: write all with one type, or prepare parts without it",
            code="files-differ",
        )
    if source.path is not None and not source.sliced:
        check_suffix(f"the engine spark reads Parquet files: {source.name}", source.path.suffix, (".parquet", ".pq"))


def runner_on_spark(source: InputTable, master: str | None) -> OnSpark:
    """A runner on the session of a table. Raises `UserError` for what
    `require_readable` and `session_of` refuse."""
    require_readable(source)
    return OnSpark(session_of(source.table, master))


def read_on_spark(session: SparkSession, table: Any, spec: Prepare, count: int, scratch: Path) -> dict[str, Any]:
    """Both passes over the table on Spark, as `stream.read_pieces` makes them in one process."""
    columns = spec.columns_read
    fields = spec.features.of_events
    frame, name = ordered_frame(session, table, list(dict.fromkeys(columns.names(fields))))
    with as_user_error():
        frame, notes = _without_missing(frame, spec, name)
        item_ids = values.ids(_distinct(frame, columns.item), name).sort()
        types = () if columns.type is None else tuple(_distinct(frame, columns.type).cast(pl.String).sort())
        write_table(pl.DataFrame({"item_id": item_ids}), scratch / ITEM_IDS)
        coder = FeatureCoder.write(fields, different_values(frame, fields, name), scratch)
        coding = Coding(columns, types, count, coder)
        find_of = partial(_item_finder, scratch / ITEM_IDS)
        facts, tasks = send_to_parts(frame, name, coding, find_of, scratch / SPILL)
        span = None
        if columns.time is not None:
            # a task without events has null
            first, last = tasks.select(pl.col("first").min(), pl.col("last").max()).row(0)
            span = first, last
            numbers = to_polars(frame.limit(0))[columns.time].dtype.is_numeric()
            notes += sorted(unit_notes(*span, columns, numbers))
    return {"events": int(tasks["events"].sum()), "span": span, "types": list(types), "notes": notes, **facts}


def send_to_parts(
    frame: DataFrame, name: str, coding: Coding, find_of: Callable[[], Find], folder: Path
) -> tuple[dict[str, Any], pl.DataFrame]:
    """Code the events of a table as `coded_piece` does, and send each to the files of its part
    below `folder` (`Spill`).

    Returns `text_users` and the dtypes of the `columns`, and a table of each task's events, first
    and last second. A worker makes the function that finds items by `find_of`.
    """
    head, columns = to_polars(frame.limit(0)), coding.columns
    users = values.ids(head[columns.user], name)
    text, dtypes = users.dtype == pl.String, {"item": "<i4"}
    if columns.time is not None:
        dtypes |= {"time": "<i8", "key": "<f8" if head[columns.time].dtype.is_float() else "<i8"}
    others = {"weight": "<f4", "rating": "<f8", "type": "<i4"}
    dtypes |= {role: dtype for role, dtype in others.items() if role in columns.roles}
    dtypes |= {} if coding.features is None else code_types(coding.features.fields)
    code = partial(_coded, name=name, coding=coding, find_of=find_of)
    coded = frame.mapInArrow(code, _schema(dtypes, text)).repartition(coding.parts, "part")
    spill = partial(_spilled, folder=folder, count=coding.parts, users=users.dtype)
    tasks = coded.sortWithinPartitions("part", *ORDER).mapInArrow(spill, "events long, first long, last long")
    dtypes = {"user": "<u4" if text else users.to_numpy().dtype.str, **dtypes}
    return {"text_users": text, "columns": dtypes}, to_polars(tasks)


def ordered_frame(
    session: SparkSession, table: Any, names: Sequence[str], what: str = "events"
) -> tuple[DataFrame, str]:
    """Columns of a table with those of `ORDER`; and the table's name in errors."""
    from pyspark.sql import functions as F

    if isinstance(table, (str, os.PathLike)):
        with as_user_error():
            whole, name = session.read.parquet(str(table)), f"{what} {str(table)!r}"
        position = [F.col("_metadata.file_path"), F.col("_metadata.row_index")]
    else:  # Spark's number of a row: its partition, and 33 bits that count the rows of it
        whole, name, number = table, what, F.monotonically_increasing_id()
        position = [F.lpad(F.shiftright(number, 33).cast("string"), 10, "0"), number.bitwiseAND((1 << 33) - 1)]
    order = [column.alias(alias) for column, alias in zip(position, ORDER, strict=True)]
    return whole.select(*(F.col(f"`{column}`") for column in names), *order), name


def _without_missing(frame: DataFrame, spec: Prepare, name: str) -> tuple[DataFrame, list[str]]:
    """The rows that `missing` leaves, as `table.missing_rows` decides, and
    a note of how many it drops."""
    from pyspark.sql import functions as F

    if spec.missing != "drop":
        return frame, []
    bad, kinds = F.lit(False), dict(frame.dtypes)
    for column_name in dict.fromkeys((spec.columns.user, spec.columns.item, spec.columns.time)):
        if column_name is not None:
            column = F.col(f"`{column_name}`")
            bad = bad | column.isNull()
            if kinds[column_name] in ("double", "float"):
                bad = bad | F.isnan(column)
            elif kinds[column_name] == "string":
                bad = bad | (F.trim(column) == "")
    rows, complete = frame.count(), frame.filter(~bad)
    return complete, list(left_out_notes(rows - complete.count(), rows, name))


def _distinct(frame: DataFrame, name: str) -> pl.Series:
    """The sorted different values of a column, without nulls (which coding refuses)."""
    distinct = _values(frame, name).drop_nulls()
    require_rows("events", len(distinct))
    return distinct.sort()


def different_values(frame: DataFrame, fields: Sequence[AnyField], name: str) -> list[pl.Series]:
    """The different values of each field's column, sorted; none of numbers. `name` is the table's, in errors."""
    return [
        different([] if isinstance(field, Numeric) else [plain_values(field, _values(frame, field.name), name)])
        for field in fields
    ]


def _values(frame: DataFrame, name: str) -> pl.Series:
    """The different values of a column, in any order."""
    from pyspark.sql import functions as F

    return to_polars(frame.select(F.col(f"`{name}`").alias(name)).distinct())[name]


def to_polars(frame: DataFrame) -> pl.DataFrame:
    """A Spark DataFrame that is small, on the driver."""
    return pl.DataFrame(frame.toArrow())


def _schema(dtypes: dict[str, str], text_users: bool) -> str:
    """The schema of the coded events, as Spark writes schemas."""
    words = {"<i4": "int", "<i8": "long", "<f8": "double", "<f4": "float"}
    columns = {"part": "int", "user": "string" if text_users else "long"}
    columns |= {name: words[dtype] for name, dtype in dtypes.items()}
    columns |= {ORDER[0]: "string", ORDER[1]: "long"}
    return ", ".join(f"{name} {kind}" for name, kind in columns.items())


def _item_finder(ids: Path) -> Find:
    return values.IdIndex(read_parquet(ids, "the item ids")["item_id"]).find


def _coded(
    batches: Iterator[pa.RecordBatch], name: str, coding: Coding, find_of: Callable[[], Find]
) -> Iterator[pa.RecordBatch]:
    """Code a worker's pieces of the table: the columns of `_schema`."""
    find = find_of()
    for frame in _frames(batches):
        with refusals_as_text():
            part, users, arrays = coded_piece(frame, name, coding, find)
        users = users if users.dtype == pl.String else users.cast(pl.Int64)
        coded = pl.DataFrame({"part": part.astype(np.int32), "user": users, **arrays})
        yield from _batches(coded.hstack(frame.select(ORDER)))


def _frames(batches: Iterator[pa.RecordBatch]) -> Iterator[pl.DataFrame]:
    """The batches that have rows, as polars frames."""
    for batch in batches:
        if batch.num_rows:
            yield pl.DataFrame(batch)


def _spilled(batches: Iterator[pa.RecordBatch], folder: Path, count: int, users: Any) -> Iterator[pa.RecordBatch]:
    """Spill a worker's parts, which come in order, into their folders: all of them, or
    nothing where the task fails."""
    scratch = folder / f"task-{uuid.uuid4().hex}"
    spill, events, seconds = Spill(scratch, count), 0, []
    for frame in _frames(batches):
        columns = frame.drop("part", "user", *ORDER).to_dict()
        arrays = {name: column.to_numpy() for name, column in columns.items()}
        spill.add(frame["part"].to_numpy(), frame["user"].cast(users), arrays)
        events += len(frame)
        if "time" in arrays:
            seconds += [int(arrays["time"].min()), int(arrays["time"].max())]
    spill.flush()
    for part in sorted(scratch.iterdir()) if scratch.exists() else ():
        shutil.rmtree(folder / part.name, ignore_errors=True)  # of an attempt that was given up
        part.rename(folder / part.name)
    shutil.rmtree(scratch, ignore_errors=True)
    row = {"events": events, "first": min(seconds, default=None), "last": max(seconds, default=None)}
    yield from _batches(pl.DataFrame([row], schema=dict.fromkeys(row, pl.Int64)))


def _batches(frame: pl.DataFrame) -> list[pa.RecordBatch]:
    """A frame as Arrow that Spark reads: text with offsets of 32 bits."""
    whole = frame.to_arrow(compat_level=pl.CompatLevel.oldest())
    import pyarrow as pa

    large = pa.types.is_large_string
    plain = [(field.name, pa.string() if large(field.type) else field.type) for field in whole.schema]
    return list(whole.cast(pa.schema(plain)).to_batches())
