"""Tables of users, of items and of moments: one row per id, found by the id as text, so that 42 and "42" are one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
from jaxtyping import Int

from fullrank.core.errors import UserError, unknown
from fullrank.data.frames import InputTable
from fullrank.data.impressions.vocabulary import FIRST, Vocabulary, canonical
from fullrank.data.values import refuse


class Keyed:
    """A table with an id column: the first of `keys` that it has. Columns are read when they are first asked for."""

    def __init__(self, table: Any, what: str, keys: Sequence[str]):
        self._source = InputTable(table, what)
        self.name = self._source.name
        found = [key for key in keys if key in self._source.columns]
        if not found:
            shown = ", ".join(self._source.columns) or "none"
            raise UserError(
                f"{self.name} has no id column {' or '.join(map(repr, keys))} (columns: {shown}); rename the one that "
                "holds the ids"
            )
        self.key = found[0]
        self.columns = tuple(column for column in self._source.columns if column not in keys)
        self._read: dict[str, pl.Series] = {}

    def rows(self, ids: pl.Series) -> Int[np.ndarray, "N"]:
        """The row of each id, -1 where there is none."""
        return np.maximum(self._rows.ids(canonical(ids, "ids")) - FIRST, -1)

    def gather(self, names: Sequence[str], ids: pl.Series) -> list[pl.Series]:
        """Some columns at these ids, null where the table has none."""
        fresh = [name for name in names if name not in self._read]
        self._read |= {series.name: series for series in (self._source.read(fresh) if fresh else ())}
        at = pl.Series(self.rows(ids)).cast(pl.Int64).replace(-1, None)
        return [self._read[name].gather(at) for name in names]

    def require_some(self, ids: pl.Series, what: str) -> None:
        """Raise `UserError` where it has none of these ids: then they are ids of something else. Nulls do not count."""
        named = ids.drop_nulls()
        if len(named) and not bool((self.rows(named) >= 0).any()):
            raise UserError(
                f"{self.name} has none of the {len(named):,} {what} in its column {self.key!r}; are these the same ids?"
            )

    @cached_property
    def _rows(self) -> Vocabulary:
        what = f"column {self.key!r} of {self.name}"
        column = self._source.read([self.key])[self.key]
        ids = canonical(column, what)
        refuse(ids.is_null(), column, what, "missing ids", code="missing-ids")
        refuse(ids.is_duplicated(), column, what, "repeated ids, where each needs one row,", code="repeated-ids")
        return Vocabulary(ids.cast(pl.String))


class Context:
    """What is neither the user's nor the item's: the same for all (a mapping), or a table with a row for each user."""

    def __init__(self, given: Any, fields: Iterable[str], keys: Sequence[str]):
        """`fields` are those that the ranker reads, `keys` the names that the user's id may have in a table."""
        allowed = list(fields)
        self._constants: dict[str, Any] = {}
        self._table: Keyed | None = None
        if given is None:
            given = {}
        if isinstance(given, Mapping):
            for name in given:
                if name not in allowed:
                    raise unknown("field of the ranker in context", str(name), allowed)
            self._constants = dict(given)
        else:
            self._table = Keyed(given, "context", keys)
            self.columns: tuple[str, ...] = tuple(name for name in self._table.columns if name in allowed)
            if not self.columns:
                raise UserError(
                    f"{self._table.name} has no column that the ranker reads (columns: "
                    f"{', '.join(self._table.columns) or 'none'}; read: {', '.join(allowed)}); leave it out"
                )
            return
        self.columns = tuple(self._constants)

    def gather(self, users: pl.Series) -> list[pl.Series]:
        """Its columns for these users."""
        if self._table is not None:
            return self._table.gather(self.columns, users)
        return [constant(name, value, len(users)) for name, value in self._constants.items()]

    def require_some(self, users: pl.Series) -> None:
        """Raise `UserError` where there is a table and it has none of these users."""
        if self._table is not None:
            self._table.require_some(users, "users")


def constant(name: str, value: Any, rows: int) -> pl.Series:
    """A column that holds one value; None is a column of nulls."""
    return pl.Series(name, [value], strict=False).new_from_index(0, rows)
