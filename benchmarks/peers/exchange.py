"""What goes to a peer and what comes back: Parquet files of plain integers, and one scorer for all.

To it: ``train.parquet`` and ``history.parquet`` (training and validation events), both `user_id`, `item_id`,
`timestamp` in order of time, where `timestamp` is the place in the user's history (so nothing depends on how a library
breaks ties); and ``settings.json``. From it: ``lists.parquet`` (`user_id`, `item_id`, `rank` from 1) and
``timing.json``. Nobody but the scorer sees the test targets.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from benchmarks.harness import require
from fullrank.core.jagged import Jagged
from fullrank.data.events.store import Store
from fullrank.metrics import MetricInputs, match
from fullrank.metrics.lists import ndcg, recall

K = 10


def export(store: Store, folder: Path, settings: dict[str, Any]) -> None:
    """Writes what a runner reads."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, ends in (("train", store.bounds[:, 0]), ("history", store.bounds[:, 1])):
        events = Jagged(store.items, store.offsets[:-1], ends)
        users = events.row_of()
        place = np.arange(len(users)) - events.offsets[users]
        items = events.flat().astype(np.int64)
        frame = pl.DataFrame({"user_id": users, "item_id": items, "timestamp": place})
        frame.write_parquet(folder / f"{name}.parquet")
    (folder / "settings.json").write_text(json.dumps(settings | {"items": store.num_items, "k": K}), encoding="utf-8")


def read_lists(store: Store, path: Path) -> np.ndarray:
    """The lists as ids [Q, 10] in order of the test users; -1 where a list is short. Refuses what is no such table."""
    users = store.eval_set("test").users
    frame = pl.read_parquet(path).cast({"user_id": pl.Int64, "item_id": pl.Int64, "rank": pl.Int64})
    rows = np.searchsorted(users, frame["user_id"].to_numpy())
    require(bool((users[rows.clip(max=len(users) - 1)] == frame["user_id"].to_numpy()).all()), "a list of nobody's")
    require(frame["rank"].is_between(1, K).all(), f"a rank outside 1 to {K}")
    require(not frame.select("user_id", "rank").is_duplicated().any(), "two items at one rank")
    require(not frame.select("user_id", "item_id").is_duplicated().any(), "an item twice in one list")
    ids = np.full((len(users), K), -1, dtype=np.int64)
    ids[rows, frame["rank"].to_numpy() - 1] = frame["item_id"].to_numpy()
    return ids


def score(store: Store, ids: np.ndarray) -> dict[str, float]:
    """NDCG@10 and Recall@10 over all test users, the share of full lists, and of listed items that were seen before."""
    asked = store.eval_set("test")
    truth = asked.targets.distinct()
    table = MetricInputs(match(ids, truth), truth.lengths, ids)
    width = store.num_items + 1
    listed = (np.arange(len(ids))[:, None] * width + ids)[ids >= 0]
    seen = np.isin(listed, asked.histories.items.keys(width))
    return {
        "ndcg@10": float(ndcg(table, K).mean()),
        "recall@10": float(recall(table, K).mean()),
        "full_lists": float((ids >= 0).all(1).mean()),
        "seen_listed": float(seen.mean()) if len(seen) else 0.0,
    }
