"""`auto` is settled by the device before anything is written, and is what a named recipe trains in on CUDA."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fullrank.data.events.store import Store
from fullrank.experiment import find_experiment
from fullrank.ops import kernels
from fullrank.sweeps.jobs import Cell, make_jobs
from fullrank.training.fit import _trainer, fit
from fullrank.training.precision import best_precision, settled, usual_precision
from refusals import refused
from tests.training.conftest import Runs, tiny

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
AUTO = find_experiment("dcnv2").override("training.precision=auto")


@pytest.fixture
def multiplies(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Devices as they are, and those that multiply bf16."""
    monkeypatch.delenv("FULLRANK_BF16")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))

    def processor(amx: bool) -> None:
        monkeypatch.setattr(kernels, "_processor", lambda: {"amx_bf16": amx})

    return processor


def test_auto_is_what_the_device_multiplies_fast(multiplies: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    multiplies(False)
    assert best_precision(AUTO, CUDA) == "bf16" and best_precision(AUTO, CPU) == "fp32"
    assert settled(AUTO, CUDA).training.precision == "bf16" and settled(AUTO, CPU).training.precision == "fp32"
    assert settled(AUTO, CPU) == find_experiment("dcnv2"), "something else has changed"
    multiplies(True)
    assert settled(AUTO, CPU).training.precision == "bf16"
    baseline = find_experiment("popularity").override("training.precision=auto")
    for device in (CPU, CUDA):
        assert settled(baseline, device) == find_experiment("popularity")
    monkeypatch.setenv("FULLRANK_BF16", "0")
    assert best_precision(AUTO, CPU) == best_precision(AUTO, CUDA) == "fp32"
    assert settled(AUTO.override("training.precision=bf16"), CPU).training.precision == "bf16"
    monkeypatch.delenv("FULLRANK_BF16")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert best_precision(AUTO, CUDA) == "fp32"


def test_on_a_cpu_auto_is_bf16_for_what_was_measured(multiplies: Any) -> None:
    multiplies(True)
    for name, wanted in {"dcnv2": "bf16", **dict.fromkeys(("sasrec", "gru4rec", "finalmlp"), "fp32")}.items():
        assert best_precision(find_experiment(name), CPU) == wanted, name
        assert best_precision(find_experiment(name), CUDA) == "bf16", name


def test_a_run_says_what_it_was_and_goes_on_in_it(market: Store, multiplies: Any, runs: Runs) -> None:
    multiplies(False)
    run = runs("run", "training.precision=auto", "training.max_epochs=1")
    assert run.spec.training.precision == "fp32"
    assert usual_precision("sasrec", run.path, resume=True) == ("training.precision=fp32",)
    changed = tiny("training.precision=bf16", "training.max_epochs=1")
    with refused("other-spec", "training.precision"):
        fit(changed, market, run.path, resume=True, progress=False)
    half = fit(changed, market, run.path.with_name("half"), progress=False)
    assert usual_precision("sasrec", half.path, resume=True) == ("training.precision=bf16",)


def test_a_named_recipe_trains_in_auto(tmp_path: Path) -> None:
    new = tmp_path / "new"
    for resume in (False, True):
        assert usual_precision("sasrec", new, resume=resume) == ("training.precision=auto",)
    for written in ("mine.yaml", "module:function", AUTO, Path("sasrec")):
        assert usual_precision(written, new, resume=False) == ()


def test_a_grid_names_its_precision() -> None:
    cell = Cell.parse({"name": "a", "recipe": "sasrec", "set": {"training.precision": "auto"}})
    with refused("precision-differs-by-machine", "bf16"):
        make_jobs(cell, (0,), ("test",))


def test_lightning_gets_the_precision() -> None:
    import lightning

    for name, wanted in (("bf16", "bf16-mixed"), ("fp32", "32-true")):
        training = AUTO.override(f"training.precision={name}").training
        assert _trainer(training, 1, 1, lightning.Callback(), CPU).precision == wanted
