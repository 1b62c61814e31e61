"""Two gloo processes give the loss curve and weights of one process at the same global batch (dropout 0)."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fullrank.api import train
from fullrank.data.events.loader import Loader
from fullrank.data.events.store import Store
from fullrank.run.experiment import Experiment
from fullrank.training.fit import fit
from tests.training.clicks import shop
from tests.training.clicks import tiny as tiny_ranker
from tests.training.conftest import Runs, column, tiny, weights
from tests.training.several import torchrun_all

CASES = {
    "next_item": (),
    "accumulated": ("training.accumulate=2",),
    "sampled": ("model.loss={kind: sampled_softmax, negatives: {count: 8, share: query, popularity: 1.0}}",),
    "cloze": ("model.task=cloze", "model.encoder.attention.causal=false"),
    "features": ("model.features={event: [hour, age], request: [weekday, gap], fuse: gate}",),
}


@pytest.mark.parametrize("case", CASES)
def test_micro_batches_add_up(case: str, runs: Runs) -> None:
    spec = (*CASES[case], "training.max_epochs=2")
    whole, parts = (runs(n, *spec, f"training.accumulate={n}", dropout=0.0) for n in "13")
    assert column(parts) == pytest.approx(column(whole), rel=1e-5)


@pytest.mark.process
def test_two_processes_equal_one(market: Store, tmp_path: Path) -> None:
    specs = {tmp_path / case: tiny(*CASES[case], "training.max_epochs=2", dropout=0.0) for case in CASES}
    for two in torchrun_all(specs, market, 2):
        one = train(specs[two.path], market, tmp_path / f"one-{two.path.name}", progress=False)
        assert column(two) == pytest.approx(column(one), rel=1e-5)
        torch.testing.assert_close(weights(one), weights(two), rtol=1e-3, atol=1e-4)
        last = (column(run, "validation/ndcg@10")[-1] for run in (two, one))
        assert next(last) == pytest.approx(next(last), abs=2e-3)


def test_a_lost_shard_is_seen(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: a shard's loss over its own count instead of the global one changes the curve."""
    spec = ("training.max_epochs=2", "training.accumulate=3")
    right, batch = runs("right", *spec, dropout=0.0), Loader.batch
    assert right.manifest["threads"] == torch.get_num_threads()
    monkeypatch.setattr(Loader, "batch", lambda self, k, shard=0: replace(batch(self, k, shard), counts=None))
    wrong = runs("wrong", *spec, dropout=0.0)
    assert column(wrong) != pytest.approx(column(right), rel=1e-2)


def rankers_equal(
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
    return tiny_ranker("training.max_epochs=2", "model.ranker.deep.dropout=0", "training.lr=1e-3", *settings)


@pytest.mark.process
def test_two_processes_train_a_ranker_as_one(tmp_path: Path) -> None:
    rankers_equal({"dense": short()}, tmp_path, 2, loss=1e-5, auc=2e-3, share=5e-3)


@pytest.mark.cluster
@pytest.mark.parametrize("processes", [2, 4])
def test_tables_that_are_updated_by_row(processes: int, tmp_path: Path) -> None:
    """Clipped, so that the norm is over the rows of all."""
    updates = ("lazy_adam", "rowwise_adagrad")
    specs = {one: short(f"model.embedding.update={one}", "training.clip_norm=0.05") for one in updates}
    rankers_equal(specs, tmp_path, processes)
