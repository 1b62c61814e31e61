"""Prepare a store in parts on Spark, which reads, codes and sends each event to its part, and runs the tasks on parts.

What happens to a piece of the table and to a part is what happens in one process (`pieces.py`, `part_work.py`), so the
store is the same, to the fingerprint. The driver gets the ids of items and sums, never events. The workers need this
library, and ``OUT.preparing`` on a file system that they and the driver share.

Equal times keep the order of the files by name and of the rows in them; of a DataFrame that is none of files, the order
of its partitions.
"""

from __future__ import annotations

import operator
import os
import re
import shutil
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import polars as pl

from fullrank.core.errors import UserError, no_effect, package, reason_line
from fullrank.core.parquet import read_parquet
from fullrank.core.tables import check_suffix, write_table
from fullrank.data import values
from fullrank.data.events.filters import Prepare
from fullrank.data.events.part_work import ITEM_IDS, SPILL
from fullrank.data.events.pieces import coded_piece
from fullrank.data.events.spill import Spill
from fullrank.data.events.table import Columns, left_out_notes, unit_notes
from fullrank.data.frames import InputTable, require_rows

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T")
ORDER = ("_order_file", "_order_row")
"""Columns that say where an event stands in the input."""


def session_of(table: Any, master: str | None) -> SparkSession:
    """The session of a Spark DataFrame, else the one that is there, else a new one on `master`.

    Raises `UserError` without Spark or Java, and where a session is there already on another master.
    """
    package("pyspark.sql", "spark", "the engine spark")
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    active: SparkSession | None = getattr(table, "sparkSession", None) or SparkSession.getActiveSession()
    if active is not None:
        used = active.sparkContext.master
        if master not in (None, used):
            why = f"since a Spark session is there already, on {used!r}"
            raise no_effect(f"master={master!r}", why, "leave it out, or stop that session")
        return active
    builder = SparkSession.builder.appName("fullrank")
    try:
        return (builder.master(master) if master is not None else builder).getOrCreate()
    except Exception as error:
        raise UserError(
            f"no Spark session could be made on {master or 'the default master'} ({reason_line(error)}); Spark needs "
            "Java 17 or later, and an address such as local[2] or spark://host:7077",
            code="spark-not-started",
        ) from error


def require_readable(source: InputTable) -> None:
    """Raise `UserError` for a file that is no Parquet, and for files of different types, which Spark does not cast."""
    if source.unlike is not None:
        raise UserError(
            f"the files of {source.name} have columns of different types, or other columns, which the engine spark "
            "does not cast: write all with one type, or prepare parts without it",
            code="files-differ",
        )
    if source.path is not None and not source.sliced:
        check_suffix(f"the engine spark reads Parquet files: {source.name}", source.path.suffix, (".parquet", ".pq"))


@dataclass(frozen=True)
class OnSpark:
    """Tasks on parts as a Spark job each, their results added in a tree (`part_work.PartRunner`)."""

    session: SparkSession

    def total(self, task: Callable[[int], T], numbers: Iterable[int]) -> T:
        places = list(numbers)
        with told_as_user_error():
            found: T = self.session.sparkContext.parallelize(places, len(places)).map(task).treeReduce(operator.add)
        return found


def read_on_spark(session: SparkSession, table: Any, spec: Prepare, count: int, work: Path) -> dict[str, Any]:
    """What `stream.read_pieces` does in one process: ids of items, and every event in the files of its part."""
    frame, name = ordered_frame(session, table, list(dict.fromkeys(spec.columns_read.roles.values())))
    with told_as_user_error():
        frame, notes = _without_missing(frame, spec, name)
        head = to_polars(frame.limit(0))
        columns = spec.columns
        users = values.ids(head[columns.user], f"column {columns.user!r} of {name}")
        values.ids(head[columns.item], f"column {columns.item!r} of {name}")
        text_users = users.dtype == pl.String
        item_ids = values.ids(_distinct(frame, columns.item), f"column {columns.item!r} of {name}").sort()
        item_ids = item_ids.alias("item_id")
        types = () if columns.type is None else tuple(_distinct(frame, columns.type).cast(pl.String).sort())
        write_table(pl.DataFrame({"item_id": item_ids}), work / ITEM_IDS)
        code = partial(_coded, spec=spec, count=count, name=name, work=work, types=types)
        own = _dtypes(head, spec.columns_read)
        found = send_to_parts(frame, code, own, users.dtype, count, work / SPILL)
    dtypes = {"user": "<u4" if text_users else users.to_numpy().dtype.str, **own}
    span = None if columns.time is None else (int(found["first"].min()), int(found["last"].max()))  # type: ignore[arg-type]
    if span is not None and columns.time is not None:
        notes += sorted(unit_notes(*span, columns, head[columns.time].dtype.is_numeric()))
    return {
        "events": int(found["events"].sum()), "span": span, "types": list(types), "notes": notes,
        "text_users": text_users, "columns": dtypes,
    }  # fmt: skip


