"""A run killed by SIGKILL in mid-epoch goes on to the same weights, bit for bit, dropout included."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from fullrank.api import train
from fullrank.core.readers import read_json
from fullrank.core.tensor_files import read_tensors
from fullrank.data.events.store import Store
from fullrank.run import Run
from refusals import refused
from tests.training.conftest import tiny

SETTINGS = ("training.checkpoint_minutes=0", "training.max_epochs=12", "training.schedule=cosine")


def start(worker: Path, store: Store, out: Path, mode: str) -> subprocess.Popen[bytes]:
    spec = json.dumps(tiny(*SETTINGS).dump())
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, str(worker), str(store.path), str(out), spec, mode], env=env)


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


@pytest.fixture
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.process
def test_killed_twice_equals_unbroken(market: Store, tmp_path: Path, worker: Path, one_thread: None) -> None:
    unbroken = train(tiny(*SETTINGS), market, tmp_path / "unbroken", progress=False)
    steps = unbroken.rows()[-1]["step"] // 12
    assert steps > 2
    out = tmp_path / "killed"
    kill_in_mid_epoch(start(worker, market, out, "fresh"), out, steps, after=steps)
    first = int(read_json(out / "checkpoints" / "last.json")["folder"].removeprefix("step-"))
    kill_in_mid_epoch(start(worker, market, out, "resume"), out, steps, after=first + steps)
    assert start(worker, market, out, "resume").wait() == 0

    for name in ("weights.safetensors", f"checkpoints/step-{12 * steps:09d}/weights.safetensors"):
        a, b = read_tensors(unbroken.path / name), read_tensors(out / name)
        assert a.keys() == b.keys()
        assert all(torch.equal(a[key], b[key]) for key in a), name
    timed = ("tokens_per_s", "seconds", "validation_seconds")
    rows = [
        [{k: v for k, v in row.items() if k not in timed} for row in Run.open(p).rows()] for p in (unbroken.path, out)
    ]
    assert rows[0] == rows[1]


def test_another_seed_gives_other_weights(market: Store, tmp_path: Path) -> None:
    runs = [
        train(tiny("training.max_epochs=1", f"seed={s}"), market, tmp_path / str(s), progress=False) for s in (0, 1)
    ]
    a, b = (read_tensors(run.path / "weights.safetensors") for run in runs)
    assert not torch.equal(a["items.embedding.weight"], b["items.embedding.weight"])


def test_resume_refuses_another_spec(market: Store, tmp_path: Path) -> None:
    train(tiny("training.max_epochs=1"), market, tmp_path / "run", progress=False)
    with refused("other-spec", "model.dim", 16, 8):
        train(tiny("training.max_epochs=1", "model.dim=8"), market, tmp_path / "run", resume=True, progress=False)


def test_a_finished_run_stays_as_it_is(market: Store, tmp_path: Path) -> None:
    run = train(tiny("training.max_epochs=1"), market, tmp_path / "run", progress=False)
    before = (run.path / "weights.safetensors").read_bytes(), run.rows()
    again = train(tiny("training.max_epochs=1"), market, tmp_path / "run", resume=True, progress=False)
    assert before == ((again.path / "weights.safetensors").read_bytes(), again.rows())


def test_a_run_is_not_overwritten_by_accident(market: Store, tmp_path: Path) -> None:
    train(tiny("training.max_epochs=1"), market, tmp_path / "run", progress=False)
    with refused("folder-holds-a-run", "resume=True"):
        train(tiny("training.max_epochs=1"), market, tmp_path / "run", progress=False)
    train(tiny("training.max_epochs=1"), market, tmp_path / "run", overwrite=True, progress=False)


def test_a_folder_of_other_files_is_refused(market: Store, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.tex").write_text("mine")
    with refused("foreign-files", "thesis.tex"):
        train(tiny(), market, tmp_path / "run", progress=False)
