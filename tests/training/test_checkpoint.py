"""A checkpoint that somebody tampered with is refused with what to do, and a run goes on from an old one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fullrank.api import train
from fullrank.core.readers import read_json
from fullrank.core.tensor_files import read_tensors, write_tensors
from fullrank.data.events.store import Store
from fullrank.run import Run
from fullrank.training.checkpoint import CheckpointState, read_checkpoint, write_checkpoint
from refusals import refused
from tests.training.conftest import tiny

SETTINGS = ("training.max_epochs=2", "training.checkpoint_minutes=0")


@pytest.fixture(scope="module")
def kept(market: Store, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was cut off in its second epoch, as its folder looked then."""
    out = tmp_path_factory.mktemp("kept") / "run"

    class CutOff(Exception):
        pass

    class Stop:
        every = 1
        seen = 0

        def on_epoch(self, state: Any) -> dict[str, float]:
            self.seen += state.epoch == 1
            if self.seen > 2:
                raise CutOff
            return {}

    with pytest.raises(CutOff):
        train(tiny(*SETTINGS), market, out, callbacks=(Stop(),), progress=False)
    return out


@pytest.fixture
def run(kept: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(kept, tmp_path / "run"))


def newest(run: Path) -> Path:
    return run / "checkpoints" / str(read_json(run / "checkpoints" / "last.json")["folder"])


def without_hashes(run: Path) -> None:
    """As version 0.1 wrote it."""
    folder = newest(run)
    (run / "checkpoints" / "last.json").write_text(json.dumps({"folder": folder.name}))
    put(run, files=None)


def put(run: Path, **values: Any) -> None:
    """Set keys of state.json; None takes one out."""
    path = newest(run) / "state.json"
    tree = {**read_json(path), **values}
    path.write_text(json.dumps({key: value for key, value in tree.items() if value is not None}))


def resume(market: Store, run: Path) -> Run:
    return train(tiny(*SETTINGS), market, run, resume=True, progress=False)


def test_an_old_checkpoint_without_hashes_goes_on_to_the_same_weights(market: Store, run: Path, tmp_path: Path) -> None:
    whole = train(tiny(*SETTINGS), market, tmp_path / "whole", progress=False)
    assert read_checkpoint(run) is not None
    without_hashes(run)
    again = resume(market, run)
    a, b = (read_tensors(one.path / "weights.safetensors") for one in (whole, again))
    assert all(torch.equal(a[name], b[name]) for name in a)


HUGE = 10**30
WRONG: dict[str, dict[str, Any]] = {
    "negative step": {"step": -5},
    "huge step": {"step": HUGE},
    "step beyond the run": {"step": 10**6},
    "another step": {"step": 1},
    "step true": {"step": True},
    "step as text": {"step": "13"},
    "step as a number with a point": {"step": 13.0},
    "sums a list": {"sums": [1, 2]},
    "sums a number": {"sums": 3},
    "sums of text": {"sums": {"next_item": "4"}},
    "sums of nothing": {"sums": {"next_item": None}},
    "sums infinite": {"sums": {"next_item": float("inf")}},
    "sums not a number": {"sums": {"next_item": float("nan")}},
    "pace too short": {"pace": [1, 2]},
    "pace of text": {"pace": ["a", "b", "c"]},
    "pace negative": {"pace": [-1, 2, 3.0]},
    "pace true": {"pace": [True, 2, 3.0]},
    "pace huge": {"pace": [HUGE, 2, 3.0]},
    "pace a number": {"pace": 7},
    "best as text": {"best": "high"},
    "best true": {"best": True},
    "best epoch negative": {"best_epoch": -1},
    "stale as text": {"stale": "3"},
    "stale negative": {"stale": -1},
    "cuts huge": {"cuts": HUGE},
    "cuts a list": {"cuts": []},
    "finished as text": {"finished": "no"},
    "files a list": {"files": ["weights.safetensors"]},
    "files of others": {"files": {"/etc/passwd": "0" * 64}},
    "foreign key": {"surprise": 1},
}


@pytest.mark.parametrize("case", WRONG)
def test_a_state_of_wrong_values_is_refused(case: str, market: Store, run: Path) -> None:
    without_hashes(run)
    put(run, **WRONG[case])
    with refused("file-damaged", "state.json", run / "checkpoints") as refusal:
        resume(market, run)
    assert len(str(refusal)) < 1000


