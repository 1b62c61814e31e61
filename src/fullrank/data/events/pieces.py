"""A table of events in pieces, in the memory of one, on its way to the parts of a store.

`EventPieces` checks and codes each piece as `table.read_events` does a whole table. `Spill` takes the events to the
parts of their users in input order: columns that grow in files, one folder for each part. It holds `HELD` bytes in
memory at most, and one part when that is read back.
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
from fullrank.data.events.table import Columns, Events, left_out_notes, missing_rows
from fullrank.data.frames import Chunks, InputTable, name_rows
from fullrank.data.histories import user_keys
from fullrank.data.impressions.schema import Numeric
from fullrank.data.manifest import map_npy
from fullrank.data.values import IdIndex, TextIndex, joined, take

HELD, EACH = 128 << 20, 1 << 18
"""Bytes that wait in memory before they are written: at most, and for each file that is opened for it."""
MERGED = 1 << 20
"""Ids of items that are held in several pieces at most, beside twice those that are put together already."""
SUFFIX = ".column"
TEXT = "user_text"
"""The file of the bytes of user ids that are text; their lengths stand in `user`."""


ByPart = dict[str, tuple[np.ndarray, Int64[np.ndarray, "P1"]]]
"""Some events in order of their parts: by file the values, where those of each part begin, and where the last ends."""
Find = Callable[[pl.Series], np.ndarray]
"""Gives the numbers of items by their ids."""
T = TypeVar("T")


class EventPieces:
    """A table in pieces: user ids, item ids and arrays."""

    def __init__(self, source: InputTable, spec: Prepare, scratch: Path):
        columns = spec.columns_read
        self.source, self.spec = source if source.typed else _typed(source, columns), spec
        self.features = spec.features.of_events
        self.columns = list(dict.fromkeys([*columns.roles.values(), *(field.name for field in self.features)]))
        self.feature_values: list[pl.Series] = []
        """The different values of each feature's column, once it was looked at."""
        self.chunks = Chunks(self.source, self.columns, scratch)
        source.require_rows(self.chunks.rows)
        for name in (columns.user, columns.item):
            self.source.require_one_kind(name)
        self.left_out, self.numbers, self.text_users = 0, False, False
        self.doubts: set[str] = set()
        """What is to be said of the times."""

    def _each(self, work: Callable[[str, pl.DataFrame], T], columns: Sequence[str]) -> Iterator[T]:
        """`work` of (the rows, as errors name them; frame) of each piece, without rows that `missing` drops."""

        def one(start: int, frame: pl.DataFrame) -> tuple[int, T | None]:
            what, rows = name_rows(self.chunks.name, self.chunks.rows, start, frame), len(frame)
            if self.spec.missing == "drop":
                frame = frame.filter(~missing_rows(frame, self.spec.columns))
            return rows - len(frame), work(what, frame) if len(frame) else None

        self.left_out = 0
        for left_out, found in self.chunks.each(one, columns):
            self.left_out += left_out
            if found is not None:
                yield found

    def look(self) -> tuple[pl.Series, tuple[str, ...]]:
        """The sorted ids of items, and the sorted types of events."""
        columns, items, types = self.spec.columns, list[pl.Series](), set[str]()
        coded = [field for field in self.features if not isinstance(field, Numeric)]
        known: dict[str, list[pl.Series]] = {field.name: [] for field in coded}

        def ids(what: str, frame: pl.DataFrame) -> tuple[pl.Series, set[str], dict[str, pl.Series]]:
            item = values.distinct(values.ids(frame[columns.item], what))
            own = {field.name: different([plain_values(field, frame[field.name], what)]) for field in coded}
            return item, set() if columns.type is None else {*values.names(frame[columns.type], what).unique()}, own

        read = [columns.item, *([] if columns.type is None else [columns.type]), *known]
        for item, kinds, own in self._each(ids, self.columns if self.spec.missing == "drop" else read):
            types |= kinds
            items.append(item)
            if _many(items):
                items = [values.distinct(pl.concat(items))]
            for name, one in own.items():
                known[name].append(one)
                if _many(known[name]):
                    known[name] = [different(known[name])]
        self.feature_values = [different(known.get(field.name, [])) for field in self.features]
        self.notes = list(left_out_notes(self.left_out, self.chunks.rows, self.source.name))
        whole = values.distinct(pl.concat(items)).sort() if items else pl.Series([], dtype=pl.String)
        return whole.alias("item_id"), tuple(sorted(types))

    def spill(
        self, item_ids: pl.Series, type_names: tuple[str, ...], spill: Spill, features: FeatureCoder | None = None
    ) -> tuple[tuple[int, int] | None, int]:
        """Every event to the part of its user. Returns the first and the last second, and the number of events."""
        times, spans, events = self.spec.columns.time, [], 0
        find = IdIndex(item_ids).find
        coding = Coding(self.spec.columns_read, type_names, spill.parts, features)

        def coded(what: str, frame: pl.DataFrame) -> tuple[ByPart, bool, tuple[int, int] | None]:
            part, users, own = coded_piece(frame, what, coding, find, self.doubts)
            if times is not None:
                self.numbers = frame[times].dtype.is_numeric()
            span = None if times is None else (int(own["time"].min()), int(own["time"].max()))
            if times is not None and own["key"] is own["time"]:
                del own["key"]
            return spill.by_part(part, users, own), users.dtype == pl.String, span

        for some, text, span in self._each(coded, self.columns):
            spill.hold(some)
            self.text_users, events = text, events + len(some["item"][0])
            spans += [] if span is None else [span]
        spill.flush()
        return (min(one for one, _ in spans), max(one for _, one in spans)) if spans else None, events


