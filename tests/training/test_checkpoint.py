"""A checkpoint that somebody tampered with is refused with what to do, and a run goes on from an old one."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fullrank.core.readers import read_json
from fullrank.core.tensor_files import read_tensors, write_tensors
from fullrank.data.events.store import Store
from fullrank.run import Run
from fullrank.run.checkpoint import CheckpointState, read_checkpoint, write_checkpoint
from refusals import refused
from tests.training.conftest import Runs, change_json, same_weights

SETTINGS = ("training.max_epochs=2", "training.checkpoint_minutes=0")


@pytest.fixture(scope="module")
def home(market: Store, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Its folder holds `whole`, a run, and `cut`, which was cut off in its second epoch."""
    runs = Runs(market, tmp_path_factory.mktemp("checkpoints"))

    class Stop:
        every = 1
        seen = 0

        def on_epoch(self, state: Any) -> dict[str, float]:
            self.seen += state.epoch == 1
            if self.seen > 2:
                raise InterruptedError
            return {}

    with pytest.raises(InterruptedError):
        runs("cut", *SETTINGS, callbacks=(Stop(),))
    runs("whole", *SETTINGS)
    return runs


@pytest.fixture
def cut(home: Runs, tmp_path: Path) -> Path:
    return Path(shutil.copytree(home.home / "cut", tmp_path / "run"))


def newest(run: Path) -> Path:
    return run / "checkpoints" / str(read_json(run / "checkpoints" / "last.json")["folder"])


def without_hashes(run: Path) -> None:
    """As version 0.1 wrote it."""
    change_json(newest(run) / "state.json", files=None)
    (run / "checkpoints" / "last.json").write_text(json.dumps({"folder": newest(run).name}))


def resume(home: Runs, run: Path) -> Run:
    return home(run, *SETTINGS, resume=True)


@pytest.mark.parametrize("change", [without_hashes, lambda run: shutil.rmtree(run / "checkpoints")])
def test_what_the_sentence_advises_works_and_so_does_an_old_checkpoint(
    change: Callable[[Path], None], home: Runs, cut: Path
) -> None:
    change(cut)
    assert same_weights(resume(home, cut), home.home / "whole")


HUGE = 10**30
WRONG: list[dict[str, Any]] = [
    *({"step": step} for step in (-5, HUGE, 10**6, 1, True, "13", 13.0)),
    *({"sums": sums} for sums in ([1, 2], 3)),
    *({"sums": {"next_item": loss}} for loss in ("4", None, float("inf"), float("nan"))),
    *({"pace": pace} for pace in ([1, 2], ["a", "b", "c"], [-1, 2, 3.0], [True, 2, 3.0], [HUGE, 2, 3.0], 7)),
    {"best": "high"}, {"best": True}, {"best_epoch": -1}, {"stale": "3"}, {"stale": -1}, {"cuts": HUGE}, {"cuts": []},
    {"finished": "no"}, {"files": ["weights.safetensors"]}, {"files": {"/etc/passwd": "0" * 64}}, {"surprise": 1},
]  # fmt: skip


@pytest.mark.parametrize("values", WRONG, ids=str)
def test_a_state_of_wrong_values_is_refused(values: dict[str, Any], home: Runs, cut: Path) -> None:
    without_hashes(cut)
    change_json(newest(cut) / "state.json", **values)
    with refused("file-damaged", "state.json", cut / "checkpoints") as refusal:
        resume(home, cut)
    assert len(str(refusal)) < 1000


Tensors = dict[str, Tensor]


def first(edit: Callable[[Tensor], Tensor]) -> Callable[[Tensors], Tensors]:
    """The first tensor that is no number, changed."""

    def change(tensors: Tensors) -> Tensors:
        name = next(name for name in sorted(tensors) if tensors[name].ndim)
        return {**tensors, name: edit(tensors[name])}

    return change


def shorter(tensor: Tensor) -> Tensor:
    return tensor[:-1]


