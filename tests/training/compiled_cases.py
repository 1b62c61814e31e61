"""`training.compile` changes how a model is computed, and neither its numbers nor the names of its weights.

`test_compiled.py` runs this file: torch.compile does not look through the checks of types that other tests run under.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

from fullrank.core.tensor_files import read_tensors
from fullrank.data.events.store import Store
from fullrank.models.sequential.model import RecommenderModel
from fullrank.run import Run, build_model
from fullrank.run.experiment import Training
from fullrank.training import prepared_model
from fullrank.training.fit import fit
from fullrank.training.prepared_model import compile_part
from refusals import refused
from tests.training.conftest import tiny

CPU = torch.device("cpu")


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A backend that computes the captured graphs as they are; how many operations each has."""
    sizes: list[int] = []

    def as_it_is(graph: Any, inputs: Any) -> Any:
        sizes.append(len(graph.graph.nodes))
        return graph

    monkeypatch.setattr(prepared_model, "BACKEND", as_it_is)
    return sizes


def test_a_compiled_run_is_the_same_run(market: Store, tmp_path: Path, backend: list[int]) -> None:
    settings = ("training.max_epochs=1", "model.encoder.layers=1")
    plain = fit(tiny(*settings, dropout=0.0), market, tmp_path / "plain", progress=False)
    assert not backend
    made = fit(tiny(*settings, "training.compile=true", dropout=0.0), market, tmp_path / "made", progress=False)
    assert backend and max(backend) > 20, "nothing of the encoder was captured"
    assert len(backend) < made.rows()[-1]["step"], f"compiled anew in every step: {len(backend)} graphs"
    a, b = (read_tensors(run.path / "weights.safetensors") for run in (plain, made))
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=1e-4, atol=1e-5)
    assert Run.open(made.path).spec.training.compile


def test_it_is_off_unless_asked_for(market: Store, backend: list[int]) -> None:
    model = build_model(tiny(), market.catalog, CPU)
    assert isinstance(model, RecommenderModel)
    compile_part(model, Training(), CPU)
    assert model.encoder._compiled_call_impl is None
    compile_part(model, Training(compile=True), CPU)
    assert model.encoder._compiled_call_impl is not None


def test_without_a_compiler_it_says_so_before_it_trains(
    market: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(graph: Any, inputs: Any) -> Any:
        raise RuntimeError("No working C++ compiler found")

    monkeypatch.setattr(prepared_model, "BACKEND", none)
    with refused("compiler-missing", "training.compile"):
        fit(tiny("training.compile=true"), market, tmp_path / "run", progress=False)
