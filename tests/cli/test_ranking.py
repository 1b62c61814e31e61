"""Ranking models from the command line: train, evaluate one or two, predict, tune and sweep."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import pytest
import yaml

from fullrank.cli import main
from tests.training.clicks import shop as store_of
from tests.training.clicks import table

if TYPE_CHECKING:
    from conftest import Call, Refuses

TINY = ("training.max_epochs=1", "training.batch_size=256", "evaluation.bootstrap=20", "model.embedding.l2=0")


@pytest.fixture(scope="session")
def clicks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `data` (impressions) and the runs `lr` and `rankelastor` (one epoch, tiny)."""
    home = tmp_path_factory.mktemp("clicks")
    store_of(home / "data")
    small = ["model.embedding.dim=4", "model.ranker.tokens=4", "model.ranker.width=4", "model.ranker.blocks=1"]
    for recipe, settings in {"lr": [], "rankelastor": small}.items():
        words = [word for setting in (*TINY, *settings) for word in ("--set", setting)]
        assert main(["train", recipe, "--data", str(home / "data"), "--out", str(home / recipe), *words]) == 0
    return home


def test_evaluate(call: Call, clicks: Path) -> None:
    found = call("evaluate", clicks / "rankelastor", "--json").json
    assert {"auc", "logloss", "gauc", "ece", "pcoc"} < set(found["metrics"]) and found["curve"]
    said = call("evaluate", clicks / "lr", "--split", "validation")
    assert "reliability" in said.out and "impressions of the validation split" in said.out
    assert max(map(len, said.out.splitlines())) <= 80


def test_evaluate_two(call: Call, refuses: Refuses, clicks: Path, tmp_path: Path) -> None:
    found = call("evaluate", clicks / "lr", clicks / "rankelastor", "--out", tmp_path, "--json").json
    gap = found["metrics"]["auc"]
    assert gap["difference"] == gap["b"] - gap["a"] and len(gap["interval"]) == 2
    assert (tmp_path / "a" / "per_row.parquet").is_file() and (tmp_path / "b" / "evaluation.json").is_file()
    one = call("evaluate", clicks / "lr", clicks / "rankelastor", "--metric", "logloss", "--json").json
    assert list(one["metrics"]) == ["logloss"]
    assert set(found["metrics"]) == {"auc", "logloss", "auc-logloss", "gauc"}
    alone = call("evaluate", clicks / "lr", "--metric", "gauc", "--set", "slices=[item]", "--json").json
    assert (
        list(alone["metrics"]) == list(alone["interval"]) == ["gauc"] and "(10 other values)" in alone["slices"]["item"]
    )
    for words in ([clicks / "lr"], [clicks / "lr", clicks / "rankelastor"]):
        refuses("unknown-metric", ["evaluate", *words, "--metric", "gaucc"], "did you mean 'gauc'?")
    words = ["evaluate", clicks / "lr", clicks / "rankelastor", "--metric", "ece"]
    refuses("metric-of-one-run", words, "ece has no paired difference")


def test_evaluate_refuses_two_kinds(refuses: Refuses, clicks: Path, shop: Path) -> None:
    for pair in ((clicks / "lr", shop / "popularity"), (shop / "popularity", clicks / "lr")):
        refuses("two-problems", ["evaluate", *pair], *pair)
    words = ["evaluate", clicks / "lr", "--reasoning-steps", 0, "--drop", "0.1"]
    refuses("option-of-other-problem", words, "--drop", "--reasoning-steps")


def test_predict(call: Call, clicks: Path, tmp_path: Path) -> None:
    table(50).drop("label").write_parquet(tmp_path / "today.parquet")
    said = call("predict", clicks / "lr", tmp_path / "today.parquet", "--out", tmp_path / "p.parquet", "--json")
    assert said.json["rows"] == 50
    found = pl.read_parquet(tmp_path / "p.parquet")
    assert found["note"].to_list() == list(range(50)) and found["probability"].is_between(0, 1).all()
    shown = call("predict", clicks / "lr", tmp_path / "today.parquet", "--column", "ctr")
    assert "ctr" in shown.out and "40 more" in shown.out


def test_predict_says_what_is_wrong(refuses: Refuses, clicks: Path, shop: Path, tmp_path: Path) -> None:
    table(5).drop("item").write_parquet(tmp_path / "bad.parquet")
    refuses("missing-column", ["predict", clicks / "lr", tmp_path / "bad.parquet"], "'item'")
    refuses(
        "not-a-ranking-model",
        ["predict", shop / "popularity", tmp_path / "bad.parquet"],
        shop / "popularity",
        "`recommend`",
    )
    words = ["predict", clicks / "lr", tmp_path / "bad.parquet", "--out", "x.xls"]
    refuses("unknown-suffix", words, "'.xls'", ".parquet")


def test_the_wrong_store(refuses: Refuses, clicks: Path, shop: Path, tmp_path: Path) -> None:
    refuses(
        "store-of-other-problem",
        ["train", "sasrec", "--data", clicks / "data", "--out", tmp_path / "a"],
        "sasrec",
        clicks / "data",
    )
    refuses(
        "store-of-other-problem", ["train", "lr", "--data", shop / "data", "--out", tmp_path / "b"], "lr", shop / "data"
    )
    refuses("not-a-recommender", ["recommend", clicks / "lr", "--history", "1"], clicks / "lr", "`predict`")


