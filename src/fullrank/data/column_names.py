"""Keywords of public functions that name columns of tables: `user_col=`, `time_unit=` and so on.

The shell writes them `--user-col`, `--time-unit`: one vocabulary wherever a table is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from types import EllipsisType
from typing import Any, TypedDict, TypeVar, get_args

from fullrank.core.checks import check_choice, check_once, check_one_way, check_that
from fullrank.core.errors import in_context
from fullrank.core.spec import Spec, put_setting, read_setting
from fullrank.data.values import Unit

S = TypeVar("S", bound=Spec)

TimeColumn = str | EllipsisType | None
"""A column of times; None where the rows are in order of time; `...` (the default) for the usual name."""
USUAL = ("user_id", "item_id", "timestamp")
"""Default columns of user, item and time."""


def check_column(name: str, column: Any) -> Any:
    """The value of the keyword `name`, a column or None. Raises `UserError` for other types."""
    named = column is None or isinstance(column, str)
    check_that(named, name, column, ": give the name of a column", code="not-column-names")
    return column


def check_said_once(setting: str, sources: Mapping[str, bool]) -> None:
    """Raise `UserError` where several sources (source -> whether it does) give a value to one setting."""
    with in_context(f"{setting}: "):
        check_one_way({source: True for source, says in sources.items() if says}, code="given-twice")


class ColumnKeywords(TypedDict, total=False):
    """Columns of a table of events, as keywords of public functions (`core.checks.takes`)."""

    columns: Sequence[str]
    user_col: str | None
    item_col: str | None
    time_col: TimeColumn
    time_unit: Unit


COLUMN_DEFAULTS: dict[str, Any] = {
    "columns": USUAL,
    "user_col": None,
    "item_col": None,
    "time_col": ...,
    "time_unit": "s",
}
"""Defaults of `ColumnKeywords`."""


@dataclass(frozen=True)
class EventColumns:
    """Columns of a table of events, and the unit of its times."""

    names: tuple[str, ...] = USUAL
    """User, item and, where there is a third, time."""
    unit: Unit = "s"

    @classmethod
    def of(cls, keywords: ColumnKeywords, counts: tuple[int, ...] = (2, 3)) -> EventColumns:
        """The columns that a call names, by `columns` or by the other keywords; `counts` are the numbers allowed.

        Raises `UserError` where both ways are used, and for invalid names and units.
        """
        typed = {**COLUMN_DEFAULTS, **keywords}
        columns, time = typed["columns"], typed["time_col"]
        named = {name: check_column(name, typed[name]) for name in ("user_col", "item_col")}
        if time is not ...:
            named["time_col"] = check_column("time_col", time)
        name = next((name for name, column in named.items() if column is not None or name == "time_col"), None)
        if name is not None:
            usual = isinstance(columns, tuple) and columns == USUAL
            check_said_once("columns", {"columns=": not usual, f"{name}=": True})
            times = () if time is None else (USUAL[2] if time is ... else time,)
            columns = (named["user_col"] or USUAL[0], named["item_col"] or USUAL[1], *times)
        names = columns if isinstance(columns, Sequence) and not isinstance(columns, str) else ()
        sound = len(names) in counts and all(isinstance(name, str) for name in names)
        demand = f": name {' or '.join(map(str, counts))}, user, item and time, such as {USUAL}"
        check_that(sound, "columns", columns, demand, code="not-column-names")
        check_once(names, "user, item and time", "each has a column of its own", code="repeated-column")
        return cls(tuple(names), check_choice("time_unit", typed["time_unit"], get_args(Unit)))


def keywords_said(settings: Mapping[str, str], keywords: Mapping[str, Any]) -> dict[str, tuple[str, Any]]:
    """Keyword -> (setting, value) of the keywords that the caller gave; `settings` maps keyword -> setting."""
    return {
        name: (path, keywords[name])
        for name, path in settings.items()
        if keywords[name] is not (... if name == "time_col" else None)  # None says that there is no such column
    }


def with_keywords(spec: S, keywords: Mapping[str, tuple[str, Any]], settings: Sequence[str]) -> S:
    """A spec changed by keywords (name -> dotted setting and value), and then by dotted settings (`set=`).

    Raises `UserError` where two of them, or the spec and a keyword, give the same setting.
    """
    set_paths = {read_setting(text)[0] for text in settings}
    tree, default = spec.dump(), type(spec)().dump()
    for name, (path, setting) in keywords.items():
        current, usual = (reduce(dict.__getitem__, path.split("."), root) for root in (tree, default))
        check_said_once(path, {f"{name}=": True, "set=": path in set_paths, f"spec.{path}": current != usual})
        put_setting(tree, path, setting)
    return type(spec).parse(tree).override(*settings)
