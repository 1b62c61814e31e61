"""Vectors of what is written about an item, by any sentence-transformers model (Reimers and Gurevych 2019).

The text is made of columns of the item table (`wording.py`): `title: Red nail polish; brand: OPI`. Vectors are cached
by the text, the hash of the model's weights and the options below, and a run that is cut off goes on where it was.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field

from fullrank.core.bounds import MOST_COUNT, MOST_LENGTH
from fullrank.core.progress import Tell
from fullrank.core.random import uniform_at
from fullrank.core.spec import later
from fullrank.data.events.catalog import Catalog
from fullrank.semantic_ids.vectors import Vectors, VectorsSpec, sentences
from fullrank.semantic_ids.vectors.cache import cached_vectors, texts_fingerprint
from fullrank.semantic_ids.vectors.wording import text_columns, texts


class TextVectors(VectorsSpec):
    """Vectors of the items' text."""

    kind: Literal["text"] = "text"
    model: str = "sentence-transformers/all-MiniLM-L6-v2"
    """A sentence-transformers model, by name or folder."""
    columns: tuple[str, ...] = ()
    """Columns of the item table to write, in this order; empty: every column of text or of lists of text."""
    names: bool = True
    """Write a column's name before its value."""
    ignore: tuple[str, ...] = ()
    """Values that mean "not known" in this table, such as Unknown: left out."""
    prompt: str = ""
    """Put before every text, for models that were trained with one (`passage: `)."""
    unit: bool = True
    """Scale vectors to length one."""
    max_tokens: int | None = Field(None, ge=1, le=MOST_LENGTH)
    """Cut texts there; None: the model's own limit."""
    batch: int = Field(32, ge=1, le=MOST_COUNT)
    """Texts at once; decides speed and memory alone."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where the model runs."""
    word_drop: float = later(0.0, ge=0, lt=1)
    """Chance that a word of the text is left out, drawn from the text itself: a second view of an item (UniSRec)."""

    def read(self, catalog: Catalog, cache: Path, tell: Tell) -> Vectors:
        columns = self.columns or text_columns(catalog)
        written = texts(catalog, columns, names=self.names, ignore=self.ignore)
        given = [self.prompt + without_words(text, self.word_drop) for text in written if text is not None]
        options: dict[str, Any] = {
            "model": sentences.model_identity(self.model), "unit": self.unit, "max_tokens": self.max_tokens,
        }  # fmt: skip
        found = cached_vectors(cache, given, options, self._load, tell("text vectors"))
        known = torch.tensor([text is not None for text in written])
        matrix = torch.zeros(len(written), found.shape[1])
        matrix[known] = torch.from_numpy(found)
        facts = {
            "kind": "text", "model": self.model, "columns": list(columns), "width": found.shape[1],
            "distinct_texts": len(set(given)), "fingerprint": texts_fingerprint(given, options),
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
