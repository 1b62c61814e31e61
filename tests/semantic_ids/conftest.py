"""Fixtures of semantic ids: a file of vectors, and text vectors without a model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from coded import Sentences, matrix
from fullrank.semantic_ids.vectors import sentences


@pytest.fixture
def vector_file(tmp_path: Path) -> Path:
    """Vectors of items 0 .. 239 in an order of their own."""
    order = np.random.default_rng(4).permutation(240)
    pl.DataFrame({"item_id": order, "vector": matrix(240)[order]}).write_parquet(tmp_path / "vectors.parquet")
    return tmp_path / "vectors.parquet"


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Sentences:
    fake = Sentences()
    monkeypatch.setattr(sentences, "load_encoder", fake.load)
    monkeypatch.setattr(sentences, "model_identity", lambda name: name)
    return fake
