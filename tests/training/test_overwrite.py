"""`--overwrite` loses nothing: the old run stays until the new one has a checkpoint. One process at a time trains."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from fullrank.api import train
from fullrank.core import files
from fullrank.core.errors import UserError
from fullrank.core.files import NotWritten
from fullrank.core.locks import folder_lock
from fullrank.core.tensor_files import read_tensors
from fullrank.data.events.store import Store
from fullrank.models.sequential.baselines.popularity import PopularityModel
from fullrank.run import Run
from fullrank.training import TrainState, checkpoint
from refusals import refused
from tests.training.conftest import tiny

SHORT = "training.max_epochs=2"
NEW = tiny(SHORT, "seed=9")


@pytest.fixture(scope="module")
def good(market: Store, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tiny(SHORT), market, tmp_path_factory.mktemp("old") / "run", progress=False).path


@pytest.fixture
def old(good: Path, tmp_path: Path) -> Path:
    """A run with a file and a folder of its owner's in it."""
    shutil.copytree(good, tmp_path / "run")
    (tmp_path / "run" / "thesis.tex").write_text("mine")
    (tmp_path / "run" / "notes").mkdir()
    (tmp_path / "run" / "notes" / "a.txt").write_text("mine too")
    return tmp_path / "run"


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


class Eyes:
    """What is in the place, and where training writes, after each epoch; optionally the end of it all."""

    def __init__(self, place: Path, ends: type[BaseException] | None = None):
        self.place, self.ends = place, ends
        self.seeds: list[int] = []
        self.beside: list[bool] = []

    def on_epoch(self, state: TrainState) -> dict[str, Any]:
        self.seeds.append(Run.open(self.place).spec.seed)
        self.beside.append(state.out != self.place)
        if self.ends is not None:
            raise self.ends("told to")
        return {}


def test_the_old_run_is_there_until_the_first_checkpoint(old: Path, market: Store) -> None:
    eyes = Eyes(old)
    made = train(NEW, market, old, overwrite=True, callbacks=[eyes], progress=False)
    assert eyes.seeds == [0, 9] and eyes.beside == [True, False]
    assert made.spec.seed == 9 and made.path == old and left(old.parent) == ["run"]


def test_what_is_not_the_runs_survives(old: Path, market: Store) -> None:
    train(NEW, market, old, overwrite=True, progress=False)
    assert (old / "thesis.tex").read_text() == "mine" and (old / "notes" / "a.txt").read_text() == "mine too"


@pytest.mark.parametrize("ends", [RuntimeError, KeyboardInterrupt, UserError])
def test_an_end_before_the_first_checkpoint_changes_nothing(
    ends: type[BaseException], old: Path, market: Store
) -> None:
    before = content(old)
    with pytest.raises(ends):
        train(NEW, market, old, overwrite=True, callbacks=[Eyes(old, ends)], progress=False)
    assert content(old) == before and left(old.parent) == ["run"]


@pytest.mark.parametrize("settings", [("training.betas=[2,3]",), ("training.lr=.inf",), ("training.precision=bf17",)])
def test_settings_are_checked_before(settings: tuple[str, ...], old: Path, market: Store) -> None:
    """Point 5 of the review: the weights were gone before the optimizer refused its betas."""
    before = content(old)
    with pytest.raises(ValueError):
        train(tiny(SHORT, *settings), market, old, overwrite=True, progress=False)
    assert content(old) == before and left(old.parent) == ["run"]


def test_an_overwritten_run_is_that_of_an_empty_folder(old: Path, market: Store, tmp_path: Path) -> None:
    fresh = train(NEW, market, tmp_path / "fresh", loggers=("csv",), progress=False)
    made = train(NEW, market, old, overwrite=True, loggers=("csv",), progress=False)
    a, b = (read_tensors(run.path / "weights.safetensors") for run in (fresh, made))
    assert a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
    losses = [[(row["event"], row["step"], row.get("train/loss")) for row in run.rows()] for run in (fresh, made)]
    assert losses[0] == losses[1]
    tables = [
        list(csv.DictReader((run.path / "logs" / "csv" / "metrics.csv").read_text().splitlines()))
        for run in (fresh, made)
    ]
    assert len(tables[0]) == len(tables[1]) == 2, "the epoch before the exchange is among them"
    assert [row["epoch/train/loss"] for row in tables[0]] == [row["epoch/train/loss"] for row in tables[1]]


def test_a_baseline_that_fails_leaves_the_old_run(old: Path, market: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    before = content(old)

    def fails(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patched, pytest.raises(MemoryError):
        patched.setattr(PopularityModel, "fit", fails)
        train("popularity", market, old, overwrite=True, progress=False)
    assert content(old) == before and left(old.parent) == ["run"]
    assert train("popularity", market, old, overwrite=True, progress=False).spec.recipe == "popularity"


def start(worker: Path, store: Store, out: Path, mode: str, *settings: str) -> subprocess.Popen[bytes]:
    spec = json.dumps(tiny("seed=9", *settings).dump())
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, str(worker), str(store.path), str(out), spec, mode], env=env)


def wait_for(process: subprocess.Popen[bytes], found: Any) -> None:
    until = time.monotonic() + 120
    while not found():
        assert process.poll() is None and time.monotonic() < until
        time.sleep(0.005)


