"""A small generated store and the settings that make a recipe train on it in a fraction of a second."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fullrank.data.events.store import Store
from fullrank.sweeps import schedule
from fullrank.sweeps.cost import JobCost
from fullrank.sweeps.jobs import Cell
from fullrank.sweeps.records import Row
from fullrank.sweeps.sweep import Grid, Outcome, run_sweep, sweep
from markets import planted_store

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
    # no repeats, so that validation is evaluated as it chose: `tests/training/test_settled.py` has the others
    return planted_store(tmp_path_factory.mktemp("scaling") / "shop", "duplicates=first", users=150, items=60)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def tiny(cells: str, *, settings: dict[str, Any] | None = None, **others: Any) -> Grid:
    """``tiny("[sasrec]", seeds=(0, 1))``: a grid of cells (YAML) that train in no time; baselines as they are."""

    def small(cell: Cell) -> Cell:
        own = TINY | (settings or {}) if cell.recipe in ("sasrec", "gru4rec") else {}
        return cell.model_copy(update={"set": {**own, **cell.set}})

    plain = Grid.from_text(f"{{cells: {cells}}}")
    return plain.model_copy(update={"cells": tuple(map(small, plain.cells)), **others})


class Sweeps:
    """``swept("[sasrec]")``: the rows of a sweep of `tiny` cells, or of a grid, in the folder `out` or another."""

    def __init__(self, store: Store, out: Path) -> None:
        self.store, self.out = store, out

    def outcome(self, grid: Grid | str, into: Path | None = None, **how: Any) -> Outcome:
        grid = tiny(grid) if isinstance(grid, str) else grid
        return run_sweep(grid, self.store, into or self.out, **{"progress": False, **how})

    def __call__(self, grid: Grid | str, into: Path | None = None, **how: Any) -> list[Row]:
        grid = tiny(grid) if isinstance(grid, str) else grid
        return sweep(grid, self.store, into or self.out, **{"progress": False, **how})


@pytest.fixture
def swept(store: Store, out: Path) -> Sweeps:
    return Sweeps(store, out)


def free(jobs: Any, store: Any, step: Callable[[Any], float] = lambda job: 1.0, **_: Any) -> dict[str, JobCost]:
    """A second an evaluation and, if nothing else is said, a step."""
    return {j.cost_key: JobCost(0.0, step(j), 1, j.experiment.training.max_epochs, 0.0, 0, 1.0, 1) for j in jobs}


@pytest.fixture
def cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Costs are taken for granted."""
    monkeypatch.setattr(schedule, "measure_costs", free)
