"""What is taken from a run folder, what is measured anew, and what cannot be put side by side."""

import os
import shutil

import pytest

import fullrank as fr
from fullrank.analysis.diagnostics.evaluation import Pareto
from fullrank.analysis.report import Missing
from fullrank.analysis.report import collect as room
from fullrank.analysis.report.collect import collect
from fullrank.analysis.report.results import not_comparable, run_names
from fullrank.run import Run
from refusals import refused
from seals import reseal
from tests.analysis.report.conftest import make


@pytest.fixture
def run(store, tmp_path) -> Run:
    return make(store, tmp_path / "one", "model.encoder.layers=1")


@pytest.fixture
def told(monkeypatch) -> list:
    """What was measured, in order."""
    found = []

    def noted(name, plain):
        def call(*given, **more):
            found.append(name)
            return plain(*given, **more)

        return call

    monkeypatch.setattr(room, "EVALUATE", {"retrieval": noted("evaluate", room.EVALUATE["retrieval"])})
    monkeypatch.setattr(room, "diagnose_retrieval", noted("diagnose", room.diagnose_retrieval))
    return found


def test_what_is_missing_is_measured(run, told) -> None:
    (found,) = collect([run], sample=20)
    assert told == ["evaluate", "diagnose"]
    assert found.key == "A" and found.name == "one" and found.layers == 1 and len(found.epochs) == 3
    assert found.metric("ndcg@10") == fr.evaluate(run).metrics["ndcg@10"]
    low, high = found.interval("fair0.8@1") or (1.0, 0.0)
    assert low <= (found.metric("fair0.8@1") or 0) <= high
    assert not (run.path / "evaluation.json").exists() and not (run.path / "diagnosis.jsonl").exists()


def test_what_the_folder_holds_is_taken(run, told) -> None:
    fr.evaluate(run).save(run.path)
    fr.diagnose(run, users=20).save(run.path / "diagnosis.jsonl")
    collect([run])
    assert told == []
    collect([run], sample=20)
    assert told == []
    collect([run], sample=30)
    assert told == ["diagnose"], "a sample of another size was asked for"


def test_what_is_of_other_weights_or_another_split_is_not(run, told) -> None:
    fr.evaluate(run).save(run.path)
    fr.diagnose(run, users=20).save(run.path / "diagnosis.jsonl")
    collect([run], split="validation", sample=20)
    assert told == ["evaluate", "diagnose"]
    told.clear()
    model = run.model()
    for parameter in model.parameters():
        parameter.data.mul_(1.5)
    fr.run.write_weights(run.path, model)
    later = (run.path / "evaluation.json").stat().st_mtime + 10
    os.utime(run.path / "weights.safetensors", (later, later))
    collect([run], sample=20)
    assert told == ["evaluate", "diagnose"]


def test_an_evaluation_without_what_the_page_shows_is_made_anew(run, told) -> None:
    fr.evaluate(run, set=["metrics=[recall]"]).save(run.path)
    collect([run], sample=20)
    assert told == ["evaluate", "diagnose"]


def test_given_evaluations_and_settings(run, told) -> None:
    kept = fr.evaluate(run, set=["seen=keep"])
    (found,) = collect([run], sample=20, evaluations={"one": kept})
    assert told == ["diagnose"] and found.evaluation is kept
    kept.save(run.path)
    (found,) = collect([run], sample=20, settings=["seen=exclude"])
    assert found.evaluation.protocol["seen"] == "exclude", "with settings nothing kept is taken"
    with refused("setting-without-effect"):
        collect([run], settings=["seen=keep"], evaluations={"one": kept})
    with refused("unknown-run-of-this-report", "onee", "one"):
        collect([run], evaluations={"onee": kept})
    with refused("evaluation-does-not-fit", "one", "validation"):
        collect([run], split="validation", evaluations={"one": kept})


def test_runs_that_were_measured_differently_are_not_compared(run, store, tmp_path) -> None:
    other = make(store, tmp_path / "two", "evaluation.seen=keep")
    found = collect([run, other], sample=20)
    why = not_comparable(found)
    assert why is not None and "seen ('exclude' and 'keep')" in why and "--set seen=exclude" in why
    assert isinstance(Pareto.figure(found), Missing)
    assert not_comparable(collect([run, other], sample=20, settings=["seen=exclude"])) is None
    third = make(store, tmp_path / "three", "evaluation.selection=recall@5")
    assert {one.accuracy for one in collect([run, third], sample=20)} == {"ndcg@10"}
    kept = collect([third, run], sample=20, settings=["selection=ndcg@5"])
    assert {one.accuracy for one in kept} == {"ndcg@5"} and {one.selected for one in kept} == {"recall@5", "ndcg@10"}
    apart = collect([make(store, tmp_path / "four", "evaluation.selection=recall@7"), run], sample=20)
    assert "selected by different metrics" in (not_comparable(apart) or "")


def test_the_parts_are_measured_like_the_whole(run, store, tmp_path) -> None:
    """With other settings an older diagnosis is measured anew, for both stand on one page."""
    own = make(store, tmp_path / "own")
    fr.diagnose(own, users=40).save(own.path / "diagnosis.jsonl")
    for settings in ([], ["seen=keep"]):
        (one,) = collect([own], sample=40, settings=settings)
        assert one.diagnosis.about()["seen"] == one.evaluation.protocol["seen"]


def test_sampled_metrics_have_no_lists(store, tmp_path) -> None:
    run = make(store, tmp_path / "s", "evaluation.protocol=sampled")
    with refused("needs-full-protocol", "protocol=full"):
        collect([run])
    assert collect([run], sample=20, settings=["protocol=full"])


def test_mistakes(run, tmp_path, store) -> None:
    with refused("no-runs"):
        collect([])
    with refused("given-twice", run.path):
        collect([run, Run.open(run.path / ".." / "one")])
    with refused("unknown-split"):
        collect([run], split="tset")
    shutil.copytree(run.path, tmp_path / "moved")
    text = (tmp_path / "moved" / "manifest.json").read_text().replace(str(store.path), str(tmp_path / "gone"))
    (tmp_path / "moved" / "manifest.json").write_text(text)
    reseal(tmp_path / "moved")
    with refused("missing-store", tmp_path / "gone", tmp_path / "moved", "data="):
        collect([Run.open(tmp_path / "moved")])
    assert collect([Run.open(tmp_path / "moved")], data=store.path, sample=20)
    (run.path / "diagnosis.jsonl").write_text("{")
    with refused("file-damaged", "diagnosis.jsonl"):
        collect([run])


def test_names_of_folders(tmp_path) -> None:
    assert run_names([tmp_path / "a", tmp_path / "b"]) == ["a", "b"]
    assert run_names([tmp_path / "x" / "a", tmp_path / "y" / "a"]) == [
        str(tmp_path / "x" / "a"),
        str(tmp_path / "y" / "a"),
    ]
