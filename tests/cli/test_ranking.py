"""Ranking models from the command line: train, evaluate one or two, predict, tune and sweep."""

from pathlib import Path

import polars as pl
import pytest
import yaml

from fullrank.cli import main
from tests.cli.conftest import Ask, Call, Refuses
from tests.training.clicks import shop as store_of
from tests.training.clicks import table

SMALL = "--set training.batch_size=256 --set evaluation.bootstrap=20 --set model.embedding.l2=0"
TINY = f"{SMALL} --set training.max_epochs=1"


@pytest.fixture(scope="session")
def clicks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `impressions` and the runs `lr` and `rankelastor` (one epoch, tiny)."""
    home = tmp_path_factory.mktemp("clicks")
    store_of(home / "impressions")
    sizes = "embedding.dim=4 ranker.tokens=4 ranker.width=4 ranker.blocks=1".split()
    for recipe, settings in {"lr": "", "rankelastor": " ".join(f"--set model.{size}" for size in sizes)}.items():
        line = f"train {recipe} --data {home}/impressions --out {home}/{recipe} {TINY} {settings}"
        assert main(line.split()) == 0
    return home


@pytest.fixture(autouse=True)
def beside(clicks: Path, tmp_path: Path) -> None:
    """The store and the runs lie in the folder of the test."""
    for path in clicks.iterdir():
        (tmp_path / path.name).symlink_to(path)


def test_evaluate(ask: Ask, call: Call) -> None:
    found = ask("evaluate rankelastor")
    assert {"auc", "logloss", "gauc", "ece", "pcoc"} < set(found["metrics"]) and found["curve"]
    said = call("evaluate lr --split validation")
    assert "reliability" in said.out and "impressions of the validation split" in said.out
    assert max(map(len, said.out.splitlines())) <= 80


def test_evaluate_two(ask: Ask, refuses: Refuses, tmp_path: Path) -> None:
    found = ask("evaluate lr rankelastor --out .")
    gap = found["metrics"]["auc"]
    assert gap["difference"] == gap["b"] - gap["a"] and len(gap["interval"]) == 2
    assert (tmp_path / "a" / "per_row.parquet").is_file() and (tmp_path / "b" / "evaluation.json").is_file()
    one = ask("evaluate lr rankelastor --metric logloss")
    assert list(one["metrics"]) == ["logloss"]
    assert set(found["metrics"]) == {"auc", "logloss", "auc-logloss", "gauc"}
    alone = ask("evaluate lr --metric gauc --set slices=[item]")
    assert list(alone["metrics"]) == list(alone["interval"]) == ["gauc"]
    assert "(10 other values)" in alone["slices"]["item"]
    for runs in ("lr", "lr rankelastor"):
        refuses("unknown-metric", f"evaluate {runs} --metric gaucc", "did you mean 'gauc'?")
    refuses("metric-of-one-run", "evaluate lr rankelastor --metric ece", "ece has no paired difference")


def test_evaluate_refuses_two_kinds(refuses: Refuses) -> None:
    for pair in ("lr @popularity", "@popularity lr"):
        refuses("two-problems", f"evaluate {pair}", "lr", "popularity")
    refuses("option-of-other-problem", "evaluate lr --reasoning-steps 0", "--reasoning-steps")
    refuses("not-a-recommender", "study drop lr --shares 0.1", "lr")
    refuses("not-a-recommender", "vectors lr --out v.parquet", "lr")


def test_predict(ask: Ask, call: Call, tmp_path: Path) -> None:
    table(50).drop("label").write_parquet(tmp_path / "today.parquet")
    said = ask("predict lr today.parquet --out p.parquet")
    assert said["rows"] == 50
    found = pl.read_parquet(tmp_path / "p.parquet")
    assert found["note"].to_list() == list(range(50)) and found["probability"].is_between(0, 1).all()
    shown = call("predict lr today.parquet --column ctr")
    assert "ctr" in shown.out and "40 more" in shown.out


def test_predict_says_what_is_wrong(refuses: Refuses, shop: Path, tmp_path: Path) -> None:
    table(5).drop("item").write_parquet(tmp_path / "bad.parquet")
    refuses("missing-column", "predict lr bad.parquet", "'item'")
    refuses("not-a-ranking-model", "predict @popularity bad.parquet", shop / "popularity", "`recommend`")
    refuses("unknown-suffix", "predict lr bad.parquet --out x.xls", "'.xls'", ".parquet")


def test_diagnose(ask: Ask, call: Call, refuses: Refuses, shop: Path, tmp_path: Path) -> None:
    found = ask("diagnose rankelastor --impressions 60 --seed 1 --out rows.jsonl")
    assert found["impressions"] == 60 and found["seed"] == 1
    assert len((tmp_path / "rows.jsonl").read_text().splitlines()) == len(found["rows"])
    said = call("diagnose rankelastor --impressions 60 --out rows.jsonl --overwrite")
    shown = " ".join(said.out.split())
    for word in ("60 impressions of the test split", "mixing_0", "stable", "gain", "left out: rank_theorems"):
        assert word in shown
    assert max(map(len, said.out.splitlines())) <= 80
    said = call("diagnose lr --out rows.jsonl --overwrite")
    assert said.code == 0 and "left out: token_ranks" in said.out
    refuses("sample-of-other-problem", "diagnose lr --users 5", "lr", "give impressions")
    refuses("sample-of-other-problem", "diagnose @popularity --impressions 5", shop / "popularity", "give users")


def test_report(ask: Ask, call: Call, refuses: Refuses, shop: Path, tmp_path: Path) -> None:
    words = "lr rankelastor --impressions 60 --out p.html"
    found = ask(f"report {words}")
    assert found["figures"] == ["differences", "reliability", "gain", "curves", "trajectory", "distribution-B"]
    assert found["runs"][0]["stable_rank"] is None and found["runs"][1]["stable_rank"] >= 1
    assert found["left_out"]["size"].startswith("no two runs differ in the size of their ranker alone")
    assert "distribution-A" in found["left_out"] and (tmp_path / "p.html").read_text().startswith("<!DOCTYPE html>")
    assert call("evaluate lr --set bins=2 --out kept").code == 0
    said = call(f"report {words} --overwrite --evaluation lr=kept")
    assert said.code == 0 and "stable rank" in said.out
    refuses("two-problems", "report lr @popularity --out q.html", "lr", shop / "popularity")


def test_watch(call: Call, refuses: Refuses, tmp_path: Path) -> None:
    said = call(f"train dcnv2 --data impressions --out run --watch {TINY}")
    assert said.code == 0 and "last layer stable rank" in said.err
    assert "watch/stable_rank/cross_2" in (tmp_path / "run" / "metrics.jsonl").read_text()
    refuses("nothing-to-watch", f"train lr --data impressions --out new --watch {TINY}")
    assert not (tmp_path / "new").exists()


def test_tune_and_sweep(ask: Ask, call: Call, tmp_path: Path) -> None:
    (tmp_path / "space.yaml").write_text(
        "cells: [lr, fm]\nspace: {training.lr: {log: [1.0e-3, 1.0e-1]}}\ntrials: 2\nepochs_share: 0.05\n"
        "set: {evaluation.selection: logloss}\n"
    )
    found = ask(f"tune space.yaml --data impressions --out t {SMALL}")
    for name, best in found["best"].items():
        assert best["score"] == min(trial["score"] for trial in found["trials"][name])
    (tmp_path / "grid.yaml").write_text("cells: [lr]\nseeds: [0, 1]\nset: {training.max_epochs: 1}\n")
    said = call(f"sweep grid.yaml --data impressions --out s {SMALL}")
    assert said.code == 0 and "logloss" in said.out and "gauc" in said.out


def test_show_counts_the_size(ask: Ask, call: Call, refuses: Refuses) -> None:
    """Of a run and of a recipe on a store, as comments that YAML passes over; the run's row holds the same."""
    found = ask("show rankelastor")
    size = found["size"]
    assert size == found["manifest"]["size"] and size["flops"] == sum(size["flops_by_component"].values())
    assert size["embedding_parameters"] + size["dense_parameters"] == found["manifest"]["parameters"]
    smaller = ask("show rankelastor --set model.ranker.blocks=2")["size"]
    assert smaller["dense_parameters"] > size["dense_parameters"]
    said = call("show lr --data impressions").out
    assert "parameters in tables, 1 dense" in said and "\n# 0 FLOPs" in said
    assert yaml.safe_load(said) == ask("show lr")["spec"]
    assert "size" not in ask("show @sasrec")
    refuses("option-of-other-problem", "show sasrec --data impressions", "sasrec", "--data")
    refuses("option-of-other-problem", "show lr --data @data", "lr", "--data")
