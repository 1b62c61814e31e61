"""Before and after on the same users: the retriever's own evaluation, the lists of `recommend`, and an honest doubt."""

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import fullrank as fr
from fullrank.cascade import Cascade, CascadeResult, RankingStage, rerank
from fullrank.cli import main
from fullrank.evaluation import EvaluationResult, evaluate
from refusals import refused
from seals import store_moved
from tests.cascade.conftest import BEGIN, SCHEMA, Both, log, made, ranker
from tests.training.clicks import as_format_1, tiny

HOW: dict[str, Any] = {"candidates": 15, "context": {"hour": 5}, "set": ["ks=[3,10]", "bootstrap=20"]}


@pytest.fixture
def found(cascade: Cascade) -> CascadeResult:
    return cascade.evaluate("test", **HOW)


def test_before_is_the_retrievers_own_evaluation(cascade: Cascade, found: CascadeResult) -> None:
    stage = cascade.retriever
    alone = evaluate(stage.model, stage.require_store(), "test", stage.evaluation.override(*HOW["set"]))
    assert found.before.metrics == alone.metrics and found.before.protocol == alone.protocol
    assert np.array_equal(found.before.per_user.lists, alone.per_user.lists)


def test_after_is_the_list_of_recommend(cascade: Cascade, found: CascadeResult) -> None:
    """Asked for the histories of the split; and the metrics are those of these lists, by hand."""
    store = cascade.retriever.require_store()
    chosen = store.eval_set("test")
    names, ids = store.user_ids, store.catalog.ids
    asked = {names[int(u)]: ids.gather(h).to_list() for u, h in zip(chosen.users, chosen.histories.items, strict=True)}
    wide = cascade.recommend(asked, k=15, candidates=15, context={"hour": 5}, bare="skip")
    own = {user[0]: part["item"].to_list() for user, part in wide.group_by("user", maintain_order=True)}
    recall, ndcg, reached = [], [], []
    assert found.facts["users_without_candidates"] == 1, "u0 has seen everything"
    for row, (user, targets) in enumerate(zip(chosen.users, chosen.targets, strict=True)):
        name = names[int(user)]
        truth = set(ids.gather(targets).to_list())
        given = found.after.per_user.lists[row]
        assert ids.gather(given[given >= 0]).to_list() == own.get(name, [])[:10]
        hits = np.array([item in truth for item in own.get(name, [-1] * 10)[:10]])
        recall.append(hits.sum() / len(truth))
        discounts = 1 / np.log2(np.arange(2, 12))
        ndcg.append((hits * discounts).sum() / discounts[: len(truth)].sum())
        reached.append(len(truth & set(own.get(name, []))) / len(truth))
    assert found.after.metrics["recall@10"] == pytest.approx(np.mean(recall))
    assert found.after.metrics["ndcg@10"] == pytest.approx(np.mean(ndcg))
    assert found.ceiling == pytest.approx(np.mean(reached)) and len(set(recall)) > 2


def test_differences_are_paired(found: CascadeResult) -> None:
    assert set(found.differences) == {"recall@3", "recall@10", "ndcg@3", "ndcg@10"}
    for name, gap in found.differences.items():
        assert gap == fr.compare(found.before, found.after, name)
        assert gap.difference == found.after.metrics[name] - found.before.metrics[name]
        assert gap.interval[0] <= gap.difference <= gap.interval[1]


def test_blocks_change_nothing(cascade: Cascade, found: CascadeResult, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rerank, "PAIRS", 60)
    monkeypatch.setattr(rerank, "BATCH", 11)
    again = cascade.evaluate("test", **HOW)
    assert again.after.metrics == found.after.metrics and again.ceiling == found.ceiling
    assert again.before.protocol == found.before.protocol


