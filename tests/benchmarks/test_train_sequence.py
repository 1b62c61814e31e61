"""The training benchmark compares equal things, and notices when they are not."""

import argparse
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks import train_sequence as benchmark
from benchmarks.data import tiny
from benchmarks.harness import Wrong
from benchmarks.twins.padded import IGNORED, padded, padded_loss
from benchmarks.twins.products import Products
from fullrank.data.batch import Batch
from fullrank.models.sequential.model import RecommenderModel
from refusals import refused


def scores_padding(model: RecommenderModel, batch: Batch) -> Tensor:
    inputs, targets = padded(batch, model.max_length)
    logits = model.encoder(model.items.embed(inputs.items), inputs).tokens @ model.items.all().T
    return F.cross_entropy(logits.flatten(0, 1), targets.clamp_min(0).flatten())


def forgets_the_last(model: RecommenderModel, batch: Batch) -> Tensor:
    return padded_loss(model, replace(batch, lengths=(batch.lengths - 1).clamp_min(2)))


def without_table_gradient(model: RecommenderModel, batch: Batch) -> Tensor:
    inputs, targets = padded(batch, model.max_length)
    logits = model.encoder(model.items.embed(inputs.items), inputs).tokens @ model.items.all().detach().T
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)


@pytest.mark.parametrize("fault", [scores_padding, forgets_the_last, without_table_gradient])
def test_a_wrong_twin_is_caught(fault: benchmark.LossOf) -> None:
    with pytest.raises(Wrong):
        benchmark.check(padded=fault)


class TwoProducts(Products):
    def run(self) -> tuple[Tensor, Tensor]:
        dx, _ = super().run()
        return dx, torch.zeros_like(self.dw)


class Stale(Products):
    def run(self) -> tuple[Tensor, Tensor]:
        super().run()
        before = self.dw.clone()
        super().run()
        return self.dx, self.dw.add_(before)


@pytest.mark.parametrize("fault", [TwoProducts, Stale])
def test_a_floor_that_computes_something_else_is_caught(fault: type[Products]) -> None:
    with pytest.raises(Wrong):
        benchmark.check(products=fault)


def test_rows_are_padded_to_the_longest_history() -> None:
    batch = Batch(torch.tensor([[4, 5, 6], [7, 8, 0]]), torch.tensor([3, 2]))
    inputs, targets = padded(batch, 5)
    assert inputs.items.tolist() == [[4, 5, 6, 0, 0], [7, 8, 0, 0, 0]] and inputs.lengths.tolist() == [2, 1]
    assert targets.tolist() == [[5, 6, *[IGNORED] * 3], [8, *[IGNORED] * 4]]


def test_beginnings_of_the_padded_order_are_even_samples() -> None:
    rows = [7, 1000, 30, 500, 80, 900, 60, 200, 100, 700, 400, 20]
    batches = [Batch(torch.zeros(n, 1, dtype=torch.long), torch.ones(n, dtype=torch.long)) for n in rows]
    order = benchmark.spread(batches)
    assert sorted(order) == list(range(len(rows)))
    for count in (4, 6, 9):
        mean = sum(rows[k] for k in order[:count]) / count
        assert mean == pytest.approx(sum(rows) / len(rows), rel=0.35)


def test_the_figures_at_a_tiny_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark, "beauty", lambda given, say: tiny())
    small = benchmark.experiment(dim=8, layers=1).override("training.batch_size=300")
    monkeypatch.setattr(benchmark, "experiment", lambda: small)
    monkeypatch.setattr(benchmark, "CHUNKS", (64, 128))
    options = argparse.Namespace(data=None, rounds=1, padded_seconds=1e9, set=["training.lr=0.002"])
    figures = benchmark.measure(options, lambda text: None)
    assert figures["padded_share_timed"] == 1 and not figures["padded_extrapolated"]
    assert figures["largest_loss_gap"] < benchmark.TOLERANCE
    assert figures["speedup_over_padded"] == pytest.approx(
        figures["padded_epoch_seconds"] / figures["epoch_seconds"], rel=1e-2
    )
    assert figures["epoch_over_gemm_floor"] == pytest.approx(
        figures["epoch_seconds_best"] / figures["gemm_floor_seconds"], rel=1e-2
    )
    parts = sum(figures[f"part_{name}_seconds"] for name in benchmark.PARTS)
    assert parts == pytest.approx(figures["epoch_seconds_best"], rel=0.2)
    assert figures["lightning_epoch_seconds"] > 0


def test_lightnings_epochs_stand_between_bare_ones() -> None:
    """A machine that slows down steadily slows both; the first and the last epoch do not count."""
    beside = benchmark.Beside(lambda: None)
    spent = [2.0, 3.3, 2.4, 3.9, 2.8, 99.0, 3.2]  # bare and Lightning's by turns
    beside.marks = [(s, 2 * s, int(100 * s)) for s in np.cumsum([50.0, *spent])]
    assert beside.figures() == pytest.approx({
        "lightning_epoch_seconds": 3.6, "lightning_over_epoch": 1.5, "lightning_cpu_over_epoch": 1.5,
        "lightning_page_faults": 360, "epoch_page_faults": 240,
    }, abs=1)  # fmt: skip
    assert beside.figures()["lightning_over_epoch"] == pytest.approx(1.5)


def against_padded(budget: float) -> dict[str, Any]:
    store, spec = tiny(), benchmark.experiment(dim=8, layers=1).override("training.batch_size=300")
    loader = benchmark.loader_of(spec, store, benchmark.Trainee(spec, store, benchmark.our_loss).model)
    batches = [loader.batch(k) for k in range(loader.steps_per_epoch)]
    return benchmark.against_padded(spec, store, loader, batches, budget, lambda text: None)


def test_a_short_budget_extrapolates_and_says_so() -> None:
    found = against_padded(1e-9)
    assert found["padded_extrapolated"] and 0 < found["padded_share_timed"] < 1


def test_too_little_memory_for_the_twin_is_said_before_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark.machine, "free_bytes", lambda: 1000)
    with refused("too-little-memory", "1,000"):
        against_padded(1e9)


def test_diverging_twins_give_no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark, "padded_loss", scores_padding)
    with pytest.raises(Wrong, match="losses"):
        against_padded(1e9)
