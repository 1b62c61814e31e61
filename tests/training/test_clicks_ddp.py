"""Two gloo processes give a click model the loss curve, weights and validation of one process."""

from __future__ import annotations

from pathlib import Path

import pytest

from fullrank.core.tensor_files import read_tensors
from fullrank.run import Run
from fullrank.training.fit import fit
from fullrank.training.ranking_data import RankingData
from refusals import refused
from tests.training.clicks import shop, tiny
from tests.training.test_ddp import torchrun


def column(run: Run, name: str) -> list[float]:
    return [row[name] for row in run.rows() if row["event"] == "epoch"]


def test_two_processes_equal_one(tmp_path: Path, worker: Path) -> None:
    store = shop(tmp_path / "store")
    spec = tiny("training.max_epochs=2", "model.ranker.deep.dropout=0", "training.lr=1e-3")
    one = fit(spec, store, tmp_path / "one", progress=False)
    two = torchrun(worker, spec, store, tmp_path / "two")  # type: ignore[arg-type]
    assert column(two, "train/bce") == pytest.approx(column(one, "train/bce"), rel=1e-5)
    assert column(two, "validation/auc") == pytest.approx(column(one, "validation/auc"), abs=2e-3)
    a, b = (read_tensors(run.path / "weights.safetensors") for run in (one, two))
    for name in a:  # by norm: Adam blows up the rounding of single weights whose gradients are near zero
        assert (a[name] - b[name]).norm() <= 5e-3 * a[name].norm(), name


def test_sparse_gradients_need_one_process(tmp_path: Path) -> None:
    store = shop(tmp_path / "store")
    spec = tiny("model.embedding.update=lazy_adam")
    model = spec.model.build(store.fields)  # type: ignore[attr-defined]
    with refused("one-process-only"):
        RankingData(spec, store).loader(model, world=2)
