"""Two gloo processes give a click model the loss curve, weights and validation of one process."""

from pathlib import Path

import pytest

from fullrank.run import Run
from fullrank.training.fit import fit
from tests.training.clicks import shop, tiny
from tests.training.conftest import column, weights
from tests.training.test_ddp import torchrun


@pytest.mark.process
def test_two_processes_equal_one(tmp_path: Path, worker: Path) -> None:
    store = shop(tmp_path / "store")
    spec = tiny("training.max_epochs=2", "model.ranker.deep.dropout=0", "training.lr=1e-3")
    one = fit(spec, store, tmp_path / "one", progress=False)
    two = torchrun(worker, spec, store, tmp_path / "two")  # type: ignore[arg-type]
    assert column(two, "train/bce") == pytest.approx(column(one, "train/bce"), rel=1e-5)
    assert column(two, "validation/auc") == pytest.approx(column(one, "validation/auc"), abs=2e-3)
    near(one, two, 5e-3)


def near(one: Run, other: Run, share: float) -> None:
    """By norm: Adam blows up the rounding of single weights whose gradients are near zero."""
    a, b = weights(one), weights(other)
    for name in a:
        assert (a[name] - b[name]).norm() <= share * a[name].norm(), name


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.parametrize("update", ["lazy_adam", "rowwise_adagrad"])
@pytest.mark.parametrize("processes", [2, 4])
def test_tables_that_are_updated_by_row(update: str, processes: int, tmp_path: Path, worker: Path) -> None:
    """Losses and validation of one process; clipped, so that the norm is over the rows of all."""
    store = shop(tmp_path / "store")
    spec = tiny(
        f"model.embedding.update={update}", "training.max_epochs=2", "model.ranker.deep.dropout=0", "training.lr=1e-3",
        "training.clip_norm=0.05",
    )  # fmt: skip
    one = fit(spec, store, tmp_path / "one", progress=False)
    several = torchrun(worker, spec, store, tmp_path / "several", processes)  # type: ignore[arg-type]
    assert column(several, "train/bce") == pytest.approx(column(one, "train/bce"), rel=1e-6)
    assert column(several, "validation/auc") == pytest.approx(column(one, "validation/auc"), abs=1e-6)
    near(one, several, 1e-3)
