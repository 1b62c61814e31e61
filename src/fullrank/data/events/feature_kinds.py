"""Inference of the kind of each feature that is declared by the name of its column alone.

Kinds are those of an inferred schema of impressions (`data/impressions/infer.py`), inferred from
the first rows. Text of several words, which come back in other texts, is a bag of its words.
"""

from __future__ import annotations

from typing import Any

import polars as pl

from fullrank.core.errors import UserError
from fullrank.core.log import logger
from fullrank.data.events.features import ROLES, Features, Inferred, Role
from fullrank.data.events.table import Columns
from fullrank.data.frames import InputTable, to_polars
from fullrank.data.impressions.infer import LEAST_VALUES, LOOK, REPEATS, field_of, list_text
from fullrank.data.impressions.schema import AnyField, BagOf, SequenceOf

log = logger(__name__)

WORDS = 0.5
"""Share of the texts of a column that have several words, below which they are no bags of words."""
KINDS = {"categorical": "category", "numeric": "number", "bag": "list"}
"""Kind of a field -> the word for it."""


def with_kinds(features: Features, events: InputTable, columns: Columns, users: Any) -> Features:
    """The features of these tables with the kind of each; kinds that are inferred are logged.

    `users` is the table of users, or None. Raises `UserError` for a column that is not there, and
    for one of ids or of times.
    """
    if not features.all:
        return features
    if features.user and users is None:
        raise UserError(
            f"the user feature {features.user[0].name!r} is a column of a table of users: give one, users=",
            code="missing-users",
        )
    tables = {"event": events, "request": events}
    if users is not None:
        tables["user"] = InputTable(users, "users")
    user_columns = tables["user"].columns if "user" in tables else []
    key = columns.user if columns.user in user_columns else "user_id"
    for role in ROLES:
        for name in [feature.name for feature in getattr(features, role)]:
            _require_no_role(name, role, columns if role != "user" else Columns(user=key, item="", time=None))
            hint = f"name the columns of {role} features as the table has them"
            if role != "user" and name in user_columns:
                hint += "; it is a column of the users: name it as a user feature"
            tables[role].require(name, hint)
    fields: dict[str, list[AnyField]] = {}
    for role in ROLES:
        names = [feature.name for feature in getattr(features, role) if isinstance(feature, Inferred)]
        kinds = _kinds(tables[role], names) if names else {}
        fields[role] = [kinds.get(feature.name, feature) for feature in getattr(features, role)]
        if kinds:
            words = ", ".join(f"{name} a {described(field)}" for name, field in kinds.items())
            log.info(
                f"{role} features by the types of their columns and the first {LOOK:,} rows: {words}; to decide "
                f"otherwise say features.{role}=[{{kind: ..., name: ...}}, ...] by set= (--set)"
            )
    return Features.parse(fields)


def described(field: AnyField) -> str:
    """A kind in words: category, number, list, or text."""
    if isinstance(field, BagOf) and field.separator is not None:
        return "text (a bag of its words)" if field.separator == " " else f"list (text cut at {field.separator!r})"
    return KINDS[field.kind]


def _require_no_role(name: str, role: Role, columns: Columns) -> None:
    """Raise `UserError` for the columns of user, item and time."""
    if name == columns.time:
        raise UserError(
            f"the {role} feature {name!r} is the column of times, of which a model reads hour, weekday, gap and age "
            "without a feature: leave it out",
            code="feature-is-the-time",
        )
    for what in ("user", "item"):
        if name == getattr(columns, what):
            raise UserError(
                f"the {role} feature {name!r} is the column of {what} ids, which a model reads in any case: leave it "
                "out",
                code="feature-is-an-id",
            )


def _kinds(table: InputTable, names: list[str]) -> dict[str, AnyField]:
    """The field that each of these columns is, inferred from the first rows."""
    head = table.frame.select(*names).head(LOOK)
    frame = table.infer(table.attempt(lambda: to_polars(head)))
    return {name: _kind(frame[name]) for name in names}


def _kind(column: pl.Series) -> AnyField:
    sure = column.dtype == pl.String and (cut := list_text(column)) is not None and cut.sure
    if column.dtype == pl.String and not sure and _has_words(column):
        return BagOf(name=column.name, separator=" ")
    field = field_of(column)
    return BagOf(name=field.name, separator=field.separator) if isinstance(field, SequenceOf) else field


def _has_words(column: pl.Series) -> bool:
    """Whether most texts have several words, and these come back more often than whole texts do."""
    texts = column.drop_nulls().str.strip_chars()
    texts = texts.filter(texts != "")
    if len(texts) < LEAST_VALUES or int(texts.str.contains(r"\s").sum()) < WORDS * len(texts):
        return False
    words = texts.str.split(" ").explode()
    return len(words) / words.n_unique() >= REPEATS * len(texts) / texts.n_unique()
