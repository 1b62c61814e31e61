"""`--overwrite` loses nothing: the old run stays until the new one has a checkpoint. One process at a time trains."""

import json
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch

from folders import full, left
from fullrank.api import train
from fullrank.core import files
from fullrank.core.errors import UserError
from fullrank.core.files import NotWritten
from fullrank.core.locks import folder_lock
from fullrank.data.events.store import Store
from fullrank.models.sequential.baselines.popularity import PopularityModel
from fullrank.run import Run, checkpoint
from fullrank.training import TrainState
from refusals import refused
from tests.training.conftest import Runs, content, same_weights, tiny
from tests.training.several import torchrun
from tests.training.test_resume import start as start_spec

SHORT = "training.max_epochs=2"
NEW = tiny(SHORT, "seed=9")


@pytest.fixture
def old(run: Run, tmp_path: Path) -> Path:
    """A run with a file and a folder of its owner's in it."""
    shutil.copytree(run.path, tmp_path / "run")
    (tmp_path / "run" / "thesis.tex").write_text("mine")
    (tmp_path / "run" / "notes").mkdir()
    (tmp_path / "run" / "notes" / "a.txt").write_text("mine too")
    return tmp_path / "run"


@contextmanager
def unchanged(run: Path) -> Iterator[None]:
    before = content(run)
    yield
    assert content(run) == before and left(run.parent) == ["run"]


@pytest.fixture
def replace(old: Path, market: Store) -> Callable[..., Run]:
    """Train `NEW` over the old run."""
    return partial(train, NEW, market, old, overwrite=True, progress=False)


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


def test_the_old_run_is_there_until_the_first_checkpoint(old: Path, replace: Callable[..., Run]) -> None:
    eyes = Eyes(old)
    made = replace(callbacks=[eyes])
    assert eyes.seeds == [0, 9] and eyes.beside == [True, False]
    assert made.spec.seed == 9 and made.path == old and left(old.parent) == ["run"]
    assert (old / "thesis.tex").read_text() == "mine" and (old / "notes" / "a.txt").read_text() == "mine too"


@pytest.mark.parametrize("ends", [RuntimeError, KeyboardInterrupt, UserError])
def test_an_end_before_the_first_checkpoint_changes_nothing(
    ends: type[BaseException], old: Path, replace: Callable[..., Run]
) -> None:
    with unchanged(old), pytest.raises(ends):
        replace(callbacks=[Eyes(old, ends)])


@pytest.mark.parametrize("setting", ["training.betas=[2,3]", "training.lr=.inf", "training.precision=bf17"])
def test_settings_are_checked_before(setting: str, old: Path, replace: Callable[..., Run]) -> None:
    """Point 5 of the review: the weights were gone before the optimizer refused its betas."""
    with unchanged(old), pytest.raises(ValueError):
        replace(set=[setting])


def test_an_overwritten_run_is_that_of_an_empty_folder(replace: Callable[..., Run], runs: Runs) -> None:
    fresh, made = runs("fresh", SHORT, "seed=9", loggers=("csv",)), replace(loggers=("csv",))
    assert same_weights(fresh, made)
    losses = [[(row["event"], row["step"], row.get("train/loss")) for row in run.rows()] for run in (fresh, made)]
    assert losses[0] == losses[1]
    tables = [pl.read_csv(run.path / "logs" / "csv" / "metrics.csv")["epoch/train/loss"] for run in (fresh, made)]
    assert tables[0].equals(tables[1]) and len(tables[0]) == 2, "the epoch before the exchange is among them"


