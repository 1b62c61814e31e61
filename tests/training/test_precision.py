"""`auto` is settled by the device before anything is written, and is what a named recipe trains in on CUDA."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fullrank.data.events.store import Store
from fullrank.experiment import find_experiment
from fullrank.sweeps.jobs import Cell, make_jobs
from fullrank.training import precision
from fullrank.training.fit import _trainer, fit
from fullrank.training.precision import best_precision, settled, usual_precision
from refusals import refused
from tests.training.conftest import Runs, tiny

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
AUTO = find_experiment("sasrec").override("training.precision=auto")


@pytest.fixture
def capability(monkeypatch: pytest.MonkeyPatch) -> Any:
    return lambda *found: monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: found)


def test_auto_is_what_the_device_multiplies_fast(capability: Any) -> None:
    capability(8, 0)
    assert best_precision(CUDA) == "bf16" and best_precision(CPU) == "fp32"
    assert settled(AUTO, CUDA).training.precision == "bf16" and settled(AUTO, CPU).training.precision == "fp32"
    assert settled(AUTO, CPU) == find_experiment("sasrec"), "something else has changed"
    baseline = find_experiment("popularity").override("training.precision=auto")
    assert settled(baseline, CUDA) == find_experiment("popularity")
    capability(7, 5)
    assert best_precision(CUDA) == "fp32"
    assert settled(AUTO.override("training.precision=bf16"), CPU).training.precision == "bf16"


def test_a_run_says_what_it_was_and_goes_on_in_it(market: Store, monkeypatch: Any, runs: Runs) -> None:
    run = runs("run", "training.precision=auto", "training.max_epochs=1")
    assert run.spec.training.precision == "fp32"
    assert usual_precision("sasrec", run.path, CUDA, resume=True) == ("training.precision=fp32",)
    monkeypatch.setattr(precision, "best_precision", lambda device: "bf16")
    with refused("other-spec", "training.precision"):
        fit(
            tiny("training.precision=auto", "training.max_epochs=1"), market, run.path, resume=True, progress=False
        )  # fmt: skip


def test_a_named_recipe_trains_in_auto_on_cuda_alone(tmp_path: Path) -> None:
    new = tmp_path / "new"
    assert usual_precision("sasrec", new, CUDA, resume=False) == ("training.precision=auto",)
    assert usual_precision("sasrec", new, CUDA, resume=True) == ("training.precision=auto",)
    assert usual_precision("sasrec", new, CPU, resume=False) == ()
    for written in ("mine.yaml", "module:function", AUTO, Path("sasrec")):
        assert usual_precision(written, new, CUDA, resume=False) == ()


def test_a_grid_names_its_precision() -> None:
    cell = Cell.parse({"name": "a", "recipe": "sasrec", "set": {"training.precision": "auto"}})
    with refused("precision-differs-by-machine", "bf16"):
        make_jobs(cell, (0,), ("test",))


def test_lightning_gets_the_precision() -> None:
    import lightning

    for name, wanted in (("bf16", "bf16-mixed"), ("fp32", "32-true")):
        training = AUTO.override(f"training.precision={name}").training
        assert _trainer(training, 1, 1, lightning.Callback(), CPU).precision == wanted