@dataclass(frozen=True)
class Coding:
    """How the events of a table are coded."""

    columns: Columns
    types: tuple[str, ...]
    """The sorted names: an event has the place of its type among them."""
    parts: int
    features: FeatureCoder | None = None


def coded_piece(
    frame: pl.DataFrame, what: str, coding: Coding, find: Find, notes: set[str] | None = None
) -> tuple[Int64[np.ndarray, "n"], pl.Series, dict[str, np.ndarray]]:
    """Some rows of a table: the part of each, its user's id, and its other columns as arrays.

    Items are the numbers that `find` gives their ids. Raises `UserError` for what `table.read_events` refuses.
    """
    columns = coding.columns
    users, items = (values.ids(frame[name], what) for name in (columns.user, columns.item))
    own: dict[str, np.ndarray] = {"item": find(items).astype(np.int32)}
    if columns.time is not None:
        own["time"], own["key"] = values.seconds(frame[columns.time], what, columns.time_unit, notes=notes)
    if columns.weight is not None:
        own["weight"] = values.finite_numbers(frame[columns.weight], what, least=0.0).astype(np.float32)
    if columns.rating is not None:
        own["rating"] = values.finite_numbers(frame[columns.rating], what)
    if columns.type is not None:
        named = values.names(frame[columns.type], what)
        own["type"] = TextIndex(pl.Series("type", coding.types, dtype=pl.String)).find(named).astype(np.int32)
    if coding.features is not None:
        own |= coding.features.coded(frame, what)
    return parts.part_of(parts.user_buckets(user_keys(users)), coding.parts), users, own


def _many(series: list[pl.Series]) -> bool:
    """Whether several columns of values are to be put together: the first is what was put together so far."""
    return sum(map(len, series)) > 2 * len(series[0]) + MERGED