def send_to_parts(
    frame: DataFrame, code: Callable[..., Any], own: dict[str, str], users: Any, count: int, folder: Path
) -> pl.DataFrame:
    """Every event to the files of its part below `folder` (`spill.Spill`); events and times of each task's.

    `code` makes Arrow batches of columns part, user, `own` (name -> dtype) and `ORDER` of those of `frame`. `users` is
    the polars type of their ids.
    """
    coded = frame.mapInArrow(code, _schema(own, users == pl.String))
    sent = coded.repartition(count, "part").sortWithinPartitions("part", *ORDER)
    spill = partial(_spilled, folder=folder, count=count, users=users)
    return to_polars(sent.mapInArrow(spill, "events long, first long, last long"))


def ordered_frame(
    session: SparkSession, table: Any, names: Sequence[str], what: str = "events"
) -> tuple[DataFrame, str]:
    """Some columns of a table, with the two of the order; and the table's name in errors."""
    from pyspark.sql import functions as F

    if isinstance(table, (str, os.PathLike)):
        with told_as_user_error():
            whole, name = session.read.parquet(str(table)), f"{what} {str(table)!r}"
        where = [F.col("_metadata.file_path"), F.col("_metadata.row_index")]
    else:  # a number of 33 bits counts the rows of a partition
        whole, name, number = table, what, F.monotonically_increasing_id()
        where = [F.lpad(F.shiftright(number, 33).cast("string"), 10, "0"), number.bitwiseAND((1 << 33) - 1)]
    placed = [column.alias(own) for column, own in zip(where, ORDER, strict=True)]
    return whole.select(*(F.col(f"`{one}`") for one in names), *placed), name


def _without_missing(frame: DataFrame, spec: Prepare, name: str) -> tuple[DataFrame, list[str]]:
    """The rows that `missing` leaves, and a note of how many it drops."""
    from pyspark.sql import functions as F

    if spec.missing != "drop":
        return frame, []
    bad, kinds = F.lit(False), dict(frame.dtypes)
    for role in dict.fromkeys((spec.columns.user, spec.columns.item, spec.columns.time)):
        if role is not None:
            column = F.col(f"`{role}`")
            bad = bad | column.isNull()
            if kinds[role] in ("double", "float"):
                bad = bad | F.isnan(column)
            elif kinds[role] == "string":
                bad = bad | (F.trim(column) == "")
    rows, kept = frame.count(), frame.filter(~bad)
    return kept, list(left_out_notes(rows - kept.count(), rows, name))


def _distinct(frame: DataFrame, name: str) -> pl.Series:
    """The sorted different values of a column, without nulls (which coding refuses)."""
    from pyspark.sql import functions as F

    found = to_polars(frame.select(F.col(f"`{name}`").alias(name)).distinct())[name].drop_nulls()
    require_rows("events", len(found))
    return found.sort()


def to_polars(frame: DataFrame) -> pl.DataFrame:
    """A Spark DataFrame that is small, on the driver."""
    return _from_arrow(frame.toArrow())


def _from_arrow(table: pa.Table | pa.RecordBatch) -> pl.DataFrame:
    found = pl.from_arrow(table)
    assert isinstance(found, pl.DataFrame)
    return found


def _schema(own: dict[str, str], text_users: bool) -> str:
    """Of the coded events, as Spark writes schemas."""
    words = {"<i4": "int", "<i8": "long", "<f8": "double", "<f4": "float"}
    named = {name: words[dtype] for name, dtype in own.items()}
    columns = {"part": "int", "user": "string" if text_users else "long", **named, ORDER[0]: "string", ORDER[1]: "long"}
    return ", ".join(f"{name} {kind}" for name, kind in columns.items())


