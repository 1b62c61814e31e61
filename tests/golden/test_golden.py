"""Folders that the baseline commit wrote are read as it read them: stores, codes, runs, evaluations, a cut-off run.

`make.py` wrote `folders/` and `expected.json`. Ids, codes, fingerprints and specs are compared exactly, floats to a
tolerance, since another processor rounds otherwise. What equal bits can be asked of is `make golden`.
"""

import json
import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import fullrank as fr
from tests.golden.make import FOLDERS, RUNS, K, answers, files, hash_of

EXPECTED: dict[str, Any] = json.loads(Path(__file__).with_name("expected.json").read_text())
METRIC, SCORE, LOSS = 1e-6, 1e-5, 1e-5
"""Relative of metrics, absolute of scores, probabilities and weights, relative of losses."""
CUT_OFF = FOLDERS / "cut_off"


def store_for(run: str) -> Path:
    """By name: the path in a run's manifest is where the store was when the run was trained."""
    return FOLDERS / ("impressions" if run == "dcnv2" else "events")


def opened(run: str) -> Any:
    return (fr.ImpressionStore if run == "dcnv2" else fr.Store).open(store_for(run))


def check_answers(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Metrics, ranked lists and probabilities as recorded."""
    for split, metrics in wanted["metrics"].items():
        assert dict(found["metrics"][split]) == pytest.approx(metrics, rel=METRIC, nan_ok=True), split
    if "lists" in wanted:
        one, other = (by_user(answer["lists"]) for answer in (wanted, found))
        assert {user: [row["item"] for row in rows] for user, rows in one.items()} == {
            user: [row["item"] for row in rows] for user, rows in other.items()
        }
        for user, rows in one.items():
            assert [row["score"] for row in other[user]] == pytest.approx([r["score"] for r in rows], abs=SCORE)
    else:
        assert found["probabilities"] == pytest.approx(wanted["probabilities"], abs=SCORE)


def by_user(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The first K of each list: one more is recorded, so that the distance of the last to its next is known."""
    lists: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        lists.setdefault(row["user"], []).append(row)
    return {user: some[:K] for user, some in lists.items()}


def check_weights(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=SCORE, msg=f"{name} differs")


def check_spec(found: Any, wanted: Any, path: str = "") -> None:
    """Every recorded setting has its recorded value; a later version may have more settings."""
    if isinstance(wanted, dict):
        for key, value in wanted.items():
            assert key in found, f"{path}{key} is gone"
            check_spec(found[key], value, f"{path}{key}.")
    elif isinstance(wanted, list):
        assert len(found) == len(wanted), path
        for one, other in zip(found, wanted, strict=True):
            check_spec(one, other, path)
    else:
        assert found == wanted, path


def test_the_files_are_those_of_the_baseline() -> None:
    """What a reader is tested on must not be what it wrote itself."""
    found = {str(path.relative_to(FOLDERS)): hash_of(path) for path in files(FOLDERS)}
    assert found == EXPECTED["files"]


def test_stores_are_whole_and_the_same_split() -> None:
    events = fr.Store.open(FOLDERS / "events", verify=True)
    impressions = fr.ImpressionStore.open(FOLDERS / "impressions", verify=True)
    found = {"events": events.fingerprint, "impressions": impressions.fingerprint}
    assert found == EXPECTED["fingerprints"]


@pytest.mark.parametrize("name", ["events/items.npy", "impressions/categorical.npy"])
def test_a_damaged_store_is_noticed(name: str, tmp_path: Path) -> None:
    kind, _, file = name.partition("/")
    copied = shutil.copytree(FOLDERS / kind, tmp_path / kind)
    content = bytearray((copied / file).read_bytes())
    content[-1] ^= 1
    (copied / file).write_bytes(content)
    with pytest.raises(fr.UserError):
        (fr.Store if kind == "events" else fr.ImpressionStore).open(copied, verify=True)


def test_codes_are_read() -> None:
    codes = fr.Codes.open(FOLDERS / "codes", verify=True)
    assert codes.codes.tolist() == EXPECTED["codes"]
    assert set(codes.item_ids) == set(fr.Store.open(FOLDERS / "events").catalog.ids)


@pytest.mark.parametrize("name", [*RUNS, "cut_off"])
def test_a_spec_is_read(name: str) -> None:
    check_spec(fr.Run.open(FOLDERS / name).spec.dump(), EXPECTED["specs"][name])


@pytest.mark.parametrize("name", RUNS)
def test_a_run_answers_as_it_did(name: str) -> None:
    check_answers(answers(FOLDERS / name, opened(name)), EXPECTED["runs"][name])


@pytest.mark.parametrize("name", ["sasrec", "rpg", "plr", "srt", "dcnv2"])
def test_other_weights_are_noticed(name: str, tmp_path: Path) -> None:
    """One weight of each tensor moved by a thousandth changes the answers by more than the tolerance."""
    run = shutil.copytree(FOLDERS / name, tmp_path / name)
    tensors = load_file(run / "weights.safetensors")
    for value in tensors.values():
        if value.is_floating_point():
            value.view(-1)[0] += 1e-3
    save_file(tensors, run / "weights.safetensors")
    with pytest.raises(AssertionError):
        check_answers(answers(run, opened(name)), EXPECTED["runs"][name])


@pytest.mark.parametrize(
    ("folder", "name", "metric"), [("evaluation", "sasrec", "ndcg@10"), ("evaluation_of_clicks", "dcnv2", "auc")]
)
def test_a_saved_evaluation_is_read(folder: str, name: str, metric: str) -> None:
    fresh = fr.evaluate(FOLDERS / name, data=opened(name))
    kept = type(fresh).load(FOLDERS / folder)
    assert kept.metrics == pytest.approx(EXPECTED["runs"][name]["metrics"]["test"], rel=METRIC, nan_ok=True)
    assert {key for key in kept.protocol if not holds(fresh.protocol.get(key), kept.protocol[key])} == set()
    assert math.isclose(fr.compare(kept, fresh, metric).difference, 0.0, abs_tol=METRIC)


def holds(new: object, old: object) -> bool:
    """Whether a value is as it was, but for keys that were added."""
    if isinstance(new, dict) and isinstance(old, dict):
        return all(key in new and holds(new[key], value) for key, value in old.items())
    return new == old


@pytest.fixture
def cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that the baseline began, and torch's own dropout, which the baseline had."""
    for module in ("dropout", "attention"):
        monkeypatch.setattr(f"fullrank.ops.{module}.draws_here", lambda x: False)
    return shutil.copytree(CUT_OFF, tmp_path / "cut_off")


def resumed(run: Path) -> Path:
    """Go on with the run, as its whole spec says, and give the folder of its last checkpoint."""
    step = last_checkpoint(run).name
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        fr.train(run / "spec.json", FOLDERS / "events", run, resume=True, progress=False)
    finally:
        torch.set_num_threads(threads)
    assert last_checkpoint(run).name > step, "no step was taken"
    return last_checkpoint(run)


def last_checkpoint(run: Path) -> Path:
    return run / "checkpoints" / json.loads((run / "checkpoints" / "last.json").read_text())["folder"]


def check_resumed(run: Path) -> None:
    """The run ended as the one that was never cut off."""
    whole = FOLDERS / "sasrec"
    ours, theirs = (epochs(folder) for folder in (run, whole))
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert one == pytest.approx(other, rel=LOSS), f"step {other['step']}"
    assert last_checkpoint(run).name == last_checkpoint(whole).name
    check_weights(*(load_file(last_checkpoint(folder) / "weights.safetensors") for folder in (run, whole)))
    check_weights(*(load_file(folder / "weights.safetensors") for folder in (run, whole)))


def epochs(run: Path) -> list[dict[str, float]]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    kept = ("step", "epoch", "train/loss", "validation/ndcg@10")
    return [{key: row[key] for key in kept} for row in rows if row["event"] == "epoch"]


def test_a_run_that_was_cut_off_in_mid_epoch_ends_as_it_would_have(cut_off: Path) -> None:
    before = epochs(cut_off)
    step = int(last_checkpoint(cut_off).name.removeprefix("step-"))
    assert step > before[-1]["step"], "the checkpoint stands inside an epoch"
    resumed(cut_off)
    check_resumed(cut_off)


@pytest.mark.parametrize("part", ["weights", "optimizer"])
def test_a_checkpoint_that_is_read_wrongly_is_noticed(part: str, cut_off: Path) -> None:
    """As if one tensor of the checkpoint were not taken over: its values are those that a new run begins with."""
    place = last_checkpoint(cut_off) / f"{part}.safetensors"
    tensors = load_file(place)
    largest = max(tensors, key=lambda name: tensors[name].numel())
    tensors[largest] = torch.zeros_like(tensors[largest])
    save_file(tensors, place)
    resumed(cut_off)
    with pytest.raises(AssertionError):
        check_resumed(cut_off)


def test_a_finished_run_stays_as_it_is(tmp_path: Path) -> None:
    run = shutil.copytree(FOLDERS / "sasrec", tmp_path / "sasrec")
    fr.train(run / "spec.json", FOLDERS / "events", run, resume=True, progress=False)
    assert {str(p.relative_to(run)): hash_of(p) for p in files(run)} == {
        name.removeprefix("sasrec/"): value for name, value in EXPECTED["files"].items() if name.startswith("sasrec/")
    }


def test_small_differences_of_rounding_stay_within_the_tolerance(cut_off: Path) -> None:
    """Another processor rounds otherwise: a checkpoint whose weights differ in their last bits must still pass."""
    place = last_checkpoint(cut_off) / "weights.safetensors"
    tensors, rng = load_file(place), np.random.default_rng(0)
    for value in tensors.values():
        if value.is_floating_point():
            noise = torch.from_numpy(rng.choice([-1.0, 1.0], tuple(value.shape)).astype(np.float32))
            value *= 1 + 6e-8 * noise
    save_file(tensors, place)
    resumed(cut_off)
    check_resumed(cut_off)
