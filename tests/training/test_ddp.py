"""Two gloo processes give the loss curve and weights of one process at the same global batch (dropout 0)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fullrank.api import train
from fullrank.core.tensor_files import read_tensors
from fullrank.data.events.store import Store
from fullrank.experiment import Experiment
from fullrank.run import Run
from tests.training.conftest import tiny

CASES = {
    "next_item": (),
    "accumulated": ("training.accumulate=2",),
    "sampled": ("model.loss={kind: sampled_softmax, negatives: {count: 8, share: query, popularity: 1.0}}",),
    "cloze": ("model.task=cloze", "model.encoder.attention.causal=false"),
}


def curve(run: Run) -> list[float]:
    return [row["train/loss"] for row in run.rows() if row["event"] == "epoch"]


@pytest.mark.parametrize("case", CASES)
def test_micro_batches_add_up(case: str, market: Store, tmp_path: Path) -> None:
    spec = tiny(*CASES[case], "training.max_epochs=2", dropout=0.0)
    whole = train(spec.override("training.accumulate=1"), market, tmp_path / "whole", progress=False)
    parts = train(spec.override("training.accumulate=3"), market, tmp_path / "parts", progress=False)
    assert curve(parts) == pytest.approx(curve(whole), rel=1e-5)


# Of the others the sums are the same (test_micro_batches_add_up), and two processes are slow to begin.
OFTEN = ("next_item", "accumulated")


@pytest.mark.process
@pytest.mark.parametrize("case", [pytest.param(c, marks=() if c in OFTEN else pytest.mark.slow) for c in CASES])
def test_two_processes_equal_one(case: str, market: Store, tmp_path: Path, worker: Path) -> None:
    spec = tiny(*CASES[case], "training.max_epochs=2", dropout=0.0)
    one = train(spec, market, tmp_path / "one", progress=False)
    two = torchrun(worker, spec, market, tmp_path / "two")
    assert curve(two) == pytest.approx(curve(one), rel=1e-5)
    a, b = (read_tensors(run.path / "weights.safetensors") for run in (one, two))
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=1e-3, atol=1e-4)
    last = [row for row in two.rows() if row["event"] == "epoch"][-1]
    assert last["validation/ndcg@10"] == pytest.approx(
        [row for row in one.rows() if row["event"] == "epoch"][-1]["validation/ndcg@10"], abs=2e-3
    )


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


def test_a_lost_shard_is_seen(market: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: a shard's loss over its own count instead of the global one changes the curve."""
    from fullrank.data.events.loader import Loader

    spec = tiny("training.max_epochs=2", "training.accumulate=3", dropout=0.0)
    right = train(spec, market, tmp_path / "right", progress=False)
    batch = Loader.batch

    def local(self: Loader, k: int, shard: int = 0):  # type: ignore[no-untyped-def]
        from dataclasses import replace

        return replace(batch(self, k, shard), counts=None)

    monkeypatch.setattr(Loader, "batch", local)
    wrong = train(spec, market, tmp_path / "wrong", progress=False)
    assert curve(wrong) != pytest.approx(curve(right), rel=1e-2)


def test_threads_are_recorded(market: Store, tmp_path: Path) -> None:
    run = train(tiny("training.max_epochs=1"), market, tmp_path / "run", progress=False)
    assert run.manifest["threads"] == torch.get_num_threads()
