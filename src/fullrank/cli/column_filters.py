"""`--filters` in a shell: `genre=Comedy` and `year>=2000`, read into the filters of `fr.recommend`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fullrank.core.errors import UserError, brief, no_such

if TYPE_CHECKING:
    import polars as pl

FORM = re.compile(r"\s*(?P<name>.+?)\s*(?P<sign>>=|<=|=)\s*(?P<value>.*?)\s*", re.S)
BOUNDS = {">=": "min", "<=": "max"}


def parse_filters(given: Sequence[str] | None, columns: Mapping[str, pl.Series]) -> dict[str, Any] | None:
    """Filters by column. A column named twice by `=` may have either value; `>=` and `<=` bound numbers.

    Raises `UserError` for what has no such form, for an unknown column, and for a value that it cannot hold.
    """
    if not given:
        return None
    found: dict[str, Any] = {}
    for text in given:
        match = FORM.fullmatch(text)
        if match is None:
            raise UserError(
                f"--filters {brief(text, 80)}: say NAME=VALUE, or of numbers 'NAME>=VALUE', 'NAME<=VALUE', in quotes",
                code="not-a-filter",
            )
        name, sign = match["name"], match["sign"]
        if name not in columns:
            what = f"--filters {brief(text, 80)}: the items have no column"
            raise no_such(what, name, columns, "columns", code="unknown-column")
        value = _value(text, match["value"], columns[name].dtype)
        so_far = found.setdefault(name, [] if sign == "=" else {})
        if isinstance(so_far, list) != (sign == "=") or (sign != "=" and BOUNDS[sign] in so_far):
            raise UserError(
                f"--filters {brief(text, 80)}: {name!r} has a value or another such bound already; give values by =, "
                "or one >= and one <=",
                code="given-twice",
            )
        if sign == "=":
            so_far.append(value)
        else:
            so_far[BOUNDS[sign]] = value
    return found


def _value(text: str, word: str, dtype: Any) -> Any:
    """A word as a value of such a column."""
    from fullrank.inference.column_filters import WORDS, kind_of

    kind = kind_of(dtype)[0]
    if kind == "flag" and word.lower() in ("true", "false"):
        return word.lower() == "true"
    if kind == "number":
        for number in (int, float):
            try:
                return number(word)
            except ValueError:
                continue
    if kind in ("flag", "number"):
        raise UserError(f"--filters {brief(text, 80)}: this column holds {WORDS[kind]}", code="filter-wrong-type")
    return word
