"""A run killed by SIGKILL in mid-epoch goes on to the same weights, bit for bit, dropout included."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from fullrank.core.readers import read_json
from fullrank.data.events.store import Store
from fullrank.run import Run
from fullrank.run.experiment import Experiment
from refusals import refused
from tests.training.conftest import Runs, same_weights, tiny, weights
from tests.training.several import WORKER

SETTINGS = ("training.checkpoint_minutes=0", "training.max_epochs=12", "training.schedule=cosine")


def start(store: Any, out: Path, mode: str, spec: Experiment) -> subprocess.Popen[bytes]:
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    words = [sys.executable, WORKER, store.path, mode, out, json.dumps(spec.dump())]
    return subprocess.Popen(list(map(str, words)), env=env)


def kill_in_mid_epoch(process: subprocess.Popen[bytes], out: Path, steps_per_epoch: int, after: int) -> int:
    """Kill at a checkpoint inside an epoch, behind step `after`; returns its step."""
    pointer = out / "checkpoints" / "last.json"
    until = time.monotonic() + 120
    while time.monotonic() < until:
        assert process.poll() is None, "the run ended before it could be killed"
        if pointer.exists():
            step = int(read_json(pointer)["folder"].removeprefix("step-"))
            if step > after and step % steps_per_epoch:
                process.send_signal(signal.SIGKILL)
                process.wait()
                return step
        time.sleep(0.001)
    raise AssertionError("no checkpoint in mid-epoch was seen")


@pytest.mark.process
def test_killed_twice_equals_unbroken(runs: Runs, market: Store, tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        unbroken = runs("unbroken", *SETTINGS)
    finally:
        torch.set_num_threads(threads)
    steps = unbroken.rows()[-1]["step"] // 12
    assert steps > 2
    out, spec = tmp_path / "killed", tiny(*SETTINGS)
    first = kill_in_mid_epoch(start(market, out, "fresh", spec), out, steps, after=steps)
    kill_in_mid_epoch(start(market, out, "resume", spec), out, steps, after=first + steps)
    assert start(market, out, "resume", spec).wait() == 0

    last = f"checkpoints/step-{12 * steps:09d}"
    assert same_weights(unbroken, out) and same_weights(unbroken.path / last, out / last)
    timed = ("tokens_per_s", "seconds", "validation_seconds")
    rows = [
        [{k: v for k, v in row.items() if k not in timed} for row in Run.open(p).rows()] for p in (unbroken.path, out)
    ]
    assert rows[0] == rows[1]


def test_another_seed_gives_other_weights(runs: Runs) -> None:
    a, b = (weights(runs(seed, "training.max_epochs=1", f"seed={seed}")) for seed in "01")
    assert not torch.equal(a["items.embedding.weight"], b["items.embedding.weight"])


def test_a_finished_run_stays_as_it_is_and_goes_on_with_its_own_spec_alone(run: Run, runs: Runs) -> None:
    out = Path(shutil.copytree(run.path, runs.home / "run"))
    again = runs("run", "training.max_epochs=2", resume=True)
    assert (out / "weights.safetensors").read_bytes() == (run.path / "weights.safetensors").read_bytes()
    assert again.rows() == run.rows()
    with refused("other-spec", "model.dim", 16, 8):
        runs("run", "training.max_epochs=2", "model.dim=8", resume=True)
    with refused("folder-holds-a-run", "resume=True"):
        runs("run", "training.max_epochs=2")


def test_a_folder_of_other_files_is_refused(runs: Runs) -> None:
    (runs.home / "run").mkdir()
    (runs.home / "run" / "thesis.tex").write_text("mine")
    with refused("foreign-files", "thesis.tex"):
        runs("run")