def _typed(source: InputTable, columns: Columns) -> InputTable:
    """A text file with the types that all of its rows decide: ids that are whole numbers, times that are numbers."""
    lazy, whole = source.frame.to_native(), pl.Int64
    assert isinstance(lazy, pl.LazyFrame)
    names, ask = (columns.user, columns.item), []
    for place, name in enumerate(names):
        plain = pl.col(name).cast(whole, strict=False).cast(pl.String).eq_missing(pl.col(name))
        ask += [plain.all().alias(f"{place}"), pl.col(name).filter(~plain).first().alias(f"odd {place}")]
    if columns.time is not None:
        known = pl.col(columns.time).is_not_null()
        fits = [pl.col(columns.time).cast(kind, strict=False).is_not_null() for kind in (pl.Float64, whole)]
        ask += [known.sum().alias("times"), fits[0].sum().alias("numbers"), fits[1].sum().alias("whole")]
    found = source.attempt(lambda: lazy.select(ask).collect(engine="streaming")).row(0, named=True)
    casts = [pl.col(name).cast(whole) for place, name in enumerate(names) if found[f"{place}"]]
    first = {name: pl.Series([found[f"odd {place}"]]) for place, name in enumerate(names) if not found[f"{place}"]}
    likely = {
        name: values.nearly_whole(pl.col(name)) for name, odd in first.items() if values.whole_text(odd).dtype == whole
    }
    if likely:  # `12.0` among whole numbers: only then a second look, at all rows of such columns
        fits = [(pl.col(name).is_null() | number.is_not_null()).all().alias(name) for name, number in likely.items()]
        fitting = source.attempt(lambda: lazy.select(fits).collect(engine="streaming")).row(0, named=True)
        casts += [number for name, number in likely.items() if fitting[name]]
    if columns.time is not None and 2 * found["numbers"] >= found["times"]:
        kind = whole if found["whole"] == found["numbers"] else pl.Float64
        casts.append(pl.col(columns.time).cast(kind, strict=False))
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
        """Some events: the part of each, its user's id, and its other columns."""
        self.hold(self.by_part(part, users, columns))

    def by_part(self, part: Int[np.ndarray, "n"], users: pl.Series, columns: Mapping[str, np.ndarray]) -> ByPart:
        """The same events in order of their parts, for `hold`; any thread may do it."""
        order = stable_order(part)
        edges = offsets_of(np.bincount(part, minlength=self.parts))
        users = take(users, order, users.name)
        own = {name: (column[order], edges) for name, column in columns.items()}
        if users.dtype != pl.String:
            return {"user": (users.to_numpy(), edges), **own}
        lengths = users.str.len_bytes().to_numpy().astype(np.uint32)
        letters = np.frombuffer(joined(users), np.uint8), offsets_of(lengths)[edges]
        return {"user": (lengths, edges), **own, TEXT: letters}

    def hold(self, events: ByPart) -> None:
        """Have events wait behind those of each part that came before. Raises `UserError` as `flush`."""
        self.columns = {name: column.dtype.str for name, (column, _) in events.items() if name != TEXT}
        for name, (column, edges) in events.items():
            places = edges.tolist()
            for number in np.flatnonzero(np.diff(edges)).tolist():
                self._waiting.setdefault((number, name), []).append(column[places[number] : places[number + 1]])
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
        """The user ids and the other `columns` (name -> dtype) of a part's events, in input order; `text`: of ids."""
        folder = self.folder / f"{part:05}"

        def column(name: str, dtype: str) -> np.ndarray:
            path = folder / f"{name}{SUFFIX}"
            return np.fromfile(path, np.dtype(dtype)) if path.exists() else np.empty(0, np.dtype(dtype))

        found = {name: column(name, dtype) for name, dtype in columns.items()}
        users = found.pop("user")
        if not text:
            return pl.Series("user_id", users), found
        return _texts(users.astype(np.int64), column(TEXT, "u1")), found


def _texts(lengths: Int64[np.ndarray, "n"], letters: UInt8[np.ndarray, "m"]) -> pl.Series:
    """Text of its bytes behind each other: cut where each ends."""
    import pyarrow as pa

    buffers = [pa.py_buffer(offsets_of(lengths)), pa.py_buffer(letters)]
    return pl.Series("user_id", pa.LargeStringArray.from_buffers(len(lengths), *buffers))


def largest_part(folder: Path) -> int:
    """Bytes of the largest part of those that lie in a folder."""
    return max((sum(file.stat().st_size for file in part.glob(f"*{SUFFIX}")) for part in folder.iterdir()), default=0)


def save_events(folder: Path, events: Events) -> None:
    """Write events of one part: their arrays, and the ids of its users.

    Whoever is killed reads the part anew, so nothing is flushed to disk. Files that are there may still be mapped: they
    are replaced, not written over.
    """
    folder.mkdir(exist_ok=True)
    arrays = {name: getattr(events, name) for name in ("user", "item", "time", "weight", "type")}
    for name, array in (arrays | {name_of(n): one for n, one in enumerate(events.features.codes)}).items():
        if array is not None:
            path = folder / f"{name}.npy"
            path.unlink(missing_ok=True)
            with open(path, "wb") as file:
                put_array(file, array)
    write_table(pl.DataFrame({"user_id": events.user_ids}), folder / "users.parquet")


def load_events(folder: Path, item_ids: pl.Series, type_names: tuple[str, ...], features: FeatureCoder) -> Events:
    """What `save_events` wrote; arrays are mapped."""
    arrays: dict[str, Any] = {path.stem: map_npy(path) for path in folder.glob("*.npy")}
    users, columns = read_parquet(folder / "users.parquet", "the users")["user_id"], features.columns(arrays)
    return Events(**arrays, user_ids=users, item_ids=item_ids, type_names=type_names, features=columns)
