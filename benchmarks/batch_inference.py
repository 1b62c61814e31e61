"""Batch inference: the lists of a million users in one process and on Spark, and what a kill in the middle costs.

Planted events in Parquet files, popular items as in shops, prepared into a store in parts. SASRec of width 16 is
trained for one epoch on a fiftieth of the users, and answers all of them with ten items each, in parts: in one process
with one thread, and on Spark with `--slots` workers of one thread. Each is a process of its own; `users_per_s_*` are of
the lists alone, `spark_start_s` is the session. `lists_equal`: the files of both are the same, scores to the bit.
`lists_of_one_call` counts users whose list is another one in a single call of `Predictor.lists` over everybody (other
users share a batch, so scores round otherwise). `resumed_parts`: parts that a call on Spark found after the one before
was killed, with its whole process group, as soon as a third of the parts was there; `resumed_equal` compares the files
again.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from benchmarks.harness import CACHE, ROOT, Benchmark, Figures, Say, main, require, rounded
from benchmarks.memory import in_a_process
from fullrank import api
from fullrank.data.events.prepare import prepare
from fullrank.data.events.store import Store
from fullrank.data.events.subset import subset
from fullrank.inference.list_parts import ListParts

PER_FILE = 1 << 18
"""Users whose events stand in one file."""
SETTINGS = ["model.dim=16", "model.max_length=20", "model.encoder.layers=1", "training.max_epochs=1"]
TRAINED = 0.02
"""Share of the users that the model is trained on."""
PATIENCE = 600.0
"""Seconds that a process which is to be killed may take until it has written enough."""


def write_events(folder: Path, users: int, items: int, per_file: int = PER_FILE) -> None:
    """A folder of planted events: every user has five to nineteen of them, each after the other."""
    folder.mkdir(parents=True)
    for number, start in enumerate(range(0, users, per_file)):
        draw, count = np.random.default_rng(number), min(per_file, users - start)
        lengths = draw.integers(5, 20, count)
        rows, taste = int(lengths.sum()), np.repeat(draw.random(count), lengths)
        step = np.arange(rows) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        place = np.where(draw.random(rows) < 0.5, draw.random(rows) ** 3, (taste + 0.01 * step) % 1.0)
        pl.DataFrame({
            "user_id": np.repeat(np.arange(start, start + count) * 7 + 3, lengths),
            "item_id": (items * place).astype(np.int64),
            "timestamp": 1_600_000_000 + 3600 * step,
        }).write_parquet(folder / f"{number:04}.parquet")  # fmt: skip


def made(folder: Path, users: int, items: int, parts: int, per_file: int = PER_FILE) -> None:
    """Events, a store in parts of all users, and a model of some of them."""
    write_events(folder / "events", users, items, per_file)
    store = prepare(folder / "events", folder / "store", parts=parts)
    some = subset(store, folder / "some", share=max(TRAINED, min(0.5, 2000 / users)), keep_items=True)
    api.train("sasrec", some, folder / "run", set=SETTINGS, progress=False)


def lists(folder: Path, name: str, parts: int, **how: Any) -> ListParts:
    return api.recommend_parts(folder / "run", folder / name, data=folder / "store", parts=parts, **how)


def same_files(one: Path, other: Path) -> bool:
    """Whether the lists of two folders are the same, scores to the bit."""
    names = sorted(path.name for path in (one / "lists").iterdir())
    return names == sorted(path.name for path in (other / "lists").iterdir()) and all(
        pl.read_parquet(one / "lists" / name).equals(pl.read_parquet(other / "lists" / name)) for name in names
    )


def check(make: Any = lists) -> None:
    """Parts are the lists of one call, and a call that finds some of them writes the same files."""
    folder = CACHE / "batch-inference-check"
    shutil.rmtree(folder, ignore_errors=True)
    try:
        made(folder, 600, 60, 2, 250)
        whole, store = make(folder, "whole", 4), Store.open(folder / "store")
        require(whole.users == store.num_users, "not every user has a list")
        found = pl.read_parquet(whole.files)
        one = api.recommend(folder / "run", users=store.user_ids, data=store)
        require(found.drop("score").equals(one.drop("score")), "parts have other lists than one call")
        make(folder, "again", 4)
        for number in (1, 3):
            (folder / "again" / "lists" / f"part-{number:05}.parquet").unlink()
        require(make(folder, "again", 4).resumed == 2, "parts that are there are made again")
        require(same_files(folder / "whole", folder / "again"), "a call that goes on writes other lists")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def measure(options: argparse.Namespace, say: Say) -> Figures:
    folder = CACHE / "batch-inference"
    shutil.rmtree(folder, ignore_errors=True)
    try:
        say(f"prepare {options.users:,} users and a model")
        made(folder, options.users, options.items, options.parts)
        say("one process")
        one = _one(folder, "one", options.parts, "embedded")
        say(f"Spark with {options.slots} slots")
        master = f"local[{options.slots}]"
        there = _one(folder, "spark", options.parts, master)
        say("a kill in the middle")
        killed = _killed(folder, "resumed", options.parts, master)
        resumed = _one(folder, "resumed", options.parts, master)
        say("one call over everybody")
        return rounded({
            "users": one["users"],
            "items": Store.open(folder / "store").num_items,
            "rows": one["rows"],
            "parts": options.parts,
            "users_per_s_one": one["users"] / one["seconds"],
            "users_per_s_spark": there["users"] / there["seconds"],
            "spark_start_s": there["start"],
            "lists_equal": same_files(folder / "one", folder / "spark"),
            "lists_of_one_call": _other_lists(folder, "one"),
            "parts_at_kill": killed,
            "resumed_parts": resumed["resumed"],
            "resumed_equal": same_files(folder / "one", folder / "resumed"),
        })  # fmt: skip
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _one(folder: Path, name: str, parts: int, where: str) -> dict[str, Any]:
    return in_a_process("benchmarks.batch_inference", "--one", folder, name, parts, where)


def _killed(folder: Path, name: str, parts: int, master: str) -> int:
    """How many parts a call on Spark had written when it was killed with all its processes."""
    words = [sys.executable, "-m", "benchmarks.batch_inference", "--one", folder, name, parts, master]
    path = os.pathsep.join([str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    process = subprocess.Popen(
        [str(word) for word in words], cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    place, begun = folder / name / "lists", time.perf_counter()

    def there() -> int:
        return len(list(place.glob("part-*.parquet")))

    while there() < max(parts // 3, 1) and process.poll() is None and time.perf_counter() - begun < PATIENCE:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return there()


def _other_lists(folder: Path, name: str) -> int:
    """Users whose list is another one in a single call over everybody."""
    from fullrank.inference.list_options import ListOptions
    from fullrank.inference.stored_users import read_users

    store, predictor = Store.open(folder / "store"), api.load(folder / "run")
    request = read_users(store.user_ids, store, predictor.catalog)
    whole = predictor.lists(request, ListOptions())
    files = sorted((folder / name / "lists").iterdir())
    found = pl.read_parquet(files)["item"]
    items = predictor.catalog.lookup(found).reshape(whole.ids.shape)
    return int((items != whole.ids).any(1).sum())


def _run_one(folder: str, name: str, parts: str, where: str) -> None:
    """The lists in this process or on Spark: seconds, the session's own, and what came of it, as JSON."""
    begun, how = time.perf_counter(), {}
    if where != "embedded":
        from fullrank.parallel.spark import session_of

        session_of(None, where)
        how = {"engine": "spark"}
    start, begun = time.perf_counter() - begun, time.perf_counter()
    found = lists(Path(folder), name, int(parts), **how)
    print(json.dumps({
        "seconds": time.perf_counter() - begun, "start": start, "users": found.users, "rows": found.rows,
        "resumed": found.resumed,
    }))  # fmt: skip


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--users", type=int, default=1_000_000, help="planted users (default 1,000,000)")
    parser.add_argument("--items", type=int, default=4000, help="planted items (default 4,000)")
    parser.add_argument("--parts", type=int, default=32, help="parts of the store and of the lists (default 32)")
    parser.add_argument("--slots", type=int, default=2, help="Spark's slots on this machine (default 2)")


BENCHMARK = Benchmark(
    "batch_inference", "lists of a million users in one process and on Spark", _arguments, check, measure
)

if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        _run_one(*sys.argv[2:])
    else:
        sys.exit(main(BENCHMARK))