def test_diagnose(call: Call, refuses: Refuses, clicks: Path, shop: Path, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    found = call("diagnose", clicks / "rankelastor", "--impressions", 60, "--seed", 1, "--out", rows, "--json").json
    assert (
        found["impressions"] == 60 and found["seed"] == 1 and len(rows.read_text().splitlines()) == len(found["rows"])
    )
    said = call("diagnose", clicks / "rankelastor", "--impressions", 60, "--out", rows, "--overwrite")
    for word in (
        "60 impressions of the test split",
        "mixing_0",
        "stable",
        "gain",
        "left out: rank_theorems",
        "directions that pass",
    ):
        assert word in " ".join(said.out.split())
    assert (
        max(len(line) for line in said.out.splitlines() if str(tmp_path) not in line and str(clicks) not in line) <= 80
    )
    said = call("diagnose", clicks / "lr", "--out", rows, "--overwrite")
    assert said.code == 0 and "left out: token_ranks" in said.out
    refuses("sample-of-other-problem", ["diagnose", clicks / "lr", "--users", 5], clicks / "lr", "give impressions")
    words = ["diagnose", shop / "popularity", "--impressions", 5]
    refuses("sample-of-other-problem", words, shop / "popularity", "give users")


def test_report(call: Call, refuses: Refuses, clicks: Path, shop: Path, tmp_path: Path) -> None:
    words = (clicks / "lr", clicks / "rankelastor", "--impressions", 60, "--out", tmp_path / "p.html")
    found = call("report", *words, "--json").json
    assert found["figures"] == ["differences", "reliability", "gain", "curves", "trajectory", "distribution-B"]
    assert found["runs"][0]["stable_rank"] is None and found["runs"][1]["stable_rank"] >= 1
    assert found["left_out"]["size"].startswith("no two runs differ in the size of their ranker alone")
    assert "distribution-A" in found["left_out"] and (tmp_path / "p.html").read_text().startswith("<!DOCTYPE html>")
    assert call("evaluate", clicks / "lr", "--set", "bins=2", "--out", tmp_path / "kept").code == 0
    said = call("report", *words, "--overwrite", "--evaluation", f"lr={tmp_path / 'kept'}")
    assert said.code == 0 and "stable rank" in said.out
    refuses(
        "two-problems",
        ["report", clicks / "lr", shop / "popularity", "--out", tmp_path / "q.html"],
        clicks / "lr",
        shop / "popularity",
    )


def test_watch(call: Call, refuses: Refuses, clicks: Path, tmp_path: Path) -> None:
    tiny = [word for setting in TINY for word in ("--set", setting)]
    said = call("train", "dcnv2", "--data", clicks / "data", "--out", tmp_path / "run", "--watch", *tiny)
    assert said.code == 0 and "last layer stable rank" in said.err
    assert "watch/stable_rank/cross_2" in (tmp_path / "run" / "metrics.jsonl").read_text()
    words = ["train", "lr", "--data", clicks / "data", "--out", tmp_path / "lr", "--watch", *tiny]
    refuses("nothing-to-watch", words)
    assert not (tmp_path / "lr").exists()


def test_tune_and_sweep(call: Call, clicks: Path, tmp_path: Path) -> None:
    settings = [word for setting in TINY[1:] for word in ("--set", setting)]
    (tmp_path / "space.yaml").write_text(
        "cells: [lr, fm]\nspace: {training.lr: {log: [1.0e-3, 1.0e-1]}}\ntrials: 2\nepochs_share: 0.05\n"
        "set: {evaluation.selection: logloss}\n"
    )
    found = call(
        "tune", tmp_path / "space.yaml", "--data", clicks / "data", "--out", tmp_path / "t", *settings, "--json"
    ).json
    for name, best in found["best"].items():
        assert best["score"] == min(trial["score"] for trial in found["trials"][name])
    (tmp_path / "grid.yaml").write_text("cells: [lr]\nseeds: [0, 1]\nset: {training.max_epochs: 1}\n")
    said = call("sweep", tmp_path / "grid.yaml", "--data", clicks / "data", "--out", tmp_path / "s", *settings)
    assert said.code == 0 and "logloss" in said.out and "gauc" in said.out


def test_show_counts_the_size(call: Call, refuses: Refuses, clicks: Path, shop: Path) -> None:
    """Of a run and of a recipe on a store, as comments that YAML passes over; the run's row holds the same."""
    found = call("show", clicks / "rankelastor", "--json").json
    size = found["size"]
    assert size == found["manifest"]["size"] and size["flops"] == sum(size["flops_by_component"].values())
    assert size["embedding_parameters"] + size["dense_parameters"] == found["manifest"]["parameters"]
    smaller = call("show", clicks / "rankelastor", "--set", "model.ranker.blocks=2", "--json").json["size"]
    assert smaller["dense_parameters"] > size["dense_parameters"]
    said = call("show", "lr", "--data", clicks / "data").out
    assert "parameters in tables, 1 dense" in said and "\n# 0 FLOPs" in said
    assert yaml.safe_load(said) == call("show", "lr", "--json").json["spec"]
    assert "size" not in call("show", shop / "sasrec", "--json").json
    refuses("option-of-other-problem", ["show", "sasrec", "--data", clicks / "data"], "sasrec", "--data")
    refuses("option-of-other-problem", ["show", "lr", "--data", shop / "data"], "lr", "--data")
