"""Reading a table of events in pieces, in the memory of one piece, and spilling its events to the parts of a store.

`EventPieces` checks and codes each piece as `table.read_events` does a whole table. `Spill` takes
the events to the parts of their users in input order: columns that grow in files, one folder for
each part. It holds `HELD` bytes in memory at most, and one part when that is read back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import polars as pl
from jaxtyping import Int, Int64, UInt8

from fullrank.core.files import not_written, put_array
from fullrank.core.jagged import offsets_of, stable_order
from fullrank.core.parquet import read_parquet
from fullrank.core.tables import write_table
from fullrank.data import values
from fullrank.data.events import parts
from fullrank.data.events.feature_columns import FeatureCoder, different, name_of, plain_values
from fullrank.data.events.filters import Prepare
from fullrank.data.events.table import Columns, Events, left_out_notes, missing_rows, weights_and_ratings
from fullrank.data.frames import Chunks, InputTable, name_rows
from fullrank.data.histories import user_keys
from fullrank.data.impressions.schema import Numeric
from fullrank.data.manifest import map_npy
from fullrank.data.values import IdIndex, TextIndex, joined, take

HELD, EACH = 128 << 20, 1 << 18
"""Bytes that wait in memory before they are written: at most, and for each file that is opened for them."""
MERGED = 1 << 20
"""Most ids of items that wait to be merged, beside twice those that are merged already."""
SUFFIX = ".column"
TEXT = "user_text"
"""The file of the bytes of user ids that are text; their lengths stand in `user`."""
ByPart = dict[str, tuple[np.ndarray, Int64[np.ndarray, "P1"]]]
"""Events in order of their parts. File -> values, and where those of each part begin and the last end."""
Find = Callable[[pl.Series], np.ndarray]
"""A function from ids of items to their numbers."""
T = TypeVar("T")


class EventPieces:
    """A table of events, read in pieces of user ids, item ids and arrays."""

    def __init__(self, source: InputTable, spec: Prepare, scratch: Path):
        columns = spec.columns_read
        self.source, self.spec = source if source.typed else _typed(source, columns), spec
        self.features = spec.features.of_events
        self.columns = list(dict.fromkeys(columns.names(self.features)))
        self.feature_values: list[pl.Series] = []
        """The different values of each feature's column, once `look` has seen them."""
        self.chunks = Chunks(self.source, self.columns, scratch)
        source.require_rows(self.chunks.rows)
        for name in (columns.user, columns.item):
            self.source.require_one_kind(name)
        self.left_out, self.numbers, self.text_users = 0, False, False
        self.doubts: set[str] = set()
        """Notes about the times."""

    def _each(self, work: Callable[[str, pl.DataFrame], T], columns: Sequence[str]) -> Iterator[T]:
        """Call `work` with (the rows, as errors name them; frame) of each piece,
        without rows that `missing` drops."""

        def piece(start: int, frame: pl.DataFrame) -> tuple[int, T | None]:
            what, rows = name_rows(self.chunks.name, self.chunks.rows, start, frame), len(frame)
            if self.spec.missing == "drop":
                frame = frame.filter(~missing_rows(frame, self.spec.columns))
            return rows - len(frame), work(what, frame) if len(frame) else None

        self.left_out = 0
        for left_out, worked in self.chunks.each(piece, columns):
            self.left_out += left_out
            if worked is not None:
                yield worked

    def look(self) -> tuple[pl.Series, tuple[str, ...]]:
        """First pass: the sorted ids of items, and the sorted types of events."""
        columns, items, types = self.spec.columns, list[pl.Series](), set[str]()
        coded = [field for field in self.features if not isinstance(field, Numeric)]
        known: dict[str, list[pl.Series]] = {field.name: [] for field in coded}

        def distinct(what: str, frame: pl.DataFrame) -> tuple[pl.Series, set[str], dict[str, pl.Series]]:
            ids = values.distinct(values.ids(frame[columns.item], what))
            types = set[str]() if columns.type is None else set(values.names(frame[columns.type], what).unique())
            features = {field.name: different([plain_values(field, frame[field.name], what)]) for field in coded}
            return ids, types, features

        read = [columns.item, *([] if columns.type is None else [columns.type]), *known]
        for ids, piece_types, features in self._each(distinct, self.columns if self.spec.missing == "drop" else read):
            types |= piece_types
            _add(items, ids, lambda parts: values.distinct(pl.concat(parts)))
            for name, feature in features.items():
                _add(known[name], feature, different)
        self.feature_values = [different(known.get(field.name, [])) for field in self.features]
        self.notes = list(left_out_notes(self.left_out, self.chunks.rows, self.source.name))
        whole = values.distinct(pl.concat(items)).sort() if items else pl.Series([], dtype=pl.String)
        return whole.alias("item_id"), tuple(sorted(types))

    def spill(
        self, item_ids: pl.Series, type_names: tuple[str, ...], spill: Spill, features: FeatureCoder | None = None
    ) -> tuple[tuple[int, int] | None, int]:
        """Second pass: each event to the part of its user. Returns the first and last second, and
        the number of events."""
        times, spans, events = self.spec.columns.time, [], 0
        find = IdIndex(item_ids).find
        coding = Coding(self.spec.columns_read, type_names, spill.parts, features)

        def coded(what: str, frame: pl.DataFrame) -> tuple[ByPart, bool, tuple[int, int] | None]:
            part, users, arrays = coded_piece(frame, what, coding, find, self.doubts)
            span = None
            if times is not None:
                self.numbers = frame[times].dtype.is_numeric()
                span = int(arrays["time"].min()), int(arrays["time"].max())
                if arrays["key"] is arrays["time"]:
                    del arrays["key"]
            return spill.by_part(part, users, arrays), users.dtype == pl.String, span

        for by_part, text, span in self._each(coded, self.columns):
            spill.hold(by_part)
            self.text_users, events = text, events + len(by_part["item"][0])
            spans += [] if span is None else [span]
        spill.flush()
        return (min(low for low, _ in spans), max(high for _, high in spans)) if spans else None, events


