"""Two gloo processes give a click model the loss curve, weights and validation of one process."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from fullrank.experiment import Experiment
from fullrank.training.fit import fit
from tests.training.clicks import shop, tiny
from tests.training.conftest import column, weights
from tests.training.several import torchrun_all


def several_equal_one(
    specs: Mapping[str, Experiment], place: Path, processes: int, loss=1e-6, auc=1e-6, share=1e-3
) -> None:
    """Weights by norm: Adam blows up the rounding of single ones whose gradients are near zero."""
    store = shop(place / "store")
    together = torchrun_all({place / name: spec for name, spec in specs.items()}, store, processes)
    for several in together:
        one = fit(specs[several.path.name], store, place / f"one-{several.path.name}", progress=False)
        assert column(several, "train/bce") == pytest.approx(column(one, "train/bce"), rel=loss)
        assert column(several, "validation/auc") == pytest.approx(column(one, "validation/auc"), abs=auc)
        a, b = weights(one), weights(several)
        for name in a:
            assert (a[name] - b[name]).norm() <= share * a[name].norm(), (several.path, name)


def short(*settings: str) -> Experiment:
    return tiny("training.max_epochs=2", "model.ranker.deep.dropout=0", "training.lr=1e-3", *settings)


@pytest.mark.process
def test_two_processes_equal_one(tmp_path: Path) -> None:
    several_equal_one({"dense": short()}, tmp_path, 2, loss=1e-5, auc=2e-3, share=5e-3)


@pytest.mark.cluster
@pytest.mark.parametrize("processes", [2, 4])
def test_tables_that_are_updated_by_row(processes: int, tmp_path: Path) -> None:
    """Clipped, so that the norm is over the rows of all."""
    updates = ("lazy_adam", "rowwise_adagrad")
    specs = {one: short(f"model.embedding.update={one}", "training.clip_norm=0.05") for one in updates}
    several_equal_one(specs, tmp_path, processes)
