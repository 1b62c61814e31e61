"""``python -m benchmarks.peers``: SASRec of this library, RecTools and RePlay on one split, scored by one scorer.

Every library trains at width 64, two layers, histories of 50, for the same wall time; then it lists ten unseen items
for each test user. The table says seconds per epoch, accuracy, users a second and peak memory. With ``--task ranking``
it is DCNv2 and FinalMLP of this library and FuxiCTR on frappe and ml-1m: AUC, LogLoss, seconds per epoch and memory.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from benchmarks.data import beauty, tiny
from benchmarks.harness import Benchmark, Figures, Say, main, require, rounded
from benchmarks.impressions import prepared
from benchmarks.peers import ranking
from benchmarks.peers.environments import HERE, python_of
from benchmarks.peers.exchange import K, export, read_lists, score
from benchmarks.peers.launch import launch, suffix, trainings
from fullrank.core.errors import UserError

LIBRARIES = ("ours", "rectools", "replay")
SETTINGS: dict[str, Any] = {
    "dim": 64, "layers": 2, "heads": 2, "max_length": 50, "dropout": 0.2, "lr": 1e-3, "rows": 128,
}  # fmt: skip
GRACE = 900
"""Seconds that a library may take beyond the budget, to read, compile and recommend."""


def check() -> None:
    """Both scorers."""
    check_lists()
    check_probabilities()


def check_lists() -> None:
    """Lists with the target at a known place give known numbers; lists of seen items are noticed."""
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


def check_probabilities() -> None:
    """Probabilities that order all but one pair rightly give a known AUC, whatever the order of their rows."""
    with tempfile.TemporaryDirectory() as folder:
        store = prepared(300, Path(folder) / "store")
        labels = store.labels("test").astype(float)
        given = 0.25 + 0.5 * labels
        given[[labels.argmax(), labels.argmin()]] = 0.25, 0.5  # one positive below one negative, level with the others
        pairs = labels.sum() * (len(labels) - labels.sum())
        frame = pl.DataFrame({"row": np.arange(len(labels)), "probability": given})
        frame.sample(fraction=1, shuffle=True, seed=0).write_parquet(f"{folder}/p")
        found = ranking.score(store, ranking.read_probabilities(store, Path(folder) / "p"))
    wrong = 1 + (len(labels) - labels.sum() - 1) / 2
    require(abs(found["auc"] - (1 - wrong / pairs)) < 1e-9, "AUC is not the share of pairs in the right order")
    likelihood = np.where(labels == 1, given, 1 - given)
    require(abs(found["logloss"] + np.log(likelihood).mean()) < 1e-9, "LogLoss is not the mean of -log p")


def measure(options: argparse.Namespace, say: Say) -> Figures:
    known = LIBRARIES if options.task == "recommend" else ranking.LIBRARIES
    libraries = options.only or known
    if set(libraries) - set(known):
        raise UserError(f"--task {options.task} compares {', '.join(known)}, not {', '.join(libraries)}")
    if options.install:
        return {"environments": {name: str(python_of(name, say)) for name in libraries}}
    if options.task == "ranking":
        given = ("epochs", "threads", "seed", "precision")
        most = {name: getattr(options, name) for name in given}
        return ranking.compare(libraries, options.models, options.sets, most, say)
    store = beauty(options.data, say)
    pythons = {name: python_of(name, say) for name in libraries}
    settings = SETTINGS | {
        "seconds": 60 * options.minutes, "epochs": options.epochs, "threads": options.threads, "seed": options.seed,
        "store": str(store.path.resolve()),
    }  # fmt: skip
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        export(store, Path(folder), settings)
        for name, precision in trainings(libraries, options.precision):
            say(f"{name}, {precision}: up to {options.minutes:g} minutes of training")
            rows.append(run(name, pythons[name], Path(folder), store, settings, precision))
            say(json.dumps(rows[-1]))
    print(shown(rows))
    return {"libraries": rows, **ratios(rows), "training": {k: v for k, v in settings.items() if k != "store"}}


def run(
    name: str, python: Path, folder: Path, store: Any, settings: dict[str, Any], precision: str = "fp32"
) -> Figures:
    """One library's row; a library that fails gets a row that says how."""
    timing = launch(
        name, name, python, folder, precision=precision, threads=settings["threads"],
        limit=settings["seconds"] + GRACE, runners=HERE / "runners",
    )  # fmt: skip
    if "failed" in timing:
        return timing
    timing["users_per_s"] = timing["users"] / timing["recommend_seconds"]
    return rounded(timing | score(store, read_lists(store, folder / f"{name}-{precision}" / "lists.parquet")))


def ratios(rows: list[Figures]) -> Figures:
    """Each peer's seconds per epoch and per user over ours, of each precision of ours."""
    whole, found = [row for row in rows if "failed" not in row], {}
    for row, ours in product(whole, whole):
        if row["library"] != "fullrank" and ours["library"] == "fullrank":
            name, tail = row["library"].lower(), suffix(ours)
            found[f"{name}_epoch_over_ours{tail}"] = row["seconds_per_epoch"] / ours["seconds_per_epoch"]
            found[f"{name}_recommend_over_ours{tail}"] = ours["users_per_s"] / row["users_per_s"]
    return rounded(found, 3)


def shown(rows: list[Figures]) -> str:
    """The table that people read."""
    columns = (
        "library", "precision", "version", "seconds_per_epoch", "epochs", "train_seconds", "ndcg@10", "recall@10",
        "users_per_s", "peak_rss_mb",
    )  # fmt: skip
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    for row in rows:
        cells = [row["library"], row["precision"], row["failed"]] if "failed" in row else [f"{row[c]}" for c in columns]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def arguments(parser: argparse.ArgumentParser) -> None:
    every = dict.fromkeys((*LIBRARIES, *ranking.LIBRARIES))
    parser.add_argument("--task", choices=("recommend", "ranking"), default="recommend", help="what is compared")
    parser.add_argument(
        "--data", type=Path, help="recommend: a prepared store (default: amazon-beauty of FULLRANK_DATA)"
    )
    parser.add_argument("--models", nargs="+", choices=ranking.MODELS, default=ranking.MODELS, help="ranking: models")
    parser.add_argument(
        "--sets", nargs="+", choices=ranking.SETS, default=list(ranking.SETS), help="ranking: data sets"
    )
    parser.add_argument("--only", nargs="+", choices=every, help="libraries to run (default: all of the task)")
    parser.add_argument(
        "--precision", nargs="+", choices=("fp32", "bf16"), default=["fp32"], help="of ours: one training in each"
    )
    parser.add_argument("--minutes", type=float, default=5.0, help="recommend: wall time of each training (default 5)")
    parser.add_argument("--seed", type=int, default=0, help="seed of all trainings (default 0)")
    parser.add_argument("--epochs", type=int, default=1000, help="most epochs, whatever time is left (default 1000)")
    parser.add_argument("--install", action="store_true", help="make the environments and stop")


BENCHMARK = Benchmark("peers", __doc__ or "", arguments, check, measure)

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