def test_it_is_saved_and_read_back(found: CascadeResult, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    found.save(tmp_path / "out")
    tree = json.loads((tmp_path / "out" / "cascade.json").read_text())
    assert tree["differences"]["ndcg@10"]["a"] == found.before.metrics["ndcg@10"]
    assert tree["fields"]["context"] == ["hour"] and tree["candidates"] == 15 and tree["ceiling"] == found.ceiling
    assert EvaluationResult.load(tmp_path / "out" / "after").metrics == found.after.metrics


def test_what_cannot_be_evaluated(cascade: Cascade) -> None:
    with refused("too-few-candidates", "k=20", "candidates=15"):
        cascade.evaluate("test", candidates=15, context={"hour": 5})
    with refused("needs-full-protocol", "full"):
        cascade.evaluate("test", **(HOW | {"set": ["protocol=sampled"]}))


def test_the_same_moments_are_no_reason_to_doubt(cascade: Cascade) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for split in ("validation", "test"):
            found = cascade.evaluate(split, **HOW)  # type: ignore[arg-type]
            assert found.notes == () and found.facts["targets_not_later"] == 0
            assert found.facts["ranker_trained_until"] == SCHEMA["split"]["validation_from"] - 1


def test_a_ranker_that_was_trained_on_the_targets_is_told(both: Both, tmp_path: Path) -> None:
    """Later moments for the ranker, beside a store of the earlier ones and a leave-one-out store; no times at all."""
    later = {"kind": "temporal", "validation_from": BEGIN + 320, "test_from": BEGIN + 340}
    columns = {"user": "user", "item": "item", "time": "when"}
    left_out = fr.prepare(log(), tmp_path / "loo", spec=fr.Prepare.parse({"columns": columns}))
    late = fr.prepare_impressions(log(), tmp_path / "late", schema=SCHEMA | {"split": later})
    for store in (both[0], left_out):
        cascade = made(store, late)
        with pytest.warns(UserWarning, match="may have been trained on them: split both stores at the same moments"):
            found = cascade.evaluate("test", **HOW)
        targets = store.eval_set("test").targets
        times = np.concatenate([store.times[a:b] for a, b in zip(targets.starts, targets.ends, strict=True)])
        assert found.facts["targets_not_later"] == int((times <= BEGIN + 319).sum()) > 0
    shown = fr.prepare_impressions(log(), tmp_path / "timeless", schema=SCHEMA | {"split": "random", "time": None})
    cascade = made(both[0], shown)
    with pytest.warns(UserWarning, match="the ranker's store has no times"):
        assert cascade.evaluate("test", **HOW).facts["targets_not_later"] is None


@pytest.fixture(scope="module")
def parity(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Even users like even items: a popularity retriever knows nothing of it, a trained ranker all."""
    home = tmp_path_factory.mktemp("parity")
    rng = np.random.default_rng(0)
    user, item = rng.integers(20, size=4000), rng.integers(30, size=4000)
    frame = pl.DataFrame({"user": user, "item": item, "when": np.arange(4000)})
    frame = frame.with_columns(label=((pl.col("user") + pl.col("item")) % 2 == 0).cast(pl.Int8))
    moments = {"validation_from": 3800, "test_from": 3850}
    columns = {"user": "user", "item": "item", "time": "when", "rating": "label"}
    spec = {"columns": columns, "min_rating": 1, "split": {"kind": "global_time", **moments}}
    store = fr.prepare(frame, home / "events", spec=fr.Prepare.parse(spec))
    schema = {"fields": ["user", "item"], "time": "when", "split": {"kind": "temporal", **moments}}
    shown = fr.prepare_impressions(frame, home / "impressions", schema=schema)
    fr.train("popularity", store, home / "popularity", progress=False)
    fr.train(tiny("evaluation.selection=auc"), shown, home / "ranker", progress=False)
    return home


def test_a_ranker_that_knows_more_brings_recall(parity: Path) -> None:
    found = fr.Cascade(parity / "popularity", parity / "ranker").evaluate(candidates=30, set=["seen=keep"])
    gap = found.differences["recall@10"]
    assert gap.interval[0] > 0.1 and gap.b > 1.5 * gap.a and found.ceiling == 1.0


def test_the_ranker_needs_no_store(parity: Path, tmp_path: Path) -> None:
    """What a cascade gives, and what is known of its ranker's training, is the same when that store is gone."""
    before = fr.Cascade(parity / "popularity", parity / "ranker")
    wanted, lists = before.evaluate(candidates=30, set=["seen=keep"]), before.recommend(users=[3, 8], seen="keep")
    shutil.copytree(parity / "ranker", tmp_path / "ranker")
    store_moved(tmp_path / "ranker", tmp_path / "gone")
    after = fr.Cascade(parity / "popularity", tmp_path / "ranker")
    found = after.evaluate(candidates=30, set=["seen=keep"])
    assert found.after.metrics == wanted.after.metrics and found.facts == wanted.facts
    assert found.facts["ranker_trained_until"] == 3799
    assert after.recommend(users=[3, 8], seen="keep").equals(lists)
    as_format_1(tmp_path / "ranker")
    with refused("missing-store"):
        fr.Cascade(parity / "popularity", tmp_path / "ranker")
    old = fr.Cascade(parity / "popularity", tmp_path / "ranker", impressions=parity / "impressions")
    assert old.ranker.trained_until == 3799 and old.recommend(users=[3, 8], seen="keep").equals(lists)


def test_nobody_says_when_the_rankers_training_ended(both: Both) -> None:
    known = ranker(both[1])
    cascade = made(both[0], RankingStage(known.model, known.encoder))
    with pytest.warns(UserWarning, match="or its run does not say when its training ended, so nobody can tell"):
        assert cascade.evaluate("test", **HOW).facts["ranker_trained_until"] is None


def test_the_command_line(parity: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    words = f"cascade {parity}/popularity {parity}/ranker --candidates 30 --set seen=keep".split()
    assert main([*words, "--out", str(tmp_path / "out"), "--json"]) == 0
    tree = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert tree["differences"]["ndcg@10"]["difference"] > 0.1 and (tmp_path / "out" / "cascade.json").is_file()
    assert main([*words, "--blend", "1"]) == 0
    said = capsys.readouterr().out
    assert "recall of the 30 candidates" in said and "+0.0000" in said
    assert main([*words, "--context", "hour=3"]) == 2
