"""`fullrank prepare-impressions`: files, sources, the schema's settings, and mistakes as one sentence."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from fullrank.data.impressions.store import ImpressionStore
from tests.cli.conftest import Ask, Call, Refuses


def test_a_file_with_a_schema(ask: Ask, tmp_path: Path) -> None:
    frame = pl.DataFrame({"click": [0, 1] * 50, "user": np.arange(100) % 7, "x": np.arange(100) / 3})
    frame.write_parquet(tmp_path / "t.parquet")
    (tmp_path / "s.yaml").write_text("label: click\nfields: [user]\nsplit: {kind: random, shares: [0.4, 0.3, 0.3]}\n")
    told = ask("prepare-impressions t.parquet --out store --schema s.yaml --set group=user")
    store = ImpressionStore.open(tmp_path / "store")
    assert told["fingerprint"] == store.fingerprint and told["counts"]["rows"] == 100 and store.num_groups == 7
    ask("prepare-impressions t.parquet --out store --overwrite --set split.shares=[0.4,0.3,0.3]")
    assert [field.name for field in ImpressionStore.open(tmp_path / "store").fields] == ["user", "x"]


def test_a_source(call: Call, tmp_path: Path) -> None:
    words = "prepare-impressions planted_clicks --set source.rows=500 --out store"
    assert "500 rows, 7 fields" in " ".join(call(words).out.split())
    assert call(f"{words} --set split.shares=[0.5,0.3,0.2] --overwrite").code == 0
    assert len(ImpressionStore.open(tmp_path / "store").split("train")) < 300


@pytest.mark.parametrize(
    ("words", "code", "name"),
    [
        ("planted_clicks", "missing-option", "--out"),
        ("movielens --out x", "wrong-kind-of-source", "fullrank prepare movielens"),
        ("planted_click --out x", "unknown-source", "did you mean 'planted_clicks'"),
        ("planted_clicks folder --out x", "option-without-effect", "'planted_clicks'"),
        ("none.parquet folder --out x", "option-without-effect", "'none.parquet'"),
        ("none.parquet --out x", "missing-file", "none.parquet"),
        ("planted_clicks --set source.row=5 --out x", "unknown-setting", "'rows'"),
        ("planted_clicks --set spilt=random --out x", "unknown-setting", "'split'"),
    ],
)
def test_mistakes(words: str, code: str, name: str, refuses: Refuses, tmp_path: Path) -> None:
    refuses(code, f"prepare-impressions {words}", name)
    assert list(tmp_path.iterdir()) == []


def test_prepare_refuses_impressions(refuses: Refuses) -> None:
    refuses("wrong-kind-of-source", "prepare criteo --out x", "fullrank prepare-impressions criteo")
