"""Names of columns as keywords of public functions, `user_col=`, `time_unit=` and so on, which the shell writes
`--user-col`, `--time-unit`: one vocabulary wherever a table is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import EllipsisType
from typing import Any, get_args

from fullrank.core.checks import check_overrides
from fullrank.core.errors import UserError, brief, did_you_mean
from fullrank.core.overrides import put_setting, read_setting
from fullrank.data.values import Unit

TimeColumn = str | EllipsisType | None
"""A column of times; None where the rows are in order of time; `...` where the caller says nothing."""
USUAL = ("user_id", "item_id", "timestamp")
"""Columns of user, item and time where the caller says nothing."""


def check_column(name: str, given: Any) -> Any:
    """A keyword that names a column; None where it is not given. Raises `UserError` for other types."""
    if given is not None and not isinstance(given, str):
        raise UserError(f"{name}={brief(given, 80)}: give the name of a column", code="not-column-names")
    return given


def check_time_column(given: Any) -> Any:
    """`time_col=`, as it is given. Raises `UserError` for what is neither a name, nor None, nor left out."""
    return given if given is ... else check_column("time_col", given)


def check_unit(given: Any) -> Any:
    """`time_unit=`, or None where it is not given. Raises `UserError` for others than those of `values.Unit`."""
    allowed = get_args(Unit)
    if given is not None and not (isinstance(given, str) and given in allowed):
        raise UserError(
            f"time_unit={brief(given, 80)}{did_you_mean(brief(given, 80), allowed)} (allowed: {', '.join(allowed)})",
            code="unknown-choice",
        )
    return given


def request_columns(
    columns: Sequence[str] | None, user_col: Any, item_col: Any, time_col: Any
) -> tuple[Sequence[str], bool]:
    """(columns of user, item and, unless there is none, time; whether the one of times has to be there).

    Raises `UserError` where columns are named both ways.
    """
    single = {
        "user_col": check_column("user_col", user_col), "item_col": check_column("item_col", item_col),
    }  # fmt: skip
    timed = check_time_column(time_col)
    given = [name for name, value in single.items() if value is not None] + ["time_col"] * (timed is not ...)
    if columns is not None:
        if given:
            raise UserError(f"columns are named twice, by columns= and by {given[0]}=; keep one", code="given-twice")
        return columns, False
    user, item = (value or usual for value, usual in zip(single.values(), USUAL, strict=False))
    times = () if timed is None else (USUAL[2] if timed is ... else timed,)
    return (user, item, *times), isinstance(timed, str)


def with_keywords(tree: dict[str, Any], keywords: Mapping[str, tuple[str, Any]], settings: Any) -> dict[str, Any]:
    """The plain data of a spec with keywords (name -> dotted setting and value) and dotted settings (`set=`) in it.

    Raises `UserError` where both say the same setting.
    """
    changes = [read_setting(text) for text in check_overrides(settings)]
    asked = {path for path, _ in changes}
    for name, (path, value) in keywords.items():
        if path in asked:
            raise UserError(f"{path} is given twice, by {name}= and by set=; keep one", code="given-twice")
        put_setting(tree, path, value)
    for path, value in changes:
        put_setting(tree, path, value)
    return tree