@dataclass(frozen=True)
class Coding:
    """Settings for coding the events of a table."""

    columns: Columns
    types: tuple[str, ...]
    """The sorted names of types: an event holds the index of its own."""
    parts: int
    features: FeatureCoder | None = None


def coded_piece(
    frame: pl.DataFrame, what: str, coding: Coding, find: Find, notes: set[str] | None = None
) -> tuple[Int64[np.ndarray, "n"], pl.Series, dict[str, np.ndarray]]:
    """Code rows of a table: the part of each row, its user's id, and its other columns as arrays.

    Items are the numbers that `find` has for their ids. Raises `UserError` for what
    `table.read_events` refuses.
    """
    columns = coding.columns
    users, items = (values.ids(frame[name], what) for name in (columns.user, columns.item))
    arrays: dict[str, np.ndarray] = {"item": find(items).astype(np.int32)}
    if columns.time is not None:
        arrays["time"], arrays["key"] = values.seconds(frame[columns.time], what, columns.time_unit, notes=notes)
    arrays |= weights_and_ratings(columns, frame.get_column, what)
    if columns.type is not None:
        named = values.names(frame[columns.type], what)
        arrays["type"] = TextIndex(pl.Series("type", coding.types, dtype=pl.String)).find(named).astype(np.int32)
    if coding.features is not None:
        arrays |= coding.features.coded(frame, what)
    return parts.part_of(parts.user_buckets(user_keys(users)), coding.parts), users, arrays


def _add(parts: list[pl.Series], part: pl.Series, merge: Callable[[list[pl.Series]], pl.Series]) -> None:
    """Add a part to a column of distinct values, and merge the parts where
    many wait beside the first."""
    parts.append(part)
    if sum(map(len, parts)) > 2 * len(parts[0]) + MERGED:
        parts[:] = [merge(parts)]


def _typed(source: InputTable, columns: Columns) -> InputTable:
    """A text file with types inferred from all of its rows: ids that are whole
    numbers, times that are numbers."""
    lazy = source.frame.to_native()
    assert isinstance(lazy, pl.LazyFrame)

    def aggregates(expressions: list[pl.Expr]) -> dict[str, Any]:
        """One row of aggregates over the whole table."""
        table: pl.DataFrame = source.attempt(lambda: lazy.select(expressions).collect(engine="streaming"))
        return table.row(0, named=True)

    # of each column of ids whether all are plain whole numbers (`12`), and the first that is not
    facts, names = [], (columns.user, columns.item)
    for at, name in enumerate(names):
        plain = pl.col(name).cast(pl.Int64, strict=False).cast(pl.String).eq_missing(pl.col(name))
        facts += [plain.all().alias(f"{at}"), pl.col(name).filter(~plain).first().alias(f"odd {at}")]
    if columns.time is not None:
        time = pl.col(columns.time)
        facts += [
            time.is_not_null().sum().alias("times"),
            time.cast(pl.Float64, strict=False).is_not_null().sum().alias("numbers"),
            time.cast(pl.Int64, strict=False).is_not_null().sum().alias("whole"),
        ]
    known = aggregates(facts)
    casts, likely = [], {}
    for at, name in enumerate(names):
        if known[f"{at}"]:
            casts.append(pl.col(name).cast(pl.Int64))
        elif values.whole_text(pl.Series([known[f"odd {at}"]])).dtype == pl.Int64:
            likely[name] = values.nearly_whole(pl.col(name))
    if likely:  # `12.0` among whole numbers: only then a second look, at all rows of such columns
        fits = aggregates(
            [(pl.col(name).is_null() | number.is_not_null()).all().alias(name) for name, number in likely.items()]
        )
        casts += [number for name, number in likely.items() if fits[name]]
    if columns.time is not None and 2 * known["numbers"] >= known["times"]:
        dtype = pl.Int64 if known["whole"] == known["numbers"] else pl.Float64
        casts.append(pl.col(columns.time).cast(dtype, strict=False))
    typed = InputTable(lazy.with_columns(casts), source.what)
    typed.name = source.name
    return typed


