"""Sources of the fields that a ranker reads: tables of users and items, or the context of a call.

Tables have one row per id, found by the id as text, so that 42 and "42" are one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from fullrank.core.checks import check_type
from fullrank.core.errors import UserError, unknown
from fullrank.data.impressions.joined import KeyedTable
from fullrank.data.impressions.schema import AnyField, Categorical, Schema, SequenceOf

USUAL = {"user": ("user", "user_id"), "item": ("item", "item_id")}
"""Names of the id columns where none is given."""


class Context:
    """Fields of a call, such as the hour: the same for all users (a mapping), or a table with a row for each user."""

    def __init__(self, context: Any, fields: Iterable[str], keys: Sequence[str]):
        """`fields` are those that the ranker reads, `keys` the names that the
        user's id may have in a table."""
        allowed = list(fields)
        self._constants: dict[str, Any] = {}
        self._table: KeyedTable | None = None
        if context is None or isinstance(context, Mapping):
            self._constants = dict(context or {})
            self.columns: tuple[str, ...] = tuple(self._constants)
            for name in self.columns:
                if name not in allowed:
                    raise unknown("context field", str(name), allowed)
            return
        self._table = KeyedTable(context, "context", keys)
        self.columns = tuple(name for name in self._table.columns if name in allowed)
        if not self.columns:
            raise UserError(
                f"{self._table.name} has no column that the ranker reads (columns: "
                f"{', '.join(self._table.columns) or 'none'}; read: {', '.join(allowed)}); leave it out",
                code="no-column-read",
            )

    def gather(self, users: pl.Series) -> list[pl.Series]:
        """The columns of the context for these users."""
        if self._table is not None:
            return self._table.gather(self.columns, users)
        return [constant_column(name, value, len(users)) for name, value in self._constants.items()]

    def require_some(self, users: pl.Series) -> None:
        """Raise `UserError` where there is a table and it has none of these users."""
        if self._table is not None:
            self._table.require_some(users, "users")


def constant_column(name: str, value: Any, rows: int) -> pl.Series:
    """A column that holds one value; None is a column of nulls."""
    return pl.Series(name, [value], strict=False).new_from_index(0, rows)


@dataclass(frozen=True)
class FieldPlan:
    """Names of fields by where they are read, each in the order of the schema."""

    users: tuple[str, ...]
    items: tuple[str, ...]
    context: tuple[str, ...]
    history: tuple[str, ...] = ()
    """Sequences filled from the history of the request: its items, their fields, or features of its events."""


def id_column(schema: Schema, role: str, column: str | None) -> str:
    """The column of the schema that holds the ids of `role` (user or item).

    Where no `column` is named: the group column (of users), or a field of a usual name. Raises
    `UserError` where there is none, and for a column that is no categorical field (a group column
    need not be a field).
    """
    if column is not None:
        check_type(role, column, str, "the name of a column of the ranker's schema")
    fields = {field.name: field for field in schema.fields}
    group = schema.group if role == "user" else None
    for name in [*([group] if group else []), *USUAL[role]] if column is None else [column]:
        if name in fields or name == group:
            if name in fields and not isinstance(fields[name], Categorical):
                raise UserError(
                    f"the ranker's field {name!r} is {fields[name].kind_of()}, and an id is categorical",
                    code="id-not-categorical",
                )
            return name
    if column is not None:
        raise unknown(f"{role} column", column, fields)
    raise UserError(
        f"the ranker's schema has no {role} column (fields: {', '.join(fields)}): say which one holds the {role}s' ids "
        f"by {role}=NAME, or train the ranker on impressions with one",
        code="missing-id-column",
    )


def fields_of_callers(
    schema: Schema, user: str, item: str, of_items: Collection[str], events: Collection[str]
) -> tuple[str, ...]:
    """Fields that a caller may give of a user or a request: all that are not read of items or past events."""
    return tuple(
        field.name
        for field in schema.fields
        if field.name not in (user, item, *of_items) and not _of_history(field, (item, *of_items), events)
    )


def _of_history(field: AnyField, of_items: Collection[str], events: Collection[str]) -> bool:
    """Whether the request's own history fills a field: a sequence of what is read of
    items, or of an event feature."""
    return isinstance(field, SequenceOf) and (field.shares in of_items or field.name in events)


def plan_fields(
    schema: Schema,
    user: str,
    item: str,
    users: KeyedTable | None,
    items: KeyedTable | None,
    context: Sequence[str],
    events: Collection[str] = (),
) -> FieldPlan:
    """The source of every field. Raises `UserError` for a field that no table has, or that both tables have.

    A sequence that no table and no context has is the request's own history, where it shares the
    table of a field that is read of items, or is a feature of its `events`.
    """
    places: dict[str, list[str]] = {"users": [], "items": [], "context": [], "history": []}
    lost = []
    of_users, of_items = (() if table is None else table.columns for table in (users, items))
    read_of_items = {item, *of_items} - {*context, user}
    for field in schema.fields:
        name = field.name
        if name in (user, item) and name in context:
            raise UserError(
                f"the context has the column {name!r}, which the cascade fills itself; leave it out",
                code="context-has-id",
            )
        if name in read_of_items:
            if name != item and name in of_users:
                raise UserError(
                    f"the ranker reads {name!r}, which both the users and the items have; drop or rename one column",
                    code="column-in-both-tables",
                )
            places["items"].append(name)
        elif name in context:
            places["context"].append(name)
        elif name == user or name in of_users:
            places["users"].append(name)
        elif _of_history(field, read_of_items, events):
            places["history"].append(name)
        else:
            lost.append(name)
    if lost:
        shown = [
            f"the {name} ({'no table' if table is None else ', '.join(table.columns) or 'no columns'})"
            for name, table in (("users", users), ("items", items))
        ]
        raise UserError(
            f"the ranker reads {', '.join(map(repr, lost))}, which neither {' nor '.join(shown)} have: add it to a "
            f"table (users=, items=), or give it by context={{{lost[0]!r}: VALUE}}, where None means that it is "
            "missing",
            code="missing-column",
        )
    if not places["items"]:
        raise UserError(
            f"the ranker reads nothing of an item (fields: {', '.join(f.name for f in schema.fields)}), so that all "
            "candidates are alike to it; train it on impressions with the item",
            code="ranker-reads-no-item",
        )
    return FieldPlan(**{name: tuple(fields) for name, fields in places.items()})
