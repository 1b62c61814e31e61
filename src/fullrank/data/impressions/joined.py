"""Columns that impressions take from a table of users, and features that a store of events declares.

Values are fitted on the training rows of the impressions all the same: a ranker learns of what was
shown, which has other counts, other times and other people than the events of a recommender.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import narwhals as nw
import numpy as np
import polars as pl
from jaxtyping import Int

from fullrank.core.errors import UserError, no_effect
from fullrank.core.log import logger
from fullrank.core.tables import write_table
from fullrank.data.events.features import ROLES
from fullrank.data.events.store import Store, opened_store
from fullrank.data.frames import InputTable
from fullrank.data.impressions.part_work import PartRows
from fullrank.data.impressions.schema import AnyField, Categorical, Schema, SequenceOf
from fullrank.data.impressions.vocabulary import FIRST, Vocabulary, canonical
from fullrank.data.values import none_known, refuse

log = logger(__name__)


class KeyedTable:
    """A table with an id column, the first of `keys` in it; columns are read when needed."""

    def __init__(self, table: Any, what: str, keys: Sequence[str]):
        self._source = InputTable(table, what)
        self.name = self._source.name
        present = [key for key in keys if key in self._source.columns]
        if not present:
            shown = ", ".join(self._source.columns) or "none"
            raise UserError(
                f"{self.name} has no id column {' or '.join(map(repr, keys))} (columns: {shown}); rename the one that "
                "holds the ids",
                code="missing-id-column",
            )
        self.key = present[0]
        self.columns = tuple(column for column in self._source.columns if column not in keys)
        self._read: dict[str, pl.Series] = {}

    def rows(self, ids: pl.Series) -> Int[np.ndarray, "N"]:
        """The row of each id, -1 where there is none."""
        return np.maximum(self._rows.ids(canonical(ids, "ids")) - FIRST, -1)

    def gather(self, names: Sequence[str], ids: pl.Series) -> list[pl.Series]:
        """Some columns at these ids, null where the table has none."""
        unread = [name for name in names if name not in self._read]
        self._read |= {series.name: series for series in (self._source.read(unread) if unread else ())}
        at = pl.Series(self.rows(ids)).cast(pl.Int64).replace(-1, None)
        return [self._read[name].gather(at) for name in names]

    def require_some(self, ids: pl.Series, what: str) -> None:
        """Raise `UserError` where none of these ids is there: ids of something else. Nulls pass."""
        named = ids.drop_nulls()
        if len(named) and not bool((self.rows(named) >= 0).any()):
            raise none_known(
                named, what, f"column {self.key!r} of {self.name}", self._source.read([self.key])[self.key]
            )

    def write(self, names: Sequence[str], key: str, file: Path) -> None:
        """Some columns as a file, and the ids, as the column `key`."""
        frame = self._source.infer(self._source.read([self.key, *names]))
        write_table(frame.rename({self.key: key}), file)

    @cached_property
    def _rows(self) -> Vocabulary:
        column = self._source.read([self.key])[self.key]
        ids = canonical(column, self.name)
        refuse(ids.is_null(), column, self.name, "missing ids", code="missing-ids")
        refuse(ids.is_duplicated(), column, self.name, "repeated ids, where each needs one row,", code="repeated-ids")
        return Vocabulary(ids.cast(pl.String))


@dataclass(frozen=True)
class JoinedRows(PartRows):
    """Rows of impressions with columns of their users beside them, null for unknown users."""

    impressions: PartRows
    file: Path
    """The table of users."""
    key: str
    """The column of their ids, in both."""
    names: tuple[str, ...]

    def of(self, number: int, columns: Sequence[str]) -> Iterator[tuple[int, pl.DataFrame]]:
        read = dict.fromkeys([self.key, *(name for name in columns if name not in self.names)])
        for first, frame in self.impressions.of(number, list(read)):
            wanted = [name for name in self.names if name in columns]
            yield first, frame.with_columns(self._users.gather(wanted, frame[self.key]))

    def require_some(self, missing: Mapping[str, int]) -> None:
        """Raise `UserError` where every row lacks every column: ids of other users."""
        if all(missing.get(name, 0) == self.rows for name in self.names):
            raise UserError(
                f"no user of {self.name} has a value in the table of users: does {self.key!r} hold the same ids?",
                code="no-known-ids",
            )

    @cached_property
    def _users(self) -> KeyedTable:
        return KeyedTable(self.file, "users", [self.key])


@dataclass(frozen=True)
class UserColumns:
    """The columns of a table of users that go beside impressions; none where there is no table."""

    table: KeyedTable | None = None
    group: str = ""
    """The column of users' ids in the impressions."""
    names: tuple[str, ...] = ()
    origin: Any = None
    """The caller's argument, or the folder of the store."""

    @classmethod
    def of(cls, table: KeyedTable, schema: Schema, source: InputTable, origin: Any, *, needed: bool) -> UserColumns:
        """The columns that the schema names and the impressions lack. Raises
        `UserError` for none where `needed`."""
        names = tuple(name for name in schema.columns if name in table.columns and name not in source.columns)
        if needed and not names:
            raise no_effect("users", "since the schema names no column that they have and the impressions lack")
        return cls(table, _group(schema), names, origin)

    def joined(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Rows of impressions with these columns, null of users whom the table does not have."""
        return rows if self.table is None else rows.with_columns(self.table.gather(self.names, rows[self.group]))

    def beside(self, rows: PartRows, folder: Path) -> PartRows:
        """`rows` with these columns, which are written into `folder`."""
        if self.table is None or not self.names:
            return rows
        file = folder / "users.parquet"
        self.table.write(self.names, self.group, file)
        return JoinedRows(rows.name, rows.rows, rows.count, rows, file, self.group, self.names)


def taken_over(
    schema: Schema, source: InputTable, users: Any, features_of: Store | str | Path | None, *, inferred: bool
) -> tuple[Schema, UserColumns]:
    """A schema with the features of a store of events, and the columns of users that it reads.

    `users` is a table; without it, it is the store's. Fields that the schema names stay; those that
    were `inferred` are as the store declares them. Raises `UserError` for a store without features,
    and for users without a column of ids.
    """
    if users is None and features_of is None:
        return schema, UserColumns()
    store = None if features_of is None else opened_store(features_of)
    people, origin = (store.users.drop("user"), store.path) if users is None and store is not None else (users, users)
    table = users_table(people, schema)
    if store is not None:
        schema = _with_features(schema, store, source, table.columns, inferred=inferred)
    return schema, UserColumns.of(table, schema, source, origin, needed=users is not None)


def users_table(users: Any, schema: Schema) -> KeyedTable:
    """A table of users, found by the ids in the schema's group."""
    return KeyedTable(users, "users", [*dict.fromkeys([_group(schema), "user_id", "user"])])


def _group(schema: Schema) -> str:
    """The column of the users' ids. Raises `UserError` where the schema names none."""
    if schema.group is None:
        raise UserError(
            "impressions find their users by the schema's group, which names no column: name it with user_col=",
            code="missing-group",
        )
    return schema.group


def _with_features(
    schema: Schema, store: Store, source: InputTable, of_users: Collection[str], *, inferred: bool
) -> Schema:
    """The schema with what the store declares of users and requests, where there is such a column.

    What is known with an event alone would tell the label of an impression: a column of its values
    in past events is a sequence, any other is left out.
    """
    if store.features is None:
        raise UserError(
            f"{str(store.path)!r} declares no features: prepare it with --user-features or others, or leave it out",
            code="no-features",
        )
    types, named = source.frame.collect_schema(), {schema.label}
    if not inferred:
        named |= {field.name for field in schema.fields}
    declared: dict[str, AnyField | None] = {}
    for role in ROLES:
        for field in store.features.schema.of(role).declared:
            if field.name in named or field.name not in {*source.columns, *(of_users if role == "user" else ())}:
                continue
            declared[field.name] = field if role != "event" else None
            if role == "event" and isinstance(field, Categorical) and isinstance(types[field.name], nw.List | nw.Array):
                history = field.dump() | {"kind": "sequence", "keep_missing": True}
                declared[field.name] = SequenceOf.parse(history)
    added = [field for field in declared.values() if field is not None]
    notes = [f"fields as {str(store.path)!r} declares them: {', '.join(field.name for field in added) or 'none'}"]
    notes += [
        f"{name!r} is left out, which is known with an event alone and no column of lists of categories"
        for name, field in declared.items()
        if field is None
    ]
    log.info("; ".join(notes))
    unchanged = [field for field in schema.fields if field.name not in declared]
    return Schema.parse(schema.dump() | {"fields": [field.dump() for field in (*unchanged, *added)]})
