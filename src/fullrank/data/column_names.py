"""Names of columns as keywords of public functions, `user_col=`, `time_unit=` and so on, which the shell writes
`--user-col`, `--time-unit`: one vocabulary wherever a table is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from types import EllipsisType
from typing import Any, TypeVar

from fullrank.core.errors import UserError, brief
from fullrank.core.overrides import put_setting, read_setting
from fullrank.core.spec import Spec

S = TypeVar("S", bound=Spec)

TimeColumn = str | EllipsisType | None
"""A column of times; None where the rows are in order of time; `...` where the caller says nothing."""
USUAL = ("user_id", "item_id", "timestamp")
"""Columns of user, item and time where the caller says nothing."""


def check_column(name: str, given: Any) -> Any:
    """A keyword that names a column; None where it is not given. Raises `UserError` for other types."""
    if given is not None and not isinstance(given, str):
        raise UserError(f"{name}={brief(given, 80)}: give the name of a column", code="not-column-names")
    return given


def event_columns(columns: Any, user_col: Any, item_col: Any, time_col: Any) -> Any:
    """Columns of user, item and, unless there is none, time: `columns` as they are given, or those of the keywords.

    Raises `UserError` where both name some.
    """
    user, item = check_column("user_col", user_col), check_column("item_col", item_col)
    time = time_col if time_col is ... else check_column("time_col", time_col)
    given = {"user_col": user is not None, "item_col": item is not None, "time_col": time is not ...}
    if not any(given.values()):
        return columns
    if not (isinstance(columns, tuple) and columns == USUAL):
        name = next(name for name, here in given.items() if here)
        raise UserError(f"columns are named twice, by columns= and by {name}=; keep one", code="given-twice")
    times = () if time is None else (USUAL[2] if time is ... else time,)
    return (user or USUAL[0], item or USUAL[1], *times)


def keywords_said(named: Mapping[str, tuple[str, Any]]) -> dict[str, tuple[str, Any]]:
    """Those of some keywords (name -> setting and value) that the caller says."""
    return {name: pair for name, pair in named.items() if pair[1] is not (... if name == "time_col" else None)}


def with_keywords(spec: S, keywords: Mapping[str, tuple[str, Any]], settings: Sequence[str]) -> S:
    """A spec with keywords (name -> dotted setting and value) and then dotted settings (`set=`) in it.

    Raises `UserError` where two of them, or the spec and a keyword, say the same setting.
    """
    asked = {read_setting(text)[0] for text in settings}
    tree, default = spec.dump(), type(spec)().dump()
    for name, (path, value) in keywords.items():
        there, usual = (reduce(dict.__getitem__, path.split("."), one) for one in (tree, default))
        if path in asked or there != usual:
            where = "set=" if path in asked else f"spec.{path}"
            raise UserError(f"{path} is given twice, by {name}= and by {where}; keep one", code="given-twice")
        put_setting(tree, path, value)
    return type(spec).parse(tree).override(*settings)
