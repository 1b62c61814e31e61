"""Vectors of what is written about an item, by any sentence-transformers model (Reimers and Gurevych 2019).

The text is made of columns of the item table, one after the other: `title: Red nail polish; brand: OPI`. A list is
written with commas, a number and a truth value as they print. What is empty is left out with its name; an item of which
nothing is left has no text (None), which is counted and never replaced by an empty string. Vectors are cached by the
text, the hash of the model's weights and the options below, and a run that is cut off goes on where it was.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
import torch

from fullrank.core.constraints import Count, DropoutRate, Length
from fullrank.core.errors import UserError
from fullrank.core.log import Tell
from fullrank.core.random import uniform_at
from fullrank.core.spec import later
from fullrank.data.events.catalog import Catalog
from fullrank.semantic_ids.vectors import Vectors, VectorsSpec, sentences


class TextVectors(VectorsSpec):
    """Vectors of the items' text."""

    kind: Literal["text"] = "text"
    model: str = "sentence-transformers/all-MiniLM-L6-v2"
    """A sentence-transformers model, by name or folder."""
    columns: tuple[str, ...] = ()
    """Columns of items that make their text, in this order; empty: every column of text or of lists of text."""
    names: bool = True
    """Write a column's name before its value."""
    ignore: tuple[str, ...] = ()
    """Values that mean "not known" in this table, such as Unknown: left out."""
    prompt: str = ""
    """Put before every text, for models that were trained with one (`passage: `)."""
    unit: bool = True
    """Scale vectors to length one."""
    max_tokens: Length | None = None
    """Cut texts there; None: the model's own limit."""
    batch: Count = 32
    """Texts at once; decides speed and memory alone."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where the model runs."""
    word_drop: DropoutRate = later(0.0)
    """Chance that a word of the text is left out, drawn from the text itself: a second view of an item (UniSRec)."""

    def read(self, catalog: Catalog, cache: Path, tell: Tell) -> Vectors:
        columns = self.columns or text_columns(catalog)
        written = texts(catalog, columns, names=self.names, ignore=self.ignore)
        given = [self.prompt + without_words(text, self.word_drop) for text in written if text is not None]
        options: dict[str, Any] = {
            "model": sentences.model_identity(self.model), "unit": self.unit, "max_tokens": self.max_tokens,
        }  # fmt: skip
        found = sentences.cached_vectors(cache, given, options, self._load, tell("text vectors"))
        known = torch.tensor([text is not None for text in written])
        matrix = torch.zeros(len(written), found.shape[1])
        matrix[known] = torch.from_numpy(found)
        facts = {
            "kind": "text", "model": self.model, "columns": list(columns), "width": found.shape[1],
            "distinct_texts": len(set(given)), "fingerprint": sentences.texts_fingerprint(given, options),
        }  # fmt: skip
        return Vectors(matrix, known, facts)

    def _load(self) -> sentences.Embed:
        return sentences.load_encoder(
            self.model, device=self.device, batch=self.batch, max_tokens=self.max_tokens, unit=self.unit
        )


def without_words(text: str, chance: float) -> str:
    """The text without some of its words, the same ones every time; its first word stays where all would go."""
    words = text.split(" ")
    seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")
    kept = uniform_at(seed, np.arange(len(words))) >= chance
    return " ".join(word for word, keep in zip(words, kept, strict=True) if keep) or words[0]


BETWEEN = "; "


def text_columns(catalog: Catalog) -> tuple[str, ...]:
    """Columns of text and of lists of text, in the table's order: what is written where no columns are named."""
    return tuple(name for name in catalog.columns if is_text(catalog.frame[name]))


def texts(
    catalog: Catalog, columns: Sequence[str] = (), *, names: bool = True, ignore: Sequence[str] = ()
) -> list[str | None]:
    """The text of each item, None where none of the columns says anything.

    Without `columns`, those of `text_columns`. `ignore` are values that mean "not known" in this table, such as
    "Unknown"; they are left out wherever they stand as a whole value. Raises `UserError` for columns that are not
    there, and where there is nothing to write.
    """
    chosen = tuple(columns) or text_columns(catalog)
    parts = [_written(catalog.column(name), ignore) for name in chosen]
    found = []
    for row in zip(*parts, strict=True):
        said = [f"{name}: {text}" if names else text for name, text in zip(chosen, row, strict=True) if text]
        found.append(BETWEEN.join(said) or None)
    if not any(found):
        problem = f"have no value in {', '.join(chosen)}" if chosen else "have no column of text"
        raise UserError(
            f"the items {problem}; name columns to write with vectors.columns, or give vectors of your own "
            f"(columns: {', '.join(catalog.columns) or 'none; prepare the store with --items'})",
            code="no-text",
        )
    return found


def is_text(column: pl.Series) -> bool:
    """Whether a column holds text, or lists of it."""
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
