"""Ladders made of a law that is known, and the published runs of SRT."""

import os
from pathlib import Path

import numpy as np
import pytest

from fullrank.analysis.scaling.ladder import Ladder, Trace
from tests.sweeps.conftest import out, store, swept

__all__ = ["out", "store", "swept"]

TRUTH = {"E": 0.2, "A": 5.0, "alpha": 0.45, "B": 3.0, "beta": 0.4}
S_TRUTH = {"a": 0.3, "k": 0.5, "x0": 30.0, "c": 0.02}


def power_ladder(sign: float = 1.0, noise: float = 2e-4, sizes: int = 8, datas: int = 7) -> Ladder:
    """Runs whose best metric is `TRUTH` of their size and data, with a little noise."""
    draw, traces = np.random.default_rng(5), []
    for n in np.geomspace(1e4, 3e7, sizes):
        for t in np.geomspace(1e4, 1e8, datas):
            y = TRUTH["E"] - sign * (TRUTH["A"] * n ** -TRUTH["alpha"] + TRUTH["B"] * t ** -TRUTH["beta"])
            metric = np.array([0.5 * y, y]) if sign > 0 else np.array([2 * y, y])
            epochs = np.array([1.0, 2.0])
            traces.append(Trace(
                f"{n:.0f}x{t:.0f}", metric + noise * draw.standard_normal(), 6 * n * t * epochs, epochs, float(n),
                float(t), float(n), f"{t:.0f}",
            ))  # fmt: skip
    return Ladder(tuple(traces), "ndcg")


def sigmoid_ladder() -> Ladder:
    """Runs of one moment each on the sigmoid `S_TRUTH`, with a little noise."""
    flops, draw = np.geomspace(1e9, 1e17, 80), np.random.default_rng(3)
    y = S_TRUTH["a"] / (1 + np.exp(-S_TRUTH["k"] * (np.log(flops) - S_TRUTH["x0"]))) + S_TRUTH["c"]
    y = y + 5e-4 * draw.standard_normal(len(y))
    return Ladder(tuple(
        Trace(str(i), np.array([v]), np.array([f]), np.array([1.0]), 1e3 + i, 1e4 * (1 + i // 10), 1e3 + i)
        for i, (v, f) in enumerate(zip(y, flops, strict=True))
    ), "ndcg")  # fmt: skip


@pytest.fixture(scope="session")
def srt_csv() -> Path:
    """The published runs; the test is skipped with the reason where they are not there."""
    root = Path(os.environ.get("FULLRANK_DATA") or Path(__file__).resolve().parents[4] / "shared" / "data")
    file = root / "srt_runs.csv"
    if not file.is_file():
        pytest.skip(f"{file} is not there; set FULLRANK_DATA to the folder that holds srt_runs.csv")
    return file
