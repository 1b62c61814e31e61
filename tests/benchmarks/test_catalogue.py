"""The check of `benchmarks.catalogue`: green as it is, red where vectors are wrong or items are computed again."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks import catalogue, catalogue_step
from benchmarks.catalogue_step import FIELDS, places, written
from benchmarks.harness import Wrong
from fullrank.models.sequential.items.text import TextItems


class Recomputing(TextItems):
    """Planted: a step computes an item as often as it asks for it."""

    def for_one_step(self) -> Any:
        return self


class Shifted(TextItems):
    """Planted: every item has the vector of the one before it."""

    def embed(self, ids: Tensor) -> Tensor:
        return super().embed((ids - 1) % self.size)


class Whole(TextItems):
    """Planted: a step reads the whole catalogue."""

    def embed(self, ids: Tensor) -> Tensor:
        return self.all()[ids] if ids.numel() else super().embed(ids)

    def all(self) -> Tensor:
        return super().embed(torch.arange(self.size)) * len(self.popularity) ** 0.1


def test_planted_faults_are_noticed() -> None:
    with pytest.raises(Wrong, match="each of its items once"):
        catalogue.check(Recomputing)
    for fault in (Shifted, Whole):
        with pytest.raises(Wrong, match="reference"):
            catalogue.check(fault)


def test_the_files(tmp_path: Path) -> None:
    """Item i has the text of item i mod base, and different texts stay different items at every size."""
    small, large = (written(items, tmp_path, 40) for items in (40, 200))
    for name in FIELDS:
        flat, offsets = (np.load(large / f"{name}_{part}.npy") for part in ("flat", "offsets"))
        first, bounds = (np.load(small / f"{name}_{part}.npy") for part in ("flat", "offsets"))
        assert (flat > 0).all() and len(offsets) == 201
        for i in (0, 39, 40, 87, 199):
            own = flat[offsets[i] : offsets[i + 1]]
            assert np.array_equal(own, first[bounds[i % 40] : bounds[i % 40 + 1]])
    counts, running = (np.load(large / f"{part}.npy") for part in ("popularity", "cumulative"))
    assert np.allclose(running, np.cumsum(counts) / counts.sum()) and running[-1] == 1
    spread = places(torch.arange(40), 200, 40)
    assert len(spread.unique()) == 40 and (spread % 40 == torch.arange(40)).all() and spread.max() > 40


@pytest.mark.slow
def test_small_figures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    small = {"text": {"10k": 10_000, "10m": 20_000}, "table": {"10k": 10_000, "1m": 20_000}}
    for name, value in {"SIZES": small, "CACHE": tmp_path}.items():
        monkeypatch.setattr(catalogue, name, value)
    monkeypatch.setattr(catalogue, "measured", lambda kind, items, threads: {"anonymous_mb": float(items)})
    monkeypatch.setattr(catalogue_step, "ROWS", 2)
    options = catalogue.argparse.Namespace(rounds=1, processes=1, threads=1)
    found = catalogue.measure(options, lambda text: None)
    assert found["peak_memory_10m_over_10k"] == found["table_peak_memory_1m_over_10k"] == 2
    assert found["step_time_10m_over_10k"] > 0 and found["step_seconds_10m"] > 0 and found["pool"] == 4096
