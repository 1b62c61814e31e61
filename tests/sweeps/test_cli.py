"""`fullrank sweep` and `fullrank tune`: exit codes, the JSON line, sentences instead of tracebacks."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from fullrank.cli import main
from fullrank.data.events.store import Store
from fullrank.sweeps import work

from .conftest import TINY

SETTINGS = [word for path, value in TINY.items() for word in ("--set", f"{path}={json.dumps(value)}")]


def call(*words: object) -> int:
    return main([str(word) for word in words])


def last(capsys: pytest.CaptureFixture[str]) -> Any:
    out = capsys.readouterr().out
    assert out.count("\n") == 1, "one JSON object and nothing else"
    return json.loads(out)


def test_sweep_prints_its_rows_and_a_table(tmp_path: Path, store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    grid = tmp_path / "grid.yaml"
    grid.write_text("{name: small, cells: [sasrec], seeds: [0, 1]}")
    common = ("sweep", grid, "--data", store.path, "--out", tmp_path / "out", *SETTINGS)
    assert call(*common, "--dry-run") == 0
    assert "2 runs to do" in capsys.readouterr().out
    assert call(*common, "--json", "--results", tmp_path / "r.json") == 0
    tree = last(capsys)
    assert [row["seed"] for row in tree["rows"]] == [0, 1] and tree["summary"]["sasrec"]["test"]["ndcg@10"]["n"] == 2
    assert json.loads((tmp_path / "r.json").read_text())["rows"] == tree["rows"]
    assert call(*common) == 0
    shown = capsys.readouterr()
    assert "sasrec" in shown.out and "±" in shown.out and "finished already" in shown.err


def test_the_table_says_what_became_of_the_history(
    tmp_path: Path, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = tmp_path / "grid.yaml"
    grid.write_text("{cells: [popularity], evaluate_also: [{seen: keep}]}")
    one, two = tmp_path / "one", tmp_path / "two"
    assert call("sweep", grid, "--data", store.path, "--out", one, "--results", tmp_path / "r.json") == 0
    told = {"popularity": {"test": "history excluded", "test_seen_keep": "history ranked"}}
    assert json.loads((tmp_path / "r.json").read_text())["history"] == told
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if "popularity" in line]
    assert [row[1:4] for row in rows] == [["test", "excluded", "1"], ["test_seen_keep", "ranked", "1"]]
    shutil.copytree(store.path, tmp_path / "shop2")
    assert call("sweep", grid, "--data", store.path, "--data", tmp_path / "shop2", "--out", two) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if "/popularity" in line]
    assert [row[1:3] for row in rows] == 2 * [["test", "excluded"], ["test_seen_keep", "ranked"]]


def test_a_failed_run_makes_the_exit_code_1_and_a_bad_grid_2(
    tmp_path: Path, store: Store, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = tmp_path / "grid.yaml"
    grid.write_text("cells: [popularity]")
    monkeypatch.setattr(work, "fit", None)
    assert call("sweep", grid, "--data", store.path, "--out", tmp_path / "out", "--json") == 1
    assert last(capsys)["failed"] == ["popularity-seed0"]
    grid.write_text("cells: [popularty]")
    assert call("sweep", grid, "--data", store.path, "--out", tmp_path / "out") == 2
    shown = capsys.readouterr()
    assert "did you mean 'popularity'" in shown.err and "Traceback" not in shown.err + shown.out


def test_tune_prints_the_best_settings_and_what_comes_next(
    tmp_path: Path, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    space = tmp_path / "space.yaml"
    tree = {"cells": ["sasrec"], "set": TINY, "trials": 2, "space": {"training.lr": {"log": [1e-3, 1e-1]}}}
    space.write_text(json.dumps(tree))
    common = ("tune", space, "--data", store.path, "--out", tmp_path / "out")
    assert call(*common) == 0
    shown = capsys.readouterr().out
    assert "2 of 2 trials for every cell" in shown and "fullrank sweep" in shown
    assert call(*common, "--json") == 0
    assert last(capsys)["best"]["sasrec"]["metric"] == "ndcg@10"
