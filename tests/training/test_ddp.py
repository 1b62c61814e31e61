"""Two gloo processes give the loss curve and weights of one process at the same global batch (dropout 0)."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fullrank.api import train
from fullrank.data.events.loader import Loader
from fullrank.data.events.store import Store
from fullrank.experiment import Experiment
from fullrank.run import Run
from tests.training.conftest import Runs, column, tiny, weights

CASES = {
    "next_item": (),
    "accumulated": ("training.accumulate=2",),
    "sampled": ("model.loss={kind: sampled_softmax, negatives: {count: 8, share: query, popularity: 1.0}}",),
    "cloze": ("model.task=cloze", "model.encoder.attention.causal=false"),
}


@pytest.mark.parametrize("case", CASES)
def test_micro_batches_add_up(case: str, runs: Runs) -> None:
    spec = (*CASES[case], "training.max_epochs=2")
    whole, parts = (runs(n, *spec, f"training.accumulate={n}", dropout=0.0) for n in "13")
    assert column(parts) == pytest.approx(column(whole), rel=1e-5)


# Of the others the sums are the same (test_micro_batches_add_up), and two processes are slow to begin.
OFTEN = ("next_item", "accumulated")


@pytest.mark.process
@pytest.mark.parametrize("case", [pytest.param(c, marks=() if c in OFTEN else pytest.mark.slow) for c in CASES])
def test_two_processes_equal_one(case: str, market: Store, tmp_path: Path, worker: Path) -> None:
    spec = tiny(*CASES[case], "training.max_epochs=2", dropout=0.0)
    one = train(spec, market, tmp_path / "one", progress=False)
    two = torchrun(worker, spec, market, tmp_path / "two")
    assert column(two) == pytest.approx(column(one), rel=1e-5)
    torch.testing.assert_close(weights(one), weights(two), rtol=1e-3, atol=1e-4)
    last = (column(run, "validation/ndcg@10")[-1] for run in (two, one))
    assert next(last) == pytest.approx(next(last), abs=2e-3)


def torchrun(worker: Path, spec: Experiment, store: Store, out: Path, processes: int = 2, mode: str = "fresh") -> Run:
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    done = subprocess.run(
        [*command, str(worker), str(store.path), str(out), json.dumps(spec.dump()), mode],
        env=env,
        capture_output=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    return Run.open(out)


def test_a_lost_shard_is_seen(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: a shard's loss over its own count instead of the global one changes the curve."""
    spec = ("training.max_epochs=2", "training.accumulate=3")
    right, batch = runs("right", *spec, dropout=0.0), Loader.batch
    assert right.manifest["threads"] == torch.get_num_threads()
    monkeypatch.setattr(Loader, "batch", lambda self, k, shard=0: replace(batch(self, k, shard), counts=None))
    wrong = runs("wrong", *spec, dropout=0.0)
    assert column(wrong) != pytest.approx(column(right), rel=1e-2)
