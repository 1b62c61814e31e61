"""Two gloo processes give a click model the loss curve, weights and validation of one process."""

from pathlib import Path

import pytest

from fullrank.training.fit import fit
from tests.training.clicks import shop, tiny
from tests.training.conftest import column, weights
from tests.training.test_ddp import torchrun


def check_equal(place: Path, worker: Path, processes: int, loss: float, auc: float, share: float, *more: str) -> None:
    """Weights by norm: Adam blows up the rounding of single ones whose gradients are near zero."""
    store = shop(place / "store")
    spec = tiny("training.max_epochs=2", "model.ranker.deep.dropout=0", "training.lr=1e-3", *more)
    one = fit(spec, store, place / "one", progress=False)
    several = torchrun(worker, spec, store, place / "several", processes)  # type: ignore[arg-type]
    assert column(several, "train/bce") == pytest.approx(column(one, "train/bce"), rel=loss)
    assert column(several, "validation/auc") == pytest.approx(column(one, "validation/auc"), abs=auc)
    a, b = weights(one), weights(several)
    for name in a:
        assert (a[name] - b[name]).norm() <= share * a[name].norm(), name


@pytest.mark.process
def test_two_processes_equal_one(tmp_path: Path, worker: Path) -> None:
    check_equal(tmp_path, worker, 2, 1e-5, 2e-3, 5e-3)


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.parametrize("update", ["lazy_adam", "rowwise_adagrad"])
@pytest.mark.parametrize("processes", [2, 4])
def test_tables_that_are_updated_by_row(update: str, processes: int, tmp_path: Path, worker: Path) -> None:
    """Losses and validation of one process; clipped, so that the norm is over the rows of all."""
    settings = (f"model.embedding.update={update}", "training.clip_norm=0.05")
    check_equal(tmp_path, worker, processes, 1e-6, 1e-6, 1e-3, *settings)