def _dtypes(head: pl.DataFrame, columns: Columns) -> dict[str, str]:
    """The dtypes of the coded columns beside users."""
    found = {"item": "<i4"}
    if columns.time is not None:
        found |= {"time": "<i8", "key": "<f8" if head[columns.time].dtype.is_float() else "<i8"}
    found |= {"weight": "<f4"} if columns.weight is not None else {}
    found |= {"rating": "<f8"} if columns.rating is not None else {}
    return found | ({"type": "<i4"} if columns.type is not None else {})


def _coded(
    batches: Iterator[pa.RecordBatch], spec: Prepare, count: int, name: str, work: Path, types: tuple[str, ...]
) -> Iterator[pa.RecordBatch]:
    """A worker's pieces of the table, coded."""
    catalogue = values.IdIndex(read_parquet(work / ITEM_IDS, "the item ids")["item_id"])
    for frame in map(_from_arrow, batches):
        if len(frame):
            yield from coded_batches(frame, *coded_piece(frame, name, spec, catalogue, types, count))


def coded_batches(
    frame: pl.DataFrame, part: np.ndarray, users: pl.Series, own: dict[str, np.ndarray]
) -> list[pa.RecordBatch]:
    """Some rows, coded (`pieces.coded_piece`), in the columns of `_schema`."""
    whole = users if users.dtype == pl.String else users.cast(pl.Int64)
    return _batches(
        pl.DataFrame({"part": part.astype(np.int32), "user": whole, **own, **{name: frame[name] for name in ORDER}})
    )


def _spilled(batches: Iterator[pa.RecordBatch], folder: Path, count: int, users: Any) -> Iterator[pa.RecordBatch]:
    """A worker's parts, which come in order, into their folders: all of them, or nothing where the task fails."""
    own = folder / f"task-{uuid.uuid4().hex}"
    spill, events, seconds = Spill(own, count), 0, []
    for frame in map(_from_arrow, batches):
        if len(frame):
            names = [name for name in frame.columns if name not in ("part", "user", *ORDER)]
            columns = {name: frame[name].to_numpy() for name in names}
            spill.add(frame["part"].to_numpy(), frame["user"].cast(users), columns)
            events += len(frame)
            seconds += [int(one) for one in (columns["time"].min(), columns["time"].max())] if "time" in names else []
    spill.flush()
    for part in sorted(own.iterdir()) if own.exists() else ():
        shutil.rmtree(folder / part.name, ignore_errors=True)  # of an attempt that was given up
        part.rename(folder / part.name)
    shutil.rmtree(own, ignore_errors=True)
    row = {"events": events, "first": min(seconds, default=None), "last": max(seconds, default=None)}
    yield from _batches(pl.DataFrame([row], schema=dict.fromkeys(row, pl.Int64)))


def _batches(frame: pl.DataFrame) -> list[pa.RecordBatch]:
    """A frame as Arrow that Spark reads: text with offsets of 32 bits."""
    whole = frame.to_arrow(compat_level=pl.CompatLevel.oldest())
    import pyarrow as pa

    plain = [
        pa.field(one.name, pa.string() if pa.types.is_large_string(one.type) else one.type) for one in whole.schema
    ]
    return list(whole.cast(pa.schema(plain)).to_batches())


@contextmanager
def told_as_user_error() -> Iterator[None]:
    """Raise what a worker said of the data, or one sentence of what Spark says, as `UserError`."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        text = str(error)
        if (said := re.search(r"UserError: (.+)", text)) is not None:
            raise UserError(said[1].strip(), code="refused-by-worker") from error
        if "No module named 'fullrank'" in text:
            raise UserError(
                "Spark's workers have no fullrank: install it where they run, and name that Python by PYSPARK_PYTHON "
                "before the session is made",
                code="spark-without-library",
            ) from error
        told = re.findall(r"^\s*(?:\w+\.)*\w*(?:Error|Exception): .+", text, re.MULTILINE)
        reason = (told[-1:] or text.strip().splitlines()[:1] or [type(error).__name__])[0].strip()[:300]
        raise UserError(f"Spark could not do it: {reason}", code="spark-failed") from error
