"""What is taken from a run folder, what is measured anew, and what cannot be put side by side."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import fullrank as fr
from fullrank.analysis.figures.compare import pareto
from fullrank.analysis.report import Missing
from fullrank.analysis.report import findings as room
from fullrank.analysis.report.findings import collect, comparable
from fullrank.analysis.report.known import named
from fullrank.core.errors import UserError
from fullrank.data.events.store import Store
from fullrank.run import Run
from tests.analysis.report.conftest import make


@pytest.fixture
def run(store: Store, tmp_path: Path) -> Run:
    return make(store, tmp_path / "one", "model.encoder.layers=1")


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was measured, in order."""
    found: list[str] = []
    for name in ("evaluate", "diagnose"):
        plain = getattr(room, name)

        def noted(*given: object, name: str = name, plain: object = plain, **more: object) -> object:
            found.append(name)
            return plain(*given, **more)  # type: ignore[operator]

        monkeypatch.setattr(room, name, noted)
    return found


def test_what_is_missing_is_measured(run: Run, told: list[str]) -> None:
    (found,) = collect([run], users=20)
    assert told == ["evaluate", "diagnose"]
    assert found.key == "A" and found.name == "one" and found.layers == 1 and len(found.epochs) == 3
    assert found.metric("ndcg@10") == fr.evaluate(run).metrics["ndcg@10"]
    low, high = found.interval("fair0.8@1") or (1.0, 0.0)
    assert low <= (found.metric("fair0.8@1") or 0) <= high
    assert not (run.path / "evaluation.json").exists() and not (run.path / "diagnosis.jsonl").exists()


def test_what_the_folder_holds_is_taken(run: Run, told: list[str]) -> None:
    fr.evaluate(run).save(run.path)
    fr.diagnose(run, users=20).save(run.path / "diagnosis.jsonl")
    collect([run])
    assert told == []
    collect([run], users=20)
    assert told == []
    collect([run], users=30)
    assert told == ["diagnose"], "a sample of another size was asked for"


def test_what_is_of_other_weights_or_another_split_is_not(run: Run, told: list[str]) -> None:
    fr.evaluate(run).save(run.path)
    fr.diagnose(run, users=20).save(run.path / "diagnosis.jsonl")
    collect([run], split="validation", users=20)
    assert told == ["evaluate", "diagnose"]
    told.clear()
    model = run.model()
    for parameter in model.parameters():
        parameter.data.mul_(1.5)
    fr.run.write_weights(run.path, model)
    later = (run.path / "evaluation.json").stat().st_mtime + 10
    os.utime(run.path / "weights.safetensors", (later, later))
    collect([run], users=20)
    assert told == ["evaluate", "diagnose"]


def test_an_evaluation_without_what_the_page_shows_is_made_anew(run: Run, told: list[str]) -> None:
    fr.evaluate(run, set=["metrics=[recall]"]).save(run.path)
    collect([run], users=20)
    assert told == ["evaluate", "diagnose"]


def test_given_evaluations_and_settings(run: Run, told: list[str]) -> None:
    kept = fr.evaluate(run, set=["seen=keep"])
    (found,) = collect([run], users=20, evaluations={"one": kept})
    assert told == ["diagnose"] and found.evaluated is kept
    kept.save(run.path)
    (found,) = collect([run], users=20, settings=["seen=exclude"])
    assert found.evaluated.protocol["seen"] == "exclude", "with settings nothing kept is taken"
    with pytest.raises(UserError, match="no effect on evaluations that are given"):
        collect([run], settings=["seen=keep"], evaluations={"one": kept})
    with pytest.raises(UserError, match="did you mean 'one'"):
        collect([run], evaluations={"onee": kept})
    with pytest.raises(UserError, match="is not of the split 'validation'"):
        collect([run], split="validation", evaluations={"one": kept})


def test_runs_that_were_measured_differently_are_not_compared(run: Run, store: Store, tmp_path: Path) -> None:
    other = make(store, tmp_path / "two", "evaluation.seen=keep")
    found = collect([run, other], users=20)
    why = comparable(found)
    assert why is not None and "seen ('exclude' and 'keep')" in why and "--set seen=exclude" in why
    assert isinstance(pareto(found), Missing)
    assert comparable(collect([run, other], users=20, settings=["seen=exclude"])) is None
    third = make(store, tmp_path / "three", "evaluation.selection=recall@5")
    assert {one.accuracy for one in collect([run, third], users=20)} == {"ndcg@10"}
    kept = collect([third, run], users=20, settings=["selection=ndcg@5"])
    assert {one.accuracy for one in kept} == {"ndcg@5"} and {one.selected for one in kept} == {"recall@5", "ndcg@10"}
    apart = collect([make(store, tmp_path / "four", "evaluation.selection=recall@7"), run], users=20)
    assert "selected by different metrics" in (comparable(apart) or "")


def test_the_parts_are_measured_like_the_whole(run: Run, store: Store, tmp_path: Path) -> None:
    """With other settings an older diagnosis is measured anew, for both stand on one page."""
    own = make(store, tmp_path / "own")
    fr.diagnose(own, users=40).save(own.path / "diagnosis.jsonl")
    for settings in ([], ["seen=keep"]):
        (one,) = collect([own], users=40, settings=settings)
        assert one.diagnosis.about()["seen"] == one.evaluated.protocol["seen"]


def test_sampled_metrics_have_no_lists(store: Store, tmp_path: Path) -> None:
    run = make(store, tmp_path / "s", "evaluation.protocol=sampled")
    with pytest.raises(UserError, match="--set protocol=full"):
        collect([run])
    assert collect([run], users=20, settings=["protocol=full"])


def test_mistakes(run: Run, tmp_path: Path, store: Store) -> None:
    with pytest.raises(UserError, match="at least one run"):
        collect([])
    with pytest.raises(UserError, match="is given twice"):
        collect([run, Run.open(run.path / ".." / "one")])
    with pytest.raises(UserError, match="unknown split"):
        collect([run], split="tset")
    shutil.copytree(run.path, tmp_path / "moved")
    text = (tmp_path / "moved" / "manifest.json").read_text().replace(str(store.path), str(tmp_path / "gone"))
    (tmp_path / "moved" / "manifest.json").write_text(text)
    with pytest.raises(UserError, match="name it with --data"):
        collect([Run.open(tmp_path / "moved")])
    assert collect([Run.open(tmp_path / "moved")], data=store.path, users=20)
    (run.path / "diagnosis.jsonl").write_text("{")
    with pytest.raises(UserError, match="no readable diagnosis"):
        collect([run])


def test_names_of_folders(tmp_path: Path) -> None:
    assert named([tmp_path / "a", tmp_path / "b"]) == ["a", "b"]
    assert named([tmp_path / "x" / "a", tmp_path / "y" / "a"]) == [str(tmp_path / "x" / "a"), str(tmp_path / "y" / "a")]
