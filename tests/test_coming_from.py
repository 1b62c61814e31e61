"""The page for people who come from another library: each of our calls on it runs, in the order of the page."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from scipy.sparse import csr_matrix

import fullrank
from test_docs import blocks, text_of

PAGE = "docs/guide/coming_from.md"
LIBRARIES = ("RecTools", "RePlay", "RecBole", "FuxiCTR", "implicit")
USERS, EVENTS, ITEMS = 40, 8, 20
SHORT = 2
"""Epochs in place of those on the page."""


def test_every_library_has_its_call_and_ours() -> None:
    text = text_of(PAGE)
    for name in LIBRARIES:
        section = text.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
        assert [one.partition("\n")[0] for one in blocks(section, "python")][:2] == [f"# {name}", "# fullrank"]


def test_our_calls_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    draw = np.random.default_rng(0)
    user = np.repeat(np.arange(USERS), EVENTS)
    item = np.concatenate([draw.permutation(ITEMS)[:EVENTS] for _ in range(USERS)])
    hours = 1_700_000_000 + 3600 * np.arange(len(user))
    monkeypatch.chdir(tmp_path)
    inter = pl.DataFrame({"user_id:token": user, "item_id:token": item, "timestamp:float": hours.astype(np.float64)})
    inter.write_csv("shop.inter", separator="\t")
    given = {
        "frame": pl.DataFrame({"user_id": user, "item_id": item, "datetime": pl.from_epoch(pl.Series(hours))}),
        "user_items": csr_matrix((np.ones(len(user)), (user, item))),
    }
    rows = 2000
    shown = {"clk": 2, "user": USERS, "item": ITEMS, "hour": 24}
    pl.DataFrame({name: draw.integers(0, most, rows) for name, most in shown.items()}).write_csv("shown.csv")
    lists = {"user_id": np.repeat(np.arange(USERS), 10), "item_id": np.tile(np.arange(10), USERS)}
    pl.DataFrame({**lists, "rank": np.tile(np.arange(1, 11), USERS)}).write_csv("recommendations.csv")
    ours = [one for one in blocks(text_of(PAGE), "python") if one.startswith("# fullrank\n")]
    assert len(ours) == len(LIBRARIES) + 2
    for block in ours:
        short = block.replace("max_epochs=20", f"max_epochs={SHORT}").replace("max_epochs=5", f"max_epochs={SHORT}")
        exec(compile(short, PAGE, "exec"), given)
    assert isinstance(given["run"], fullrank.Run) and len(given["probabilities"]) == rows
    assert given["lists"]["user"].to_list() == [7] * 10 and "compared" in capsys.readouterr().out