def test_a_baseline_that_fails_leaves_the_old_run(old: Path, market: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise MemoryError

    baseline = partial(train, "popularity", market, old, overwrite=True, progress=False)
    with unchanged(old), monkeypatch.context() as patched, pytest.raises(MemoryError):
        patched.setattr(PopularityModel, "fit", fails)
        baseline()
    assert baseline().spec.recipe == "popularity"


def start(store: Store, out: Path, mode: str, *settings: str) -> subprocess.Popen[bytes]:
    return start_spec(store, out, mode, tiny("seed=9", *settings))


def wait_for(process: subprocess.Popen[bytes], found: Any) -> None:
    until = time.monotonic() + 120
    while not found():
        assert process.poll() is None and time.monotonic() < until
        time.sleep(0.005)


@pytest.mark.process
def test_killed_before_the_first_checkpoint(old: Path, market: Store) -> None:
    """The old run is whole, and what the killed process left goes with the next one that trains there."""
    before = content(old)
    # an epoch of so many steps does not end before the kill
    process = start(market, old, "overwrite", "training.batch_size=1", "training.max_epochs=1")
    wait_for(process, lambda: any(p.joinpath("manifest.json").exists() for p in old.parent.glob(".run.*.part")))
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert content(old) == before and Run.open(old).spec.seed == 0
    assert len(left(old.parent)) == 3, "the run, the lock file and the part"
    assert train(NEW, market, old, overwrite=True, progress=False).spec.seed == 9
    assert left(old.parent) == ["run"]


@pytest.mark.process
def test_a_run_in_training_is_refused_to_others(market: Store, tmp_path: Path, runs: Runs) -> None:
    """Point 7 of the review: of two that resumed at once, one died, and the log had rows twice."""
    process = start(market, tmp_path / "run", "fresh", "training.max_epochs=4000")
    wait_for(process, (tmp_path / "run" / "checkpoints" / "last.json").exists)
    try:
        for how in ({"resume": True}, {"overwrite": True}, {}):
            with refused("folder-locked", tmp_path / "run", "train", process.pid):
                runs("run", "seed=9", "training.max_epochs=4000", **how)
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()
    rows = [row["epoch"] for row in Run.open(tmp_path / "run").rows() if row["event"] == "epoch"]
    assert rows == sorted(set(rows))


def test_a_thread_is_refused_too(runs: Runs) -> None:
    with folder_lock(runs.home / "run", "train"), ThreadPoolExecutor(1) as other:
        with refused("folder-locked"):
            other.submit(runs, "run", SHORT).result()


def test_a_checkpoint_that_does_not_fit_on_the_disk(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one before stays, half of the new one does not, and the run goes on from there."""
    write = checkpoint.write_tensors

    def full(path: Path, tensors: dict[str, torch.Tensor]) -> None:
        if path.name == "optimizer.safetensors" and any(path.parents[1].glob("last.json")):
            raise NotWritten(path, "No space left on device")
        write(path, tensors)

    with monkeypatch.context() as patched, refused("not-written", "No space left on device"):
        patched.setattr(checkpoint, "write_tensors", full)
        runs("run", SHORT, "seed=9")
    kept = json.loads((tmp_path / "run" / "checkpoints" / "last.json").read_text())["folder"]
    assert left(tmp_path / "run" / "checkpoints") == ["last.json", kept]
    cut = runs("run", SHORT, "seed=9", resume=True)
    whole = runs("whole", SHORT, "seed=9")
    assert same_weights(cut, whole)


def test_an_exchange_that_the_disk_refuses(
    old: Path, replace: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_swap", full)
    with unchanged(old), refused("not-written", old, "No space left on device"):
        replace()


def test_without_an_atomic_exchange(old: Path, replace: Callable[..., Run], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "exchange", lambda new, out: False)
    assert replace().spec.seed == 9
    assert left(old.parent) == ["run"] and (old / "thesis.tex").exists()


@pytest.mark.parametrize("how", [{}, {"resume": True}])
def test_a_kill_in_the_first_write_blocks_nothing(how: dict[str, bool], tmp_path: Path, runs: Runs) -> None:
    """Point 10 of the review: what was left of spec.json was taken for a file of others."""
    (tmp_path / "run" / f".spec.json.{2**22 + 1}-1-00000000.part").mkdir(parents=True)
    (tmp_path / "run" / f".spec.json.{2**22 + 1}.part").write_text("{")
    (tmp_path / ".run.lock").write_text("")
    made = runs("run", SHORT, **how)
    assert left(tmp_path) == ["run"] and not [name for name in left(made.path) if name.startswith(".")]


def test_a_run_that_lost_its_manifest_is_not_cleared(old: Path, market: Store, replace: Callable[..., Run]) -> None:
    for name in ("manifest.json", "thesis.tex"):
        (old / name).unlink()
    shutil.rmtree(old / "notes")
    with unchanged(old), refused("folder-holds-a-run", old, "overwrite=True"):
        train(NEW, market, old, progress=False)
    replace()


@pytest.mark.process
def test_processes_overwrite_together(old: Path, market: Store) -> None:
    torchrun(tiny("training.max_epochs=1", "seed=9", dropout=0.0), market, old, mode="overwrite")
    assert Run.open(old).spec.seed == 9 and left(old.parent) == ["run"]
