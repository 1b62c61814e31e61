"""The text of an item: columns of the item table, one after the other, `title: Red nail polish; brand: OPI`.

A list is written with commas, a number and a truth value as they print. What is empty is left out with its name; an
item of which nothing is left has no text (None), which is counted and never replaced by an empty string.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from fullrank.core.errors import UserError
from fullrank.data.events.catalog import Catalog

BETWEEN = "; "


def text_columns(catalog: Catalog) -> tuple[str, ...]:
    """Columns of text and of lists of text, in the table's order: what is written where no columns are named."""
    return tuple(name for name in catalog.columns if _is_text(catalog.frame[name]))


def texts(
    catalog: Catalog, columns: Sequence[str] = (), *, names: bool = True, ignore: Sequence[str] = ()
) -> list[str | None]:
    """The text of each item, None where none of the columns says anything.

    Without `columns`, those of `text_columns`. `ignore` are values that mean "not known" in this table, such as
    "Unknown"; they are left out wherever they stand as a whole value. Raises `UserError` for columns that are not
    there, and where there is nothing to write.
    """
    chosen = tuple(columns) or text_columns(catalog)
    if not chosen:
        raise UserError(
            "the items have no column of text; name columns to write with vectors.columns, or give vectors of your own "
            f"(columns: {', '.join(catalog.columns) or 'none; prepare the store with --items'})",
            code="no-text",
        )
    parts = [_written(catalog.column(name), ignore) for name in chosen]
    found = []
    for row in zip(*parts, strict=True):
        said = [f"{name}: {text}" if names else text for name, text in zip(chosen, row, strict=True) if text]
        found.append(BETWEEN.join(said) or None)
    if not any(found):
        raise UserError(f"none of the items has a value in {', '.join(chosen)}; name other columns", code="no-text")
    return found


def _is_text(column: pl.Series) -> bool:
    dtype = column.dtype
    inner = dtype.inner if isinstance(dtype, (pl.List, pl.Array)) else dtype
    return inner == pl.String or isinstance(inner, (pl.Categorical, pl.Enum))


def _written(column: pl.Series, ignore: Sequence[str]) -> list[str]:
    """Each value as text, spaces collapsed; the empty string where it says nothing."""
    if isinstance(column.dtype, (pl.List, pl.Array)):
        return [", ".join(filter(None, (_plain(v, ignore) for v in row or ()))) for row in column.to_list()]
    return [_plain(value, ignore) for value in column.to_list()]


def _plain(value: object, ignore: Sequence[str]) -> str:
    text = "" if value is None or value != value else " ".join(str(value).split())
    return "" if text in ignore else text