NOT_OF_THIS_RUN: list[tuple[str, str, Callable[[Tensors], Tensors]]] = [
    *(("file-damaged", "optimizer", first(edit)) for edit in (shorter, Tensor.double, Tensor.long)),
    ("file-damaged", "optimizer", first(lambda moment: moment * torch.nan)),
    *(
        ("file-damaged", "optimizer", lambda t, name=name: {**t, name: torch.ones(1)})
        for name in ("exp_avg", "999.exp_avg", "²3.exp_avg", "0.momentum")
    ),
    ("file-damaged", "optimizer", lambda t: {name: moment for name, moment in t.items() if name != "0.step"}),
    ("file-damaged", "optimizer", lambda t: {}),
    *(("weights-differ-from-spec", "weights", first(edit)) for edit in (shorter, Tensor.double, Tensor.half)),
    ("weights-differ-from-spec", "weights", lambda t: dict(list(t.items())[1:])),
    ("weights-not-finite", "weights", first(lambda weight: weight / 0)),
]


@pytest.mark.parametrize(("code", "kind", "edit"), NOT_OF_THIS_RUN)
def test_tensors_that_are_not_of_this_run_are_refused(
    code: str, kind: str, edit: Callable[[Tensors], Tensors], home: Runs, cut: Path
) -> None:
    without_hashes(cut)
    path = newest(cut) / f"{kind}.safetensors"
    write_tensors(path, edit(read_tensors(path)))
    with refused(code, "checkpoints"):
        resume(home, cut)


@pytest.mark.parametrize("name", ["weights.safetensors", "optimizer.safetensors", "state.json"])
@pytest.mark.parametrize("damage", ["bit", "cut", "missing", "folder"])
def test_every_file_of_a_checkpoint_is_checked(name: str, damage: str, home: Runs, cut: Path) -> None:
    path = newest(cut) / name
    content = path.read_bytes()
    if damage == "bit":
        path.write_bytes(content[:-3] + bytes([content[-3] ^ 1]) + content[-2:])
    elif damage == "cut":
        path.write_bytes(content[:-1])
    else:
        path.unlink()
        if damage == "folder":
            path.mkdir()
    with refused("missing-file" if damage == "missing" else "file-damaged", name, cut / "checkpoints"):
        resume(home, cut)


def test_a_state_of_another_moment_is_found_by_its_hash(home: Runs, cut: Path) -> None:
    change_json(newest(cut) / "state.json", stale=1)
    with refused("file-damaged", "state.json", "last.json"):
        resume(home, cut)


ELSEWHERE = ("../..", "/etc", "step-", "step-x", "step-²", "step-1/../..", "", None, 3, ["step-1"], "step-" + "1" * 99)
POINTERS = ("", "{", "[]", "null", "\x00", '{"folder": ', *(json.dumps({"folder": name}) for name in ELSEWHERE))


@pytest.mark.parametrize("text", [*POINTERS, '{"folder": "NEWEST"}'])
def test_a_pointer_that_is_torn_or_leads_elsewhere_or_lost_its_hash_is_refused(
    text: str, home: Runs, cut: Path
) -> None:
    """Without its hash nothing would vouch for state.json, and so for none of the files."""
    (cut / "checkpoints" / "last.json").write_text(text.replace("NEWEST", newest(cut).name))
    with refused("file-damaged", "last.json", cut / "checkpoints"):
        resume(home, cut)


def test_a_pointer_to_a_checkpoint_that_is_gone(home: Runs, cut: Path) -> None:
    (cut / "checkpoints" / "last.json").write_text('{"folder": "step-000000001"}')
    with refused("missing-file", "state.json"):
        resume(home, cut)


def test_a_state_comes_back_as_it_was_written(tmp_path: Path) -> None:
    state = CheckpointState(step=7, best=0.25, best_epoch=2, sums={"a": 0.1}, pace=(3, 4, 0.5), cuts=1)
    write_checkpoint(tmp_path, torch.nn.Linear(2, 2).state_dict(), {"0.step": torch.tensor(7.0)}, state)
    read = read_checkpoint(tmp_path)
    assert read is not None and read.state.model_copy(update={"files": {}}) == state
