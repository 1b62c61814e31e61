"""What items made of text read of the item table: the text of a column, and its tokens packed."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import polars as pl
import torch
from jaxtyping import Int
from pydantic import Field
from torch import Tensor

from fullrank.core.errors import UserError, did_you_mean
from fullrank.core.spec import Spec
from fullrank.data.events.catalog import Catalog
from fullrank.models.sequential.items.tokeniser import words


class TextField(Spec):
    """One field of an item's text."""

    column: str
    """Column of the item table: text, or lists of text, which are read one after the other."""
    tokens: int = Field(40, ge=1)
    """Most tokens read; what comes later in the text is left out."""
    first: bool = False
    """Read the first element of each list alone (a list of attributes that begins with the brand)."""
    empty: str | None = None
    """Text of an item that has none; null leaves it empty."""

    @property
    def name(self) -> str:
        return f"{self.column}_first" if self.first else self.column

    @property
    def kept(self) -> str:
        """Column of a run's item table with the tokens."""
        return f"{self.name}_tokens"


class Packed(NamedTuple):
    """Tokens of V items: those of item i are ``flat[offsets[i]:offsets[i + 1]]``, none of them 0."""

    flat: Int[Tensor, "E"]
    offsets: Int[Tensor, "V1"]


def text_of(field: TextField, catalog: Catalog, *, may_be_empty: bool = False) -> pl.Series:
    """Words of each item. Raises `UserError` for a column that is missing, holds no text, or (unless it may) none."""
    found = words(_plain(field, catalog))
    if not may_be_empty and not (found.str.len_bytes() > 0).any():
        raise UserError(f"the column {field.column!r} has no words for any of {catalog.size:,} items; "
                        f"name other columns with model.items.fields{_texts(catalog)}")  # fmt: skip
    return found if field.empty is None else found.replace("", _instead(field))


def own_words(field: TextField, text: pl.Series) -> pl.Series:
    """Which items of `text_of` have words that are not the field's `empty`."""
    return ~text.is_in(["", _instead(field)])


def _instead(field: TextField) -> str:
    """The words of an item that has none of its own."""
    return str(words(pl.Series([field.empty or ""]))[0])


def packed(column: pl.Series, size: int, name: str) -> Packed:
    """Lists of tokens as a run keeps them. Raises `UserError` for anything that is not such a column."""
    if not isinstance(column.dtype, pl.List) or column.dtype.inner != pl.Int32 or column.null_count():
        raise UserError(f"the column {name!r} must hold the tokens of every item, as lists of whole numbers")
    counts = column.list.len().to_numpy().astype(np.int64)
    flat = column.filter(pl.Series(counts > 0)).explode()
    if len(flat) and (flat.null_count() or not 1 <= flat.min() <= flat.max() < size):  # type: ignore[operator]
        raise UserError(f"the column {name!r} is damaged: its tokens must be 1 to {size - 1:,}")
    offsets = np.concatenate([[0], counts.cumsum()])
    return Packed(torch.tensor(flat.to_numpy(), dtype=torch.int32), torch.from_numpy(offsets))


def _plain(field: TextField, catalog: Catalog) -> pl.Series:
    """The column as strings."""
    if field.column not in catalog.columns:
        raise UserError(f"the items have no column {field.column!r}{did_you_mean(field.column, catalog.columns)}: set "
                        f"model.items.fields (columns: {', '.join(catalog.columns) or 'none'})")  # fmt: skip
    column = catalog.frame[field.column]
    if column.dtype == pl.Null:
        return column.cast(pl.String)
    if isinstance(column.dtype, pl.Array):
        column = column.arr.to_list()
    listed = isinstance(column.dtype, pl.List)
    inner = column.dtype.inner if isinstance(column.dtype, pl.List) else column.dtype
    if not (inner == pl.String or isinstance(inner, (pl.Categorical, pl.Enum))):
        raise UserError(f"the column {field.column!r} is {column.dtype}, not text or lists of text{_texts(catalog)}")
    if not listed:
        if field.first:
            raise UserError(f"the column {field.column!r} holds no lists: leave out first=true")
        return column.cast(pl.String)
    column = column.cast(pl.List(pl.String))
    return column.list.first() if field.first else column.list.join(" ", ignore_nulls=True)


def _texts(catalog: Catalog) -> str:
    """The columns that do hold text, for an error."""
    found = []
    for name in catalog.columns:
        dtype = catalog.frame[name].dtype
        inner = dtype.inner if isinstance(dtype, (pl.List, pl.Array)) else dtype
        if inner == pl.String and not name.endswith("_tokens"):
            found.append(name)
    return f" (columns of text: {', '.join(found) or 'none'})"
