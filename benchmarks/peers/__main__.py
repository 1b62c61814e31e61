"""``python -m benchmarks.peers``: SASRec of this library, RecTools and RePlay on one split, scored by one scorer.

Every library trains at width 64, two layers, histories of 50, for the same wall time; then it lists ten unseen items
for each test user. The table says seconds per epoch, accuracy, users a second and peak memory.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from benchmarks.data import beauty, tiny
from benchmarks.harness import ROOT, Benchmark, Figures, Say, main, require, rounded
from benchmarks.peers.environments import HERE, python_of
from benchmarks.peers.exchange import K, export, read_lists, score

LIBRARIES = ("ours", "rectools", "replay")
SETTINGS: dict[str, Any] = {
    "dim": 64, "layers": 2, "heads": 2, "max_length": 50, "dropout": 0.2, "lr": 1e-3, "rows": 128, "seed": 0,
}  # fmt: skip
GRACE = 900
"""Seconds that a library may take beyond the budget, to read, compile and recommend."""


def check() -> None:
    """The scorer: lists with the target at a known place give known numbers; lists of seen items are noticed."""
    store = tiny()
    asked = store.eval_set("test")
    users, targets = asked.users, asked.next_items
    ids = np.tile(np.arange(K), (len(users), 1))
    ids[ids == targets[:, None]] = K
    ids[:, 2] = targets
    found = score(store, ids)
    require(abs(found["ndcg@10"] - 0.5) < 1e-9 and found["recall@10"] == 1, "a target at rank 3 must give NDCG 1/2")
    ids[:, 2], ids[:, 4] = ids[:, 4].copy(), store.items[asked.histories.items.starts]
    again = score(store, ids)
    require(again["seen_listed"] >= 1 / K, "a list with a seen item is not noticed")
    with tempfile.TemporaryDirectory() as folder:
        frame = pl.DataFrame({
            "user_id": np.repeat(users, K), "item_id": ids.ravel(), "rank": np.tile(np.arange(1, K + 1), len(users)),
        })  # fmt: skip
        frame.sample(fraction=1, shuffle=True, seed=0).unique(("user_id", "item_id")).write_parquet(f"{folder}/l")
        back = read_lists(store, Path(folder) / "l")
        require(bool(((back == ids) | (back == -1)).all()), "lists change on their way through Parquet")


def measure(options: argparse.Namespace, say: Say) -> Figures:
    store = beauty(options.data, say)
    pythons = {name: python_of(name, say) for name in options.only}
    if options.install:
        return {"environments": {name: str(path) for name, path in pythons.items()}}
    settings = SETTINGS | {
        "seconds": 60 * options.minutes, "epochs": options.epochs, "threads": options.threads,
        "store": str(store.path.resolve()),
    }  # fmt: skip
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        export(store, Path(folder), settings)
        for name, python in pythons.items():
            say(f"{name}: up to {options.minutes:g} minutes of training")
            rows.append(run(name, python, Path(folder), store, settings))
            say(json.dumps(rows[-1]))
    print(shown(rows))
    return {"libraries": rows, **ratios(rows), "training": {k: v for k, v in settings.items() if k != "store"}}


def run(name: str, python: Path, folder: Path, store: Any, settings: dict[str, Any]) -> Figures:
    """One library's row; a library that fails gets a row that says how."""
    out = folder / name
    out.mkdir()
    path = os.pathsep.join([str(ROOT / "src")] if name == "ours" else [])
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | ({"PYTHONPATH": path} if path else {})
    environment["OMP_NUM_THREADS"] = str(settings["threads"])
    command = [str(python), str(HERE / "runners" / f"run_{name}.py"), str(folder), str(out)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, env=environment, cwd=out, timeout=settings["seconds"] + GRACE
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"library": name, "failed": f"still running {GRACE} s after its budget"}
    if done.returncode:
        return {"library": name, "failed": " | ".join(done.stderr.strip().splitlines()[-3:])}
    timing = json.loads((out / "timing.json").read_text(encoding="utf-8"))
    timing["users_per_s"] = timing["users"] / timing["recommend_seconds"]
    return rounded(timing | score(store, read_lists(store, out / "lists.parquet")))


def ratios(rows: list[Figures]) -> Figures:
    """Each peer's seconds per epoch and per user over ours."""
    whole = {row["library"].lower(): row for row in rows if "failed" not in row}
    ours = whole.pop("fullrank", None)
    if ours is None:
        return {}
    found = {}
    for name, row in whole.items():
        found[f"{name}_epoch_over_ours"] = row["seconds_per_epoch"] / ours["seconds_per_epoch"]
        found[f"{name}_recommend_over_ours"] = ours["users_per_s"] / row["users_per_s"]
    return rounded(found, 3)


def shown(rows: list[Figures]) -> str:
    """The table that people read."""
    columns = (
        "library", "version", "seconds_per_epoch", "epochs", "train_seconds", "ndcg@10", "recall@10", "users_per_s",
        "peak_rss_mb",
    )  # fmt: skip
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    for row in rows:
        cells = [row["library"], row["failed"]] if "failed" in row else [f"{row[c]}" for c in columns]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, help="a prepared store (default: amazon-beauty from FULLRANK_DATA)")
    parser.add_argument("--only", nargs="+", choices=LIBRARIES, default=list(LIBRARIES), help="libraries to run")
    parser.add_argument("--minutes", type=float, default=5.0, help="wall time of each library's training (default 5)")
    parser.add_argument("--epochs", type=int, default=1000, help="most epochs, whatever time is left (default 1000)")
    parser.add_argument("--install", action="store_true", help="make the environments and stop")


BENCHMARK = Benchmark("peers", __doc__ or "", arguments, check, measure)

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