@pytest.mark.process
def test_killed_before_the_first_checkpoint(old: Path, market: Store, worker: Path) -> None:
    """The old run is whole, and what the killed process left goes with the next one that trains there."""
    before = content(old)
    # an epoch of so many steps does not end before the kill
    process = start(worker, market, old, "overwrite", "training.batch_size=1", "training.max_epochs=1")
    wait_for(process, lambda: any(p.joinpath("manifest.json").exists() for p in old.parent.glob(".run.*.part")))
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert content(old) == before and Run.open(old).spec.seed == 0
    assert len(left(old.parent)) == 3, "the run, the lock file and the part"
    assert train(NEW, market, old, overwrite=True, progress=False).spec.seed == 9
    assert left(old.parent) == ["run"]


@pytest.mark.process
def test_a_run_in_training_is_refused_to_others(market: Store, tmp_path: Path, worker: Path) -> None:
    """Point 7 of the review: of two that resumed at once, one died, and the log had rows twice."""
    process = start(worker, market, tmp_path / "run", "fresh", "training.max_epochs=4000")
    wait_for(process, (tmp_path / "run" / "checkpoints" / "last.json").exists)
    try:
        for how in ({"resume": True}, {"overwrite": True}, {}):
            with refused("folder-locked", tmp_path / "run", "train", process.pid):
                train(tiny("seed=9", "training.max_epochs=4000"), market, tmp_path / "run", progress=False, **how)
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()
    rows = [row["epoch"] for row in Run.open(tmp_path / "run").rows() if row["event"] == "epoch"]
    assert rows == sorted(set(rows))


def test_a_thread_is_refused_too(market: Store, tmp_path: Path) -> None:
    with folder_lock(tmp_path / "run", "train"), ThreadPoolExecutor(1) as other:
        with refused("folder-locked"):
            other.submit(train, tiny(SHORT), market, tmp_path / "run", progress=False).result()


def test_a_checkpoint_that_does_not_fit_on_the_disk(
    market: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one before stays, half of the new one does not, and the run goes on from there."""
    write = checkpoint.write_tensors

    def full(path: Path, tensors: dict[str, torch.Tensor]) -> None:
        if path.name == "optimizer.safetensors" and any(path.parents[1].glob("last.json")):
            raise NotWritten(path, "No space left on device")
        write(path, tensors)

    with monkeypatch.context() as patched, refused("not-written", "No space left on device"):
        patched.setattr(checkpoint, "write_tensors", full)
        train(NEW, market, tmp_path / "run", progress=False)
    kept = json.loads((tmp_path / "run" / "checkpoints" / "last.json").read_text())["folder"]
    assert left(tmp_path / "run" / "checkpoints") == ["last.json", kept]
    cut = train(NEW, market, tmp_path / "run", resume=True, progress=False)
    whole = train(NEW, market, tmp_path / "whole", progress=False)
    a, b = (read_tensors(run.path / "weights.safetensors") for run in (cut, whole))
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_an_exchange_that_the_disk_refuses(old: Path, market: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    before = content(old)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "_swap", full)
    with refused("not-written", old, "No space left on device"):
        train(NEW, market, old, overwrite=True, progress=False)
    assert content(old) == before and left(old.parent) == ["run"]


def test_without_an_atomic_exchange(old: Path, market: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "exchange", lambda new, out: False)
    assert train(NEW, market, old, overwrite=True, progress=False).spec.seed == 9
    assert left(old.parent) == ["run"] and (old / "thesis.tex").exists()


@pytest.mark.parametrize("how", [{}, {"resume": True}])
def test_a_kill_in_the_first_write_blocks_nothing(how: dict[str, bool], market: Store, tmp_path: Path) -> None:
    """Point 10 of the review: what was left of spec.json was taken for a file of others."""
    (tmp_path / "run" / f".spec.json.{2**22 + 1}-1-00000000.part").mkdir(parents=True)
    (tmp_path / "run" / f".spec.json.{2**22 + 1}.part").write_text("{")
    (tmp_path / ".run.lock").write_text("")
    made = train(tiny(SHORT), market, tmp_path / "run", progress=False, **how)
    assert left(tmp_path) == ["run"] and not [name for name in left(made.path) if name.startswith(".")]


def test_a_run_that_lost_its_manifest_is_not_cleared(old: Path, market: Store) -> None:
    for name in ("manifest.json", "thesis.tex"):
        (old / name).unlink()
    shutil.rmtree(old / "notes")
    before = content(old)
    with refused("folder-holds-a-run", old, "overwrite=True"):
        train(NEW, market, old, progress=False)
    assert content(old) == before
    train(NEW, market, old, overwrite=True, progress=False)


@pytest.mark.process
def test_processes_overwrite_together(old: Path, market: Store, worker: Path) -> None:
    spec = json.dumps(tiny("training.max_epochs=1", "seed=9", dropout=0.0).dump())
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(worker)]
    done = subprocess.run(
        [*command, str(market.path), str(old), spec, "overwrite"],
        env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert Run.open(old).spec.seed == 9 and left(old.parent) == ["run"]