def change(name: str, edit: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> Callable[[Path], None]:
    def do(run: Path) -> None:
        without_hashes(run)
        write_tensors(newest(run) / name, edit(read_tensors(newest(run) / name)))

    return do


def first(tensors: dict[str, Tensor], edit: Callable[[Tensor], Tensor], ending: str = "") -> dict[str, Tensor]:
    name = next(name for name in sorted(tensors) if name.endswith(ending) and tensors[name].ndim)
    return {**tensors, name: edit(tensors[name])}


OPTIMIZER, WEIGHTS = "optimizer.safetensors", "weights.safetensors"
TENSORS: dict[str, tuple[str, Callable[[Path], None]]] = {
    "moment of another shape": ("file-damaged", change(OPTIMIZER, lambda t: first(t, lambda one: one[:-1]))),
    "moment of another type": ("file-damaged", change(OPTIMIZER, lambda t: first(t, lambda one: one.double()))),
    "moment of whole numbers": ("file-damaged", change(OPTIMIZER, lambda t: first(t, lambda one: one.long()))),
    "moment not finite": ("file-damaged", change(OPTIMIZER, lambda t: first(t, lambda one: one * torch.nan))),
    "moment without a number": ("file-damaged", change(OPTIMIZER, lambda t: {**t, "exp_avg": torch.ones(1)})),
    "moment of no parameter": ("file-damaged", change(OPTIMIZER, lambda t: {**t, "999.exp_avg": torch.ones(1)})),
    "number of other digits": ("file-damaged", change(OPTIMIZER, lambda t: {**t, "²3.exp_avg": torch.ones(1)})),
    "moment of another optimizer": ("file-damaged", change(OPTIMIZER, lambda t: {**t, "0.momentum": torch.ones(1)})),
    "moment missing": ("file-damaged", change(OPTIMIZER, lambda t: {k: v for k, v in t.items() if k != "0.step"})),
    "no moments": ("file-damaged", change(OPTIMIZER, lambda t: {})),
    "weight of another shape": ("weights-differ-from-spec", change(WEIGHTS, lambda t: first(t, lambda one: one[:-1]))),
    "weight of another type": ("weights-differ-from-spec", change(WEIGHTS, lambda t: first(t, lambda w: w.double()))),
    "weight of half the bits": ("weights-differ-from-spec", change(WEIGHTS, lambda t: first(t, lambda w: w.half()))),
    "weight not finite": ("weights-not-finite", change(WEIGHTS, lambda t: first(t, lambda one: one / 0))),
    "weight missing": ("weights-differ-from-spec", change(WEIGHTS, lambda t: dict(list(t.items())[1:]))),
}  # fmt: skip


@pytest.mark.parametrize("case", TENSORS)
def test_tensors_that_are_not_of_this_run_are_refused(case: str, market: Store, run: Path) -> None:
    code, tamper = TENSORS[case]
    tamper(run)
    with refused(code, "checkpoints"):
        resume(market, run)


def flip(path: Path) -> None:
    found = bytearray(path.read_bytes())
    found[-3] ^= 1
    path.write_bytes(bytes(found))


@pytest.mark.parametrize("name", ["weights.safetensors", "optimizer.safetensors", "state.json"])
@pytest.mark.parametrize("damage", ["bit", "cut", "missing", "folder"])
def test_every_file_of_a_checkpoint_is_checked(name: str, damage: str, market: Store, run: Path) -> None:
    path = newest(run) / name
    if damage == "bit":
        flip(path)
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:-1])
    else:
        path.unlink()
        if damage == "folder":
            path.mkdir()
    with refused("missing-file" if damage == "missing" else "file-damaged", name, run / "checkpoints"):
        resume(market, run)


def test_a_state_of_another_moment_is_found_by_its_hash(market: Store, run: Path) -> None:
    put(run, stale=1)
    with refused("file-damaged", "state.json", "last.json"):
        resume(market, run)


def test_a_pointer_that_lost_its_hash_is_refused(market: Store, run: Path) -> None:
    """Else nothing would vouch for state.json, and so for none of the files."""
    (run / "checkpoints" / "last.json").write_text(json.dumps({"folder": newest(run).name}))
    with refused("file-damaged", "last.json"):
        resume(market, run)


@pytest.mark.parametrize(
    "named", ["../..", "/etc", "step-", "step-x", "step-²", "step-1/../..", "", None, 3, ["step-1"], "step-" + "1" * 99]
)
def test_a_pointer_to_elsewhere_is_refused(named: Any, market: Store, run: Path) -> None:
    (run / "checkpoints" / "last.json").write_text(json.dumps({"folder": named}))
    with refused("file-damaged", "last.json"):
        resume(market, run)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "\x00", '{"folder": '])
def test_a_torn_pointer_is_refused(text: str, market: Store, run: Path) -> None:
    (run / "checkpoints" / "last.json").write_text(text)
    with refused("file-damaged", "last.json", run / "checkpoints"):
        resume(market, run)


def test_a_pointer_to_a_checkpoint_that_is_gone(market: Store, run: Path) -> None:
    (run / "checkpoints" / "last.json").write_text(json.dumps({"folder": "step-000000001"}))
    with refused("missing-file", "state.json"):
        resume(market, run)


def test_what_the_sentence_advises_works(market: Store, run: Path, tmp_path: Path) -> None:
    whole = train(tiny(*SETTINGS), market, tmp_path / "whole", progress=False)
    shutil.rmtree(run / "checkpoints")
    a, b = (read_tensors(one.path / "weights.safetensors") for one in (whole, resume(market, run)))
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_a_state_comes_back_as_it_was_written(tmp_path: Path) -> None:
    state = CheckpointState(step=7, best=0.25, best_epoch=2, sums={"a": 0.1}, pace=(3, 4, 0.5), cuts=1)
    write_checkpoint(tmp_path, torch.nn.Linear(2, 2).state_dict(), {"0.step": torch.tensor(7.0)}, state)
    found = read_checkpoint(tmp_path)
    assert found is not None and found.state.model_copy(update={"files": {}}) == state
