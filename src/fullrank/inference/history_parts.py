"""Histories in parts, for batch inference: the users of a store, or of a table of events, each in one part.

A store is cut into stretches of neighbouring users; a part opens the folders that hold its users and no others. A table
is first sent to files by the hash of its users (`data/events/pieces.py`), in the memory of one piece, since the events
of a user may lie anywhere in it. A table of features is kept in one file, in which each part looks for its own users.
What a part holds depends on the data and the number of parts alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import narwhals as nw
import numpy as np
import polars as pl

from fullrank.core.errors import UserError
from fullrank.core.files import JsonObject, scratch_folder
from fullrank.core.tables import TableWriter, write_table
from fullrank.data import values
from fullrank.data.column_names import USUAL, EventColumns
from fullrank.data.events import parts, spark
from fullrank.data.events.catalog import Catalog
from fullrank.data.events.feature_columns import FeatureCoder, FeatureColumns, different_values
from fullrank.data.events.feature_files import require_same_encoding
from fullrank.data.events.pieces import Coding, Spill, coded_piece
from fullrank.data.events.store import Store
from fullrank.data.events.stream import identity_of
from fullrank.data.events.table import Columns
from fullrank.data.frames import Chunks, InputTable
from fullrank.data.impressions.schema import AnyField, BagOf
from fullrank.data.values import Unit
from fullrank.inference.features import Reads, feature_source
from fullrank.inference.list_options import ListOptions
from fullrank.inference.requests import FlatEvents, RequestBatch, batch_of, by_user, event_columns, require_some
from fullrank.inference.stored_users import read_rows, refuse_table_columns
from fullrank.parallel.spark import as_user_error

PART_USERS = 1 << 15
"""Users of a part of a store where the caller does not say how many parts there are."""
PART_EVENTS = 1 << 20
"""Events of a part of a table, on average, where the caller does not say."""
ITEMS = "items.parquet"
VALUES = "values"
"""The folder of the different values of features."""


def stretch(number: int, parts: int, size: int) -> tuple[int, int]:
    """Where part `number` of `parts` begins and ends in `size` rows; sizes differ by one at most."""
    return number * size // parts, (number + 1) * size // parts


def count_parts(parts: int | None, users: int, usual: int) -> int:
    """The number of parts that is given, or that of parts of `usual` users. Raises `UserError` for more than users."""
    if parts is not None and parts > users:
        raise UserError(f"parts={parts} is more than the {users:,} users there are", code="setting-out-of-range")
    return parts or -(-users // usual)


@dataclass(frozen=True)
class StoreParts:
    """The users of a store in parts of neighbouring rows."""

    folders: tuple[tuple[str, int, str], ...]
    """The folders of the store in order: path, users, and the hash of what is in it."""
    parts: int
    identity: Mapping[str, Any]
    """What lists of these users are known by again."""
    lacking: str = ""
    """Features that the model reads and nobody gave."""
    names = USUAL

    @classmethod
    def of(
        cls, store: Store, count: int | None, columns: EventColumns, reads: Reads, said: Collection[str] = ()
    ) -> StoreParts:
        """So many parts, or as many as `PART_USERS` asks for, for a model that `reads` so much of them.

        `said` are the columns of a table of features.

        Raises `UserError` for more parts than users, for columns of a table, and where features are encoded otherwise.
        """
        refuse_table_columns(columns, user=not said)
        lacking = reads.lacking((), said=said)
        if reads.names and store.features is not None:
            require_same_encoding(str(store.path), store.features, reads.encoder)
            lacking = reads.lacking(reads.columns("event", "request"), known_users=True, said=said)
        users = store.num_users
        require_some(users, f"users in {str(store.path)!r}")
        parts_of_users = count_parts(count, users, PART_USERS)
        told = store.manifest["parts"] if parts.is_parts(store.manifest) else [store.manifest]
        sizes, contents = [one["counts"]["users"] for one in told], [str(one["content"]) for one in told]
        folders = zip(map(str, map(Path.absolute, store.folders)), sizes, contents, strict=True)
        known = {"parts": count, "histories": [store.fingerprint, store.manifest["content"]]}
        return cls(tuple(folders), parts_of_users, known, lacking)

    def read(self, number: int, catalog: Catalog, options: ListOptions, reads: Reads) -> Iterator[RequestBatch]:
        """The users of a part, for a model that `reads` so much of them."""
        low, high = stretch(number, self.parts, sum(users for _, users, _ in self.folders))
        start = 0
        for folder, users, content in self.folders:
            rows = np.arange(max(low - start, 0), min(high - start, users))
            start += users
            if len(rows):
                store = _store(folder, content)
                ids = store.user_ids.gather(rows).alias("user")
                yield read_rows(rows, ids, store, catalog, options, reads=reads)


@dataclass(frozen=True)
class TableParts:
    """The users of a table by the hash of their ids; within a part in order of their ids."""

    folder: str
    parts: int
    columns: Mapping[str, str]
    """The dtypes of what was sent to files (`Spill`)."""
    text_users: bool
    names: tuple[str, ...]
    """Columns of the table, for sentences."""
    fields: tuple[AnyField, ...] = ()
    """Features of its events."""
    unit: Unit = "s"
    """What numbers count that are times in a table of features."""

    def read(self, number: int, catalog: Catalog, options: ListOptions, reads: Reads) -> Iterator[RequestBatch]:
        """The same as of `StoreParts`."""
        users, own = Spill(Path(self.folder), 1).read(number, self.columns, text=self.text_users)
        users = users.cast(pl.String) if self.text_users else users  # no users have no type
        order = np.argsort(own["key"], kind="stable") if "key" in own else np.arange(len(users))
        names, lengths, order = by_user(users, order)
        times = own["time"][order] if "time" in own else None
        coded = FeatureColumns()
        if self.fields and "item" in own:
            coded = FeatureCoder(self.fields, Path(self.folder) / VALUES).columns(own).take(order)
        known = reads.coded(coded, len(order))
        items = own["item"][order].astype(np.int64)
        flat = FlatEvents(names, lengths, items, times, features=known, columns=[one.name for one in coded.fields])
        yield batch_of(flat, EventColumns(self.names, self.unit), options, reads=reads, ordered=False)


@dataclass(frozen=True)
class UserTable:
    """A table of features of users and of requests, with a row for each user."""

    source: InputTable
    given: Any
    column: str
    """Of users."""
    said: Sequence[str]
    """Columns that the model reads."""

    @classmethod
    def of(cls, table: Any, column: str, reads: Reads) -> UserTable:
        """Raises `UserError` for a model that reads nothing of one, and for what is no table with types."""
        reads.require_some()
        source, said = feature_source(table, reads, column, "lists in parts take a DataFrame, or the path of a file")
        _require_typed(source)
        return cls(source, table, column, said)

    @property
    def identity(self) -> Mapping[str, Any]:
        """What lists made with it are known by again."""
        return {"features=": [_known(self.given), self.column, *self.said]}

    def write(self, path: Path, column: str) -> None:
        """The file, of files in the memory of one piece, with the ids of users in the `column` of that name."""
        source, names = self.source, [self.column, *self.said]
        source.require_one_kind(self.column)
        if source.path is None:  # a frame of Spark cannot be read from its middle
            source = InputTable(source.read(names), source.what)
        path.parent.mkdir(exist_ok=True)
        with scratch_folder() as scratch, TableWriter(path) as writer:
            chunks = Chunks(source, names, scratch)
            source.require_rows(chunks.rows)
            for _, frame in chunks:
                ids = values.ids(frame[self.column], source.name)
                writer.add(frame.select(ids.alias(column), *self.said))


def _require_typed(source: InputTable) -> None:
    if not source.typed:
        raise UserError(
            f"{source.name} is text without types: tables of many users are read from Parquet, JSON lines or a "
            "DataFrame",
            code="unknown-suffix",
        )


def _known(table: Any) -> Any:
    """What a table is known by again; a DataFrame is known by nothing."""
    return identity_of(table) or f"a DataFrame of call {uuid4().hex}"


@dataclass(frozen=True)
class HistoryTable:
    """A table of events that becomes `TableParts`: its columns, and how its times are read."""

    source: InputTable
    given: Any
    """The path or the DataFrame, as the caller has it."""
    columns: Columns
    """Of user, item and, where the table has one, time."""
    parts: int | None
    """How many it becomes; None: as many as `PART_EVENTS` asks for."""
    fields: tuple[AnyField, ...] = ()
    """Features that it has columns of, and the model reads."""
    lacking: str = ""
    """Features that the model reads and nobody gave."""

    @classmethod
    def of(
        cls, table: Any, parts: int | None, named: EventColumns, reads: Reads, said: Collection[str] = ()
    ) -> HistoryTable:
        """One for a model that `reads` so much of it; `said` are the columns of a table of features.

        Raises `UserError` for what is no table of events with types: Parquet, JSON lines or a DataFrame.
        """
        source = InputTable(table, "histories")
        user, item, *times = event_columns(source, named)
        _require_typed(source)
        time = times[0] if times else None
        columns = Columns(user=user, item=item, time=time, time_unit=named.unit)
        fields = tuple(_field_of(source, one) for one in reads.fields("event", "request") if one.name in source.columns)
        lacking = reads.lacking([one.name for one in fields], said=said)
        return cls(source, table, columns, parts, fields, lacking)

    @property
    def names(self) -> tuple[str, ...]:
        """The columns: user, item and, where there is one, time."""
        return tuple(self.columns.roles.values())

    @cached_property
    def identity(self) -> Mapping[str, Any]:
        """What lists of this table are known by again."""
        return {
            "parts": self.parts,
            "histories": _known(self.given),
            "columns": list(self.names),
            **({"features": [one.name for one in self.fields]} if self.fields else {}),
            "time_unit": self.columns.time_unit,
        }

    def spill(self, folder: Path, catalog: Catalog, session: Any | None) -> JsonObject:
        """Send every event to the files of its part, here or on a Spark session; what `TableParts` has to know."""
        if session is not None:
            return self._spill_on_spark(folder, catalog, session)
        for name in self.names[:2]:
            self.source.require_one_kind(name)
        with scratch_folder() as scratch:
            chunks = Chunks(self.source, [*self.names, *(one.name for one in self.fields)], scratch)
            self.source.require_rows(chunks.rows)
            count = self.parts or -(-chunks.rows // PART_EVENTS)
            named = ((self.source.name, frame) for _, frame in chunks.of([one.name for one in self.fields]))
            coder = self._coder(folder, different_values(self.fields, named) if self.fields else [])
            spill, coding, text = Spill(folder, count), Coding(self.columns, (), count, coder), False
            for _, frame in chunks:
                part, users, own = coded_piece(frame, self.source.name, coding, catalog.lookup)
                text = users.dtype == pl.String
                spill.add(part, users, own)
            spill.flush()
        return {"parts": count, "columns": spill.columns, "text_users": text}

    def _coder(self, folder: Path, known: Sequence[pl.Series]) -> FeatureCoder | None:
        return FeatureCoder.write(self.fields, known, folder / VALUES) if self.fields else None

    def _spill_on_spark(self, folder: Path, catalog: Catalog, session: Any) -> JsonObject:
        spark.require_readable(self.source)
        folder.mkdir(parents=True, exist_ok=True)
        write_table(catalog.frame.select("item", "item_id", "train_count"), folder / ITEMS)
        names = [*self.names, *(one.name for one in self.fields)]
        frame, name = spark.ordered_frame(session, self.given, names, "histories")
        with as_user_error():
            count = self.parts
            if count is None:
                rows = int(frame.count())
                self.source.require_rows(rows)
                count = -(-rows // PART_EVENTS)
            find_of = partial(_item_finder, folder / ITEMS)
            coder = self._coder(folder, spark.different_values(frame, self.fields, name))
            coding = Coding(self.columns, (), count, coder)
            sent, found = spark.send_to_parts(frame, name, coding, find_of, folder)
        self.source.require_rows(int(found["events"].sum()))
        return {"parts": count, **sent}


def _field_of(source: InputTable, field: AnyField) -> AnyField:
    """A field as a table has it: lists need no separator."""
    lists = isinstance(source.frame.collect_schema()[field.name], nw.List | nw.Array)
    return field.model_copy(update={"separator": None}) if lists and isinstance(field, BagOf) else field


def _item_finder(items: Path) -> Callable[[pl.Series], np.ndarray]:
    """For a Spark worker: the numbers of items; -1 where the model does not know one."""
    return Catalog.open(items).lookup


@lru_cache(maxsize=1)
def _store(folder: str, content: str) -> Store:
    """A store, or a part of one, opened once by a process that has several parts of it.

    Raises `UserError` where it is another one by now.
    """
    found = Store.open(folder)
    if found.manifest["content"] != content:
        raise UserError(f"{folder!r} has changed since this began: begin again", code="store-differs")
    return found
