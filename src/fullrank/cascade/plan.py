"""Where each field of a ranker comes from: the user, the item or the moment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fullrank.cascade.tables import KeyedTable
from fullrank.core.errors import UserError, unknown
from fullrank.data.impressions.fields import Categorical, Schema

USUAL = {"user": ("user", "user_id"), "item": ("item", "item_id")}
"""How the id columns are called where nobody says it."""


@dataclass(frozen=True)
class FieldPlan:
    """Names of fields by where they are read, each in the order of the schema."""

    users: tuple[str, ...]
    items: tuple[str, ...]
    context: tuple[str, ...]


def id_column(schema: Schema, role: str, given: str | None) -> str:
    """The column of the schema that holds the ids of `role` (user or item).

    Where none is `given`: the group column (of users), or a field of a usual name. Raises `UserError` where there is
    none, and for one that is no categorical field (a group column need not be a field).
    """
    fields = {field.name: field for field in schema.fields}
    group = schema.group if role == "user" else None
    names = [given] if given is not None else [*([group] if group else []), *USUAL[role]]
    for name in names:
        if name is not None and (name in fields or name == group):
            if name in fields and not isinstance(fields[name], Categorical):
                raise UserError(f"the ranker's field {name!r} is {fields[name].kind_of()}, and an id is categorical")
            return name
    if given is not None:
        raise unknown(f"column of {role}s in the ranker's schema", given, fields)
    raise UserError(
        f"the ranker's schema has no {role} column (fields: {', '.join(fields)}): say which one holds the {role}s' ids "
        f"by {role}=NAME, or train the ranker on impressions with one"
    )


def plan_fields(
    schema: Schema, user: str, item: str, users: KeyedTable | None, items: KeyedTable | None, context: Sequence[str]
) -> FieldPlan:
    """Every field's place. Raises `UserError` for a field that no table has, or that both tables have."""
    places: dict[str, list[str]] = {"users": [], "items": [], "context": []}
    lost = []
    of_users, of_items = (() if table is None else table.columns for table in (users, items))
    for field in schema.fields:
        name = field.name
        if name in (user, item) and name in context:
            raise UserError(f"the context has the column {name!r}, which the cascade fills itself; leave it out")
        if name == item or (name in of_items and name not in (*context, user)):
            if name != item and name in of_users:
                raise UserError(
                    f"the ranker reads {name!r}, which both the users and the items have; drop or rename one column"
                )
            places["items"].append(name)
        elif name in context:
            places["context"].append(name)
        elif name == user or name in of_users:
            places["users"].append(name)
        else:
            lost.append(name)
    if lost:
        raise UserError(_lost(lost, users, items))
    if not places["items"]:
        raise UserError(
            f"the ranker reads nothing of an item (fields: {', '.join(f.name for f in schema.fields)}), so that all "
            "candidates are alike to it; train it on impressions with the item"
        )
    return FieldPlan(*(tuple(places[name]) for name in ("users", "items", "context")))


def _lost(lost: Sequence[str], users: KeyedTable | None, items: KeyedTable | None) -> str:
    shown = [
        f"the {name} ({'no table' if table is None else ', '.join(table.columns) or 'no columns'})"
        for name, table in (("users", users), ("items", items))
    ]
    return (
        f"the ranker reads {', '.join(map(repr, lost))}, which neither {' nor '.join(shown)} have: add it to a table "
        f"(users=, items=), or give it by context={{{lost[0]!r}: VALUE}}, where None means that it is missing"
    )
