"""Histories in parts, for batch inference: the users of a store, or of a table of events, each in one part.

A store is cut into stretches of neighbouring users; a part opens the folders that hold its users
and no others. A table is first sent to files by the hash of its users (`data/events/pieces.py`), in
the memory of one piece, since the events of a user may lie anywhere in it. A table of features is
kept in one file, in which each part looks for its own users. What a part holds depends on the data
and the number of parts alone.
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

from fullrank.core.checks import check_that
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
    """Begin and end of part `number` of `parts` in `size` rows; sizes differ by one at most."""
    return number * size // parts, (number + 1) * size // parts


def count_parts(parts: int | None, users: int, usual: int) -> int:
    """The number of parts that is given, or that of parts of `usual` users. Raises
    `UserError` for more than users."""
    few = parts is None or parts <= users
    check_that(few, "parts", parts, f" is more than the {users:,} users there are", code="setting-out-of-range")
    return parts or -(-users // usual)


@dataclass(frozen=True)
class StoreParts:
    """The users of a store in parts of neighbouring rows."""

    folders: tuple[tuple[str, int, str], ...]
    """The folders of the store in order: path, users, and the hash of what is in it."""
    parts: int
    identity: Mapping[str, Any]
    """Identity of lists of these users: a call with an equal one goes on with them."""
    lacking: str = ""
    """Features that the model reads and nobody gave."""
    names = USUAL

    @classmethod
    def of(
        cls, store: Store, count: int | None, columns: EventColumns, reads: Reads, supplied: Collection[str] = ()
    ) -> StoreParts:
        """The users in `count` parts, or in as many as `PART_USERS` asks for.

        `supplied` are the columns of a table of features.

        Raises `UserError` for more parts than users, for columns of a table, and where
        features are encoded otherwise.
        """
        refuse_table_columns(columns, user=not supplied)
        lacking = reads.lacking((), supplied=supplied)
        if reads.names and store.features is not None:
            require_same_encoding(str(store.path), store.features, reads.encoder)
            lacking = reads.lacking(reads.columns("event", "request"), known_users=True, supplied=supplied)
        users = store.num_users
        require_some(users, f"users in {str(store.path)!r}")
        parts_of_users = count_parts(count, users, PART_USERS)
        manifests = store.manifest["parts"] if parts.is_parts(store.manifest) else [store.manifest]
        folders = tuple(
            (str(folder.absolute()), manifest["counts"]["users"], str(manifest["content"]))
            for folder, manifest in zip(store.folders, manifests, strict=True)
        )
        identity = {"parts": count, "histories": [store.fingerprint, store.manifest["content"]]}
        return cls(folders, parts_of_users, identity, lacking)

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
    """Unit of numbers that are times in a table of features."""

    def read(self, number: int, catalog: Catalog, options: ListOptions, reads: Reads) -> Iterator[RequestBatch]:
        """The users of a part, in order of their ids."""
        users, columns = Spill(Path(self.folder), 1).read(number, self.columns, text=self.text_users)
        users = users.cast(pl.String) if self.text_users else users  # no users have no type
        order = np.argsort(columns["key"], kind="stable") if "key" in columns else np.arange(len(users))
        names, lengths, order = by_user(users, order)
        times = columns["time"][order] if "time" in columns else None
        coded = FeatureColumns()
        if self.fields and "item" in columns:
            coded = FeatureCoder(self.fields, Path(self.folder) / VALUES).columns(columns).take(order)
        known = reads.coded(coded, len(order))
        items = columns["item"][order].astype(np.int64)
        flat = FlatEvents(names, lengths, items, times, features=known, columns=[field.name for field in coded.fields])
        yield batch_of(flat, EventColumns(self.names, self.unit), options, reads=reads, ordered=False)


@dataclass(frozen=True)
class UserTable:
    """A table of features of users and of requests, with a row for each user."""

    source: InputTable
    table: Any
    column: str
    """The column of users."""
    supplied: Sequence[str]
    """Columns that the model reads."""

    @classmethod
    def of(cls, table: Any, column: str, reads: Reads) -> UserTable:
        """Open a table. Raises `UserError` for a model that reads no such features,
        and for a table without types."""
        reads.require_some()
        source, names = feature_source(table, reads, column, "lists in parts take a DataFrame, or the path of a file")
        _require_typed(source)
        return cls(source, table, column, names)

    @property
    def identity(self) -> Mapping[str, Any]:
        """Its share in the identity of lists that are made with it."""
        return {"features=": [_identity(self.table), self.column, *self.supplied]}

    def write(self, path: Path, column: str) -> None:
        """The file, of files in the memory of one piece, with the ids of users in the `column` of that name."""
        source, names = self.source, [self.column, *self.supplied]
        source.require_one_kind(self.column)
        if source.path is None:  # a frame of Spark cannot be read from its middle
            source = InputTable(source.read(names), source.what)
        path.parent.mkdir(exist_ok=True)
        with scratch_folder() as scratch, TableWriter(path) as writer:
            chunks = Chunks(source, names, scratch)
            source.require_rows(chunks.rows)
            for _, frame in chunks:
                ids = values.ids(frame[self.column], source.name)
                writer.add(frame.select(ids.alias(column), *self.supplied))


def _require_typed(source: InputTable) -> None:
    if not source.typed:
        raise UserError(
            f"{source.name} is text without types: tables of many users are read from Parquet, JSON lines or a "
            "DataFrame",
            code="unknown-suffix",
        )


def _identity(table: Any) -> Any:
    """Identity of a table by its file; a DataFrame has none, and gets
    one that no other call has."""
    return identity_of(table) or f"a DataFrame of call {uuid4().hex}"


@dataclass(frozen=True)
class HistoryTable:
    """A table of events that becomes `TableParts`: its columns, and how its times are read."""

    source: InputTable
    table: Any
    """The path or the DataFrame, as the caller has it."""
    columns: Columns
    """Columns of user, item and, where the table has one, time."""
    parts: int | None
    """Number of parts; None: as many as `PART_EVENTS` asks for."""
    fields: tuple[AnyField, ...] = ()
    """Features that it has columns of, and the model reads."""
    lacking: str = ""
    """Features that the model reads and nobody gave."""

    @classmethod
    def of(
        cls, table: Any, parts: int | None, named: EventColumns, reads: Reads, supplied: Collection[str] = ()
    ) -> HistoryTable:
        """A table for a model that `reads` so much of it; `supplied` are the columns of a table of features.

        Raises `UserError` for what is no table of events with types: Parquet, JSON lines or a
        DataFrame.
        """
        source = InputTable(table, "histories")
        user, item, *times = event_columns(source, named)
        _require_typed(source)
        time = times[0] if times else None
        columns = Columns(user=user, item=item, time=time, time_unit=named.unit)
        fields = tuple(
            _field_of(source, field) for field in reads.fields("event", "request") if field.name in source.columns
        )
        lacking = reads.lacking([field.name for field in fields], supplied=supplied)
        return cls(source, table, columns, parts, fields, lacking)

    @property
    def names(self) -> tuple[str, ...]:
        """The columns: user, item and, where there is one, time."""
        return tuple(self.columns.roles.values())

    @property
    def _features(self) -> list[str]:
        return [field.name for field in self.fields]

    @cached_property
    def identity(self) -> Mapping[str, Any]:
        """Identity of lists of this table."""
        return {
            "parts": self.parts,
            "histories": _identity(self.table),
            "columns": list(self.names),
            **({"features": self._features} if self.fields else {}),
            "time_unit": self.columns.time_unit,
        }

    def spill(self, folder: Path, catalog: Catalog, session: Any | None) -> JsonObject:
        """Send every event to the files of its part, here or on Spark; returns the state that
        `TableParts` is made of."""
        if session is not None:
            return self._spill_on_spark(folder, catalog, session)
        for name in self.names[:2]:
            self.source.require_one_kind(name)
        with scratch_folder() as scratch:
            chunks = Chunks(self.source, [*self.names, *self._features], scratch)
            self.source.require_rows(chunks.rows)
            count = self.parts or -(-chunks.rows // PART_EVENTS)
            named = ((self.source.name, frame) for _, frame in chunks.of(self._features))
            coder = self._coder(folder, different_values(self.fields, named) if self.fields else [])
            spill, coding, text = Spill(folder, count), Coding(self.columns, (), count, coder), False
            for _, frame in chunks:
                part, users, columns = coded_piece(frame, self.source.name, coding, catalog.lookup)
                text = users.dtype == pl.String
                spill.add(part, users, columns)
            spill.flush()
        return {"parts": count, "columns": spill.columns, "text_users": text}

    def _coder(self, folder: Path, known: Sequence[pl.Series]) -> FeatureCoder | None:
        return FeatureCoder.write(self.fields, known, folder / VALUES) if self.fields else None

    def _spill_on_spark(self, folder: Path, catalog: Catalog, session: Any) -> JsonObject:
        """`spill` on a Spark session, which reads the table and writes the files."""
        spark.require_readable(self.source)
        folder.mkdir(parents=True, exist_ok=True)
        write_table(catalog.frame.select("item", "item_id", "train_count"), folder / ITEMS)
        names = [*self.names, *self._features]
        frame, name = spark.ordered_frame(session, self.table, names, "histories")
        with as_user_error():
            count = self.parts
            if count is None:
                rows = int(frame.count())
                self.source.require_rows(rows)
                count = -(-rows // PART_EVENTS)
            find_of = partial(_item_finder, folder / ITEMS)
            coder = self._coder(folder, spark.different_values(frame, self.fields, name))
            coding = Coding(self.columns, (), count, coder)
            sent, counts = spark.send_to_parts(frame, name, coding, find_of, folder)
        self.source.require_rows(int(counts["events"].sum()))
        return {"parts": count, **sent}


def _field_of(source: InputTable, field: AnyField) -> AnyField:
    """The field for this table: lists need no separator."""
    lists = isinstance(source.frame.collect_schema()[field.name], nw.List | nw.Array)
    return field.model_copy(update={"separator": None}) if lists and isinstance(field, BagOf) else field


def _item_finder(items: Path) -> Callable[[pl.Series], np.ndarray]:
    """A function from item ids to numbers (-1: unknown), made by a Spark worker."""
    return Catalog.open(items).lookup


@lru_cache(maxsize=1)
def _store(folder: str, content: str) -> Store:
    """A store or a part of one, cached for a process that reads several parts of it.

    Raises `UserError` where its content has changed.
    """
    store = Store.open(folder)
    if store.manifest["content"] != content:
        raise UserError(f"{folder!r} has changed since this began: begin again", code="store-differs")
    return store
