"""Fixtures of semantic ids: a file of vectors, and text vectors without a model."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import fullrank as fr
from coded import Sentences, catalog, matrix, settings
from fullrank.data.events.catalog import Catalog
from fullrank.semantic_ids.vectors import text as text_vectors


@pytest.fixture
def vector_file(tmp_path: Path) -> Path:
    """Vectors of items 0 .. 239 in an order of their own."""
    order = np.random.default_rng(4).permutation(240)
    pl.DataFrame({"item_id": order, "vector": matrix(240)[order]}).write_parquet(tmp_path / "vectors.parquet")
    return tmp_path / "vectors.parquet"


@pytest.fixture
def encode(vector_file: Path, tmp_path: Path) -> Callable:
    """Quick codes of a catalogue by the vectors of the file, in a folder of their own."""

    def encoded(*more: str, name: str = "codes", items: Catalog | None = None, **named: Any) -> fr.Codes:
        how = named.pop("set", None) or settings(vector_file, *more)
        return fr.encode(catalog() if items is None else items, tmp_path / name, set=how, **named)

    return encoded


@pytest.fixture
def grow(tmp_path: Path) -> Callable:
    """Codes of the first items, more than there were, in a folder of their own."""

    def grown(codes: fr.Codes, items: int | Catalog = 230, name: str = "new", **named: Any) -> fr.Codes:
        items = catalog(items) if isinstance(items, int) else items
        return fr.grow_codes(codes, items, tmp_path / name, **named)

    return grown


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Sentences:
    fake = Sentences()
    monkeypatch.setattr(text_vectors, "load_encoder", fake.load)
    monkeypatch.setattr(text_vectors, "model_identity", lambda name: name)
    return fake
