"""What tests of semantic ids are made of: a catalogue with vectors and text, and a stand-in for a model."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl
import torch

from fullrank.data.events.catalog import Catalog
from fullrank.semantic_ids.vectors import text as text_vectors

WIDTH = 12


def catalog(size: int = 200, first: int = 0) -> Catalog:
    """Items `first`, `first + 1`, ... with titles, lists of tags and prices, some of them missing."""
    ids = np.arange(first, first + size)
    return Catalog(
        pl.DataFrame(
            {
                "item": np.arange(size),
                "item_id": ids,
                "train_count": np.where(ids % 50 == 49, 0, 100 - ids // 10),
                "title": [None if i % 40 == 7 else f"thing {i % 60} of kind {i % 6}" for i in ids],
                "tags": pl.Series([[] if i % 40 == 7 else [f"tag{i % 6}", "Unknown"] for i in ids]),
                "price": [1.5 * float(i) for i in ids],
            }
        )
    )


def matrix(rows: int = 200, seed: int = 0) -> np.ndarray:
    """[N, 12] in clusters; row i is the same however many there are. Rows 3, 30 and 31 are equal."""
    centres = np.random.default_rng(seed).normal(size=(9, WIDTH)) * 2
    noise = np.random.default_rng(seed + 1).normal(size=(4096, WIDTH))[:rows]
    x = (centres[np.arange(rows) % 9] + 0.8 * noise).astype(np.float32)
    if rows > 31:
        x[30] = x[31] = x[3]
    return x


def silent(done: int, total: int) -> None:
    """Progress that nobody hears."""


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def settings(vector_file: Path, *more: str) -> list[str]:
    """Settings for a quick `encode` of the vectors in a file."""
    source = f"vectors={{kind: file, path: {str(vector_file)!r}}}"
    return [source, "learner.levels=4", "learner.size=16", "learner.rounds=3", "limits.collisions=1", *more]


class Sentences:
    """In the place of a model: a text's vector is drawn from its letters. Counts what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.loaded = 0
        self.fail_after: int | None = None

    def load(self, model: str, **options: object) -> text_vectors.Embed:
        self.loaded += 1
        self.options = options

        def embed(texts: Sequence[str]) -> np.ndarray:
            if self.fail_after is not None and len(self.asked) >= self.fail_after:
                raise KeyboardInterrupt
            self.asked += texts
            return np.stack([self.vector(text) for text in texts])

        return embed

    @staticmethod
    def vector(text: str) -> np.ndarray:
        """[24]: how often each of some letters stands in the text, each word near words of like letters."""
        seen = np.frombuffer(text.encode(), np.uint8)
        return np.bincount(seen % 24, minlength=24).astype(np.float32) / len(seen)
