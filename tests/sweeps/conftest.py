"""A small generated store and the settings that make a recipe train on it in a fraction of a second."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fullrank.data.events.prepare import prepare
from fullrank.data.events.store import Store
from fullrank.data.sources.planted import Planted
from fullrank.sweeps.grid import Grid
from fullrank.sweeps.jobs import Cell

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
    # no repeats, so that validation is evaluated as it chose: `tests/training/test_selection.py` has the others
    return prepare(tables.events, tmp_path_factory.mktemp("scaling") / "shop", set=["duplicates=first"])


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def tiny() -> Callable[..., Grid]:
    """``tiny("[sasrec]", seeds=(0, 1))``: a grid of cells (YAML) that train in no time; baselines as they are."""

    def grid(cells: str, *, settings: dict[str, Any] | None = None, **others: Any) -> Grid:
        def shrunk(cell: Cell) -> Cell:
            own = TINY | (settings or {}) if cell.recipe in ("sasrec", "gru4rec") else {}
            return cell.model_copy(update={"set": {**own, **cell.set}})

        plain = Grid.from_text(f"{{cells: {cells}}}")
        return plain.model_copy(update={"cells": tuple(shrunk(cell) for cell in plain.cells), **others})

    return grid
