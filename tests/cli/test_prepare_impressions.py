"""`fullrank prepare-impressions`: files, sources, the schema's settings, and mistakes as one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import pytest

from fullrank.cli import main
from fullrank.data.impressions.store import ImpressionStore

if TYPE_CHECKING:
    from conftest import Refuses

FRAME = pl.DataFrame(
    {"click": [0, 1] * 50, "user": [row % 7 for row in range(100)], "x": [row / 3 for row in range(100)]}
)


def test_a_file_with_a_schema(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    FRAME.write_parquet(tmp_path / "t.parquet")
    (tmp_path / "s.yaml").write_text("label: click\nfields: [user]\nsplit: {kind: random, shares: [0.4, 0.3, 0.3]}\n")
    words = ["prepare-impressions", str(tmp_path / "t.parquet"), "--out", str(tmp_path / "store")]
    assert main([*words, "--schema", str(tmp_path / "s.yaml"), "--set", "group=user", "--json"]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    store = ImpressionStore.open(tmp_path / "store")
    assert told["fingerprint"] == store.fingerprint and told["counts"]["rows"] == 100 and store.num_groups == 7
    assert main([*words, "--overwrite", "--set", "split.shares=[0.4,0.3,0.3]"]) == 0
    assert [field.name for field in ImpressionStore.open(tmp_path / "store").fields] == ["user", "x"]


def test_a_source(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    out = str(tmp_path / "store")
    assert main(["prepare-impressions", "planted_clicks", "--set", "source.rows=500", "--out", out]) == 0
    assert "500 rows, 7 fields" in " ".join(capsys.readouterr().out.split())
    settings = ["--set", "source.rows=500", "--set", "split.shares=[0.5,0.3,0.2]"]
    assert main(["prepare-impressions", "planted_clicks", *settings, "--out", out, "--overwrite"]) == 0
    assert len(ImpressionStore.open(out).split("train")) < 300


@pytest.mark.parametrize(
    ("words", "code", "name"),
    [
        (["planted_clicks"], "missing-option", "--out"),
        (["movielens", "--out", "x"], "wrong-kind-of-source", "fullrank prepare movielens"),
        (["planted_click", "--out", "x"], "unknown-source", "did you mean 'planted_clicks'"),
        (["planted_clicks", "folder", "--out", "x"], "option-without-effect", "'planted_clicks'"),
        (["none.parquet", "folder", "--out", "x"], "option-without-effect", "'none.parquet'"),
        (["none.parquet", "--out", "x"], "missing-file", "none.parquet"),
        (["planted_clicks", "--set", "source.row=5", "--out", "x"], "unknown-setting", "'rows'"),
        (["planted_clicks", "--set", "spilt=random", "--out", "x"], "unknown-setting", "'split'"),
    ],
)
def test_mistakes(
    words: list[str], code: str, name: str, refuses: Refuses, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refuses(code, ["prepare-impressions", *words], name)
    assert list(tmp_path.iterdir()) == []


def test_prepare_refuses_impressions(refuses: Refuses, tmp_path: Path) -> None:
    words = ["prepare", "criteo", "--out", tmp_path / "x"]
    refuses("wrong-kind-of-source", words, "fullrank prepare-impressions criteo")


def test_schema_of_impressions(capsys: pytest.CaptureFixture) -> None:
    assert main(["schema", "--kind", "impressions", "--json"]) == 0
    assert "label_threshold" in json.loads(capsys.readouterr().out.splitlines()[-1])["properties"]
