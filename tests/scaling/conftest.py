"""A small generated store and the settings that make a recipe train on it in a fraction of a second."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fullrank.data.pack import Store
from fullrank.data.prepare import prepare
from fullrank.data.sources.planted import Planted

TINY: dict[str, Any] = {
    "model.dim": 8,
    "model.encoder.layers": 1,
    "training.max_epochs": 3,
    "training.batch_size": 512,
    "training.patience": None,
    "evaluation.metrics": ["ndcg", "coverage"],
    "evaluation.ks": [10],
    "evaluation.bootstrap": 5,
}
"""sasrec made tiny."""


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    torch.set_num_threads(1)
    tables = Planted(users=150, items=60, events_per_user=8).read()
    return prepare(tables.events, tmp_path_factory.mktemp("scaling") / "shop")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"
