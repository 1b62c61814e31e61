"""An evaluation on disk is two files of one evaluation, and is not put where it would break a store."""

import json
import shutil
from pathlib import Path

import pytest

import fullrank as fr
from fullrank.core import files
from fullrank.data.events.prepare import prepare
from fullrank.data.events.store import Store
from fullrank.data.sources.planted import Planted
from fullrank.evaluation.result import EvaluationResult
from refusals import refused


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return prepare(Planted(users=60, items=40, events_per_user=8).read().events, tmp_path_factory.mktemp("s") / "shop")


@pytest.fixture(scope="module")
def found(store: Store, tmp_path_factory: pytest.TempPathFactory) -> list[EvaluationResult]:
    runs = [fr.train(n, store, tmp_path_factory.mktemp(n) / n, progress=False) for n in ("popularity", "item_to_item")]
    return [fr.evaluate(run, data=store) for run in runs]


def test_a_save_that_stops_half_way_is_told(
    found: list[EvaluationResult], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = found
    old.save(tmp_path)
    assert EvaluationResult.load(tmp_path).metrics == old.metrics
    replace = files.os.replace

    def full(source: Path, target: Path) -> None:
        if Path(target).name == "evaluation.json":
            raise OSError(28, "No space left on device")
        replace(source, target)

    with monkeypatch.context() as patched, refused("not-written", "evaluation.json"):
        patched.setattr(files.os, "replace", full)
        new.save(tmp_path)
    with refused("not-an-evaluation", tmp_path, "per_user.parquet"):
        EvaluationResult.load(tmp_path)
    new.save(tmp_path)
    assert EvaluationResult.load(tmp_path).metrics == new.metrics


def test_the_history_ranked_is_not_written_over_the_history_excluded(
    found: list[EvaluationResult], store: Store, tmp_path: Path
) -> None:
    """Both are called evaluation.json, and what reads one (a report, a model's card) would take it for the other."""
    run = fr.train("popularity", store, tmp_path / "run", progress=False)
    excluded, ranked = fr.evaluate(run, data=store), fr.evaluate(run, data=store, set=["seen=keep"])
    assert not (run.path / "evaluation.json").exists(), "evaluating writes nothing"
    excluded.save(run.path)
    with refused("other-evaluation-there", run.path, "history excluded", "history ranked"):
        ranked.save(run.path)
    assert EvaluationResult.load(run.path).metrics == excluded.metrics
    ranked.save(tmp_path / "ranked")
    assert EvaluationResult.load(tmp_path / "ranked").metrics == ranked.metrics != excluded.metrics
    fr.evaluate(run, "validation", data=store).save(run.path)  # of the same policy: replaced, as ever
    (run.path / "evaluation.json").write_text("{}")
    ranked.save(run.path)
    assert EvaluationResult.load(run.path).protocol["seen"] == "keep", "what is damaged is replaced"


def test_one_of_an_earlier_version_is_read(found: list[EvaluationResult], tmp_path: Path) -> None:
    found[0].save(tmp_path)
    tree = json.loads((tmp_path / "evaluation.json").read_text())
    assert len(tree.pop("rows_sha256")) == len(tree.pop("seal")) == 64
    (tmp_path / "evaluation.json").write_text(json.dumps(tree))
    assert EvaluationResult.load(tmp_path).metrics == found[0].metrics


def test_no_evaluation_is_put_into_a_store(found: list[EvaluationResult], store: Store, tmp_path: Path) -> None:
    """Point 20 of the review: prepare refused to replace the store after that."""
    shutil.copytree(store.path, tmp_path / "shop")
    before = sorted(path.name for path in (tmp_path / "shop").iterdir())
    with refused("folder-of-others", tmp_path / "shop"):
        found[0].save(tmp_path / "shop")
    with refused("inside-a-store", tmp_path / "shop"):
        found[0].save(tmp_path / "shop" / "test")
    assert before == sorted(path.name for path in (tmp_path / "shop").iterdir())