class Spill:
    """Columns of P parts, appended to and read back whole."""

    def __init__(self, folder: Path, parts: int):
        self.folder, self.parts = folder, parts
        self._waiting: dict[tuple[int, str], list[np.ndarray]] = {}
        self._held = 0
        self.columns: dict[str, str] = {}
        """The dtype of each column, once there are events."""

    def add(self, part: Int[np.ndarray, "n"], users: pl.Series, columns: Mapping[str, np.ndarray]) -> None:
        """Add events: the part of each, its user's id, and its other columns."""
        self.hold(self.by_part(part, users, columns))

    def by_part(self, part: Int[np.ndarray, "n"], users: pl.Series, columns: Mapping[str, np.ndarray]) -> ByPart:
        """Sort events by their parts, for `hold`; any thread may do it."""
        order = stable_order(part)
        edges = offsets_of(np.bincount(part, minlength=self.parts))
        users = take(users, order, users.name)
        arrays = {name: (column[order], edges) for name, column in columns.items()}
        if users.dtype != pl.String:
            return {"user": (users.to_numpy(), edges), **arrays}
        lengths = users.str.len_bytes().to_numpy().astype(np.uint32)
        letters = np.frombuffer(joined(users), np.uint8), offsets_of(lengths)[edges]
        return {"user": (lengths, edges), **arrays, TEXT: letters}

    def hold(self, events: ByPart) -> None:
        """Queue events behind the earlier ones of each part; `flush` where too many bytes wait."""
        self.columns = {name: column.dtype.str for name, (column, _) in events.items() if name != TEXT}
        for name, (column, edges) in events.items():
            for number in np.flatnonzero(np.diff(edges)).tolist():
                rows = column[edges[number] : edges[number + 1]]
                self._waiting.setdefault((number, name), []).append(rows)
            self._held += column.nbytes
        if self._held > min(HELD, EACH * len(self._waiting)):
            self.flush()

    def flush(self) -> None:
        """Write what waits. Raises `UserError` where the disk refuses."""
        with not_written(self.folder, folder=True):
            for (part, name), waiting in self._waiting.items():
                folder = self.folder / f"{part:05}"
                folder.mkdir(parents=True, exist_ok=True)
                with open(folder / f"{name}{SUFFIX}", "ab") as file:
                    file.write(np.concatenate(waiting).data)
        self._waiting, self._held = {}, 0

    def read(self, part: int, columns: Mapping[str, str], *, text: bool) -> tuple[pl.Series, dict[str, np.ndarray]]:
        """The user ids and the other `columns` (name -> dtype) of a part's events, in input order.
        `text`: ids are text."""
        folder = self.folder / f"{part:05}"

        def column(name: str, dtype: str) -> np.ndarray:
            path = folder / f"{name}{SUFFIX}"
            return np.fromfile(path, np.dtype(dtype)) if path.exists() else np.empty(0, np.dtype(dtype))

        arrays = {name: column(name, dtype) for name, dtype in columns.items()}
        users = arrays.pop("user")
        if not text:
            return pl.Series("user_id", users), arrays
        return _texts(users.astype(np.int64), column(TEXT, "u1")), arrays


def _texts(lengths: Int64[np.ndarray, "n"], letters: UInt8[np.ndarray, "m"]) -> pl.Series:
    """A column of text from the bytes of all texts behind each other, and their lengths."""
    import pyarrow as pa

    buffers = [pa.py_buffer(offsets_of(lengths)), pa.py_buffer(letters)]
    return pl.Series("user_id", pa.LargeStringArray.from_buffers(len(lengths), *buffers))


def largest_part(folder: Path) -> int:
    """Bytes of the largest part in a spill's folder."""
    return max((sum(file.stat().st_size for file in part.glob(f"*{SUFFIX}")) for part in folder.iterdir()), default=0)


def save_events(folder: Path, events: Events) -> None:
    """Write the events of a part: their arrays, and the ids of its users.

    A killed task reads the part anew, so nothing is flushed to disk. Files that are there may still
    be mapped: they are replaced, not written over.
    """
    folder.mkdir(exist_ok=True)
    arrays = {name: getattr(events, name) for name in ("user", "item", "time", "weight", "type")}
    arrays |= {name_of(number): codes for number, codes in enumerate(events.features.codes)}
    for name, array in arrays.items():
        if array is not None:
            path = folder / f"{name}.npy"
            path.unlink(missing_ok=True)
            with open(path, "wb") as file:
                put_array(file, array)
    write_table(pl.DataFrame({"user_id": events.user_ids}), folder / "users.parquet")


def load_events(folder: Path, item_ids: pl.Series, type_names: tuple[str, ...], features: FeatureCoder) -> Events:
    """Read the events that `save_events` wrote; arrays are memory-mapped."""
    arrays: dict[str, Any] = {path.stem: map_npy(path) for path in folder.glob("*.npy")}
    users, columns = read_parquet(folder / "users.parquet", "the users")["user_id"], features.columns(arrays)
    return Events(**arrays, user_ids=users, item_ids=item_ids, type_names=type_names, features=columns)
