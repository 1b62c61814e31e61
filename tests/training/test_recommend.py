"""External ids in and out; the ranking is the one that evaluation measures."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import fullrank as fr
from fullrank.data.events.store import Store
from fullrank.run import Run
from markets import planted_store
from refusals import refused
from tests.training.conftest import tiny


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame, pa.table], ids=["pandas", "polars", "arrow"])
def test_gives_back_the_callers_kind_of_frame(make, run: Run, market: Store) -> None:  # type: ignore[no-untyped-def]
    ids = market.catalog.ids.to_list()
    table = make({"user_id": ["b", "a", "a"], "item_id": [ids[3], ids[1], ids[2]], "timestamp": [5, 9, 7]})
    found = fr.recommend(run, table, k=3)
    assert type(found) is type(table)
    lists = pl.DataFrame(found) if not isinstance(found, pd.DataFrame) else pl.from_pandas(found)
    assert lists.columns == ["user", "item", "score", "rank", "source"]
    assert lists["user"].to_list() == ["a"] * 3 + ["b"] * 3 and lists["rank"].to_list() == [1, 2, 3] * 2
    by_hand = fr.recommend(run, {"a": [ids[2], ids[1]]}, k=3)
    assert lists.filter(pl.col("user") == "a")["item"].to_list() == by_hand["item"].to_list()


def test_unknown_items_and_empty_histories_follow_their_policy(run: Run, market: Store) -> None:
    ids = market.catalog.ids.to_list()
    stranger = "no such item" if isinstance(ids[0], str) else 10**9
    known = fr.recommend(run, {"u": [ids[0]]}, k=4)
    assert fr.recommend(run, {"u": [stranger, ids[0]]}, k=4).equals(known)
    with refused("unknown-item"):
        fr.recommend(run, {"u": [stranger, ids[0]]}, unknown="error")
    popular = [ids[i] for i in np.argsort(-market.catalog.popularity, kind="stable")[:4]]
    assert fr.recommend(run, {"u": [stranger]}, k=4)["item"].to_list() == popular
    assert fr.recommend(run, {"u": []}, k=4)["item"].to_list() == popular
    with refused("no-known-items"):
        fr.recommend(run, {"u": []}, empty="error")


def test_long_histories_and_large_k(run: Run, market: Store) -> None:
    ids = market.catalog.ids.to_list()
    found = fr.recommend(run, {"u": ids[:70] * 3}, k=1000)
    assert found.height == len(ids) - 70 and found["item"].n_unique() == found.height


def test_evaluate_refuses_other_data(run: Run, tmp_path: Path) -> None:
    other = fr.prepare(
        pl.DataFrame({"user_id": [1] * 4, "item_id": [1, 2, 3, 4], "timestamp": [1, 2, 3, 4]}), tmp_path / "s"
    )
    with refused("store-differs"):
        fr.evaluate(run, data=other)


@pytest.mark.process
def test_a_run_folder_alone_is_enough(tmp_path: Path) -> None:
    """On a machine that never had the store: another process, the folder moved, the store deleted."""
    store = planted_store(tmp_path / "store")
    fr.train(tiny("training.max_epochs=1"), store, tmp_path / "here" / "run", progress=False)
    history = store.catalog.ids.head(3).to_list()
    before = fr.recommend(tmp_path / "here" / "run", [history], k=5, titles=True)
    shutil.move(tmp_path / "here", tmp_path / "elsewhere")
    shutil.rmtree(tmp_path / "store")
    code = (
        "import sys, json, fullrank as fr; p = fr.load(sys.argv[1], device='cpu'); "
        "print(json.dumps(p.recommend([json.loads(sys.argv[2])], k=5, titles=True).rows()))"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "elsewhere" / "run"), json.dumps(history)]
    found = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path).stdout
    rows = [tuple(row) for row in json.loads(found)]
    assert [(r[1], r[3], r[5]) for r in rows] == before.select("item", "rank", "title").rows()
    assert np.allclose([r[2] for r in rows], before["score"].to_numpy(), atol=1e-5)


def test_what_is_the_other_problems_is_refused(run: Run) -> None:
    with refused("not-a-ranking-model"):
        fr.load(run).predict(pl.DataFrame({"a": [1]}))
