"""`diagnose`: a table for a person, rows for a program, and a sentence for what is no run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fullrank.analysis.diagnose import Diagnosis
from fullrank.run import Run
from seals import reseal

if TYPE_CHECKING:
    from conftest import Call, Refuses


@pytest.fixture
def run(shop: Path, tmp_path: Path) -> Path:
    """A copy: diagnose writes into the run folder."""
    return Path(shutil.copytree(shop / "sasrec", tmp_path / "sasrec"))


def test_rows_are_printed_and_kept(run: Path, call: Call) -> None:
    found = call("diagnose", run, "--users", 40, "--json").json
    assert found["users"] == 40 and found["split"] == "test" and found["left_out"] == {}
    assert Path(found["out"]) == run / "diagnosis.jsonl"
    assert list(Diagnosis.load(run / "diagnosis.jsonl").rows) == found["rows"]
    assert Run.open(run).spec.recipe == "sasrec", "the run stays a run"


def test_a_person_reads_tables_with_explanations(run: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    said = call("diagnose", run, "--users", 40)
    assert said.code == 0 and said.err == ""
    for word in ("collapse share", "what it says", "attn", "bound", "attention 1", "fair0.8@1", "fullrank report"):
        assert word in said.out
    lines = [line for line in said.out.splitlines() if str(run) not in line]
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("name", ["popularity", "item_to_item"])
def test_a_baseline_leaves_out_what_it_has_not(name: str, shop: Path, tmp_path: Path, call: Call) -> None:
    said = call("diagnose", shop / name, "--users", 40, "--out", tmp_path / "rows.jsonl")
    assert said.code == 0 and "left out: layers (it has no layers)" in said.out
    assert not (shop / name / "diagnosis.jsonl").exists()
    assert Diagnosis.load(tmp_path / "rows.jsonl").left_out()["bound"] == "it has no transformer blocks"


def test_the_store_may_have_moved(run: Path, shop: Path, tmp_path: Path, call: Call, refuses: Refuses) -> None:
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["data"]["path"] = str(tmp_path / "gone")
    (run / "manifest.json").write_text(json.dumps(manifest))
    reseal(run)
    refuses("missing-store", ["diagnose", run], tmp_path / "gone", "--data")
    assert call("diagnose", run, "--data", shop / "data", "--users", 20).code == 0


@pytest.mark.parametrize(
    ("words", "code", "name"),
    [
        (["--split", "train"], "unknown-value", "allowed: validation, test"),
        (["--users", "1"], "sample-too-small", "2 users, not 1"),
        (["--users", "many"], "usage", "'--users'"),
        (["--out", "rows.csv"], "unknown-suffix", "'.csv'"),
        (["--data", "nowhere"], "missing-folder", "'nowhere'"),
        (["--user", "3"], "unknown-option", "did you mean '--users'"),
    ],
)
def test_mistakes(words: list[str], code: str, name: str, run: Path, refuses: Refuses) -> None:
    refuses(code, ["diagnose", run, *words], name)
    assert not (run / "diagnosis.jsonl").exists()


def test_a_folder_that_is_no_run(refuses: Refuses, tmp_path: Path, shop: Path) -> None:
    refuses("not-a-run", ["diagnose", tmp_path / "nothing"], tmp_path / "nothing", "manifest.json")
    refuses("not-a-run", ["diagnose", shop / "data"], shop / "data", "fullrank train")
    unfinished = shutil.copytree(shop / "sasrec", tmp_path / "unfinished")
    (unfinished / "weights.safetensors").unlink()
    refuses("missing-file", ["diagnose", unfinished], unfinished / "weights.safetensors")


def test_training_is_watched(shop: Path, tmp_path: Path, call: Call, refuses: Refuses) -> None:
    words = ["--data", shop / "data", "--set", "model.dim=8", "--set", "training.max_epochs=1", "--watch"]
    assert call("train", "sasrec", *words, "--out", tmp_path / "run").code == 0
    assert "watch/collapse_share" in Run.open(tmp_path / "run").rows()[-1]
    words = ["train", "popularity", "--data", shop / "data", "--out", tmp_path / "p", "--watch"]
    refuses("baseline-without-training", words, "callbacks")


def test_overwriting_a_run_takes_its_diagnosis_away(run: Path, shop: Path, call: Call) -> None:
    assert call("diagnose", run, "--users", 20).code == 0
    assert call("train", "popularity", "--data", shop / "data", "--out", run, "--overwrite").code == 0
    assert not (run / "diagnosis.jsonl").exists()
