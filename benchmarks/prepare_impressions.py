"""Preparing impressions in parts from a table ten times as large: memory and pace.

Planted clicks (`planted_clicks`, seven fields with a bag and a history) in Parquet files of a million rows, of a
hundred thousand users and ten thousand items, split by time. Each preparation is a process of its own, in parts of a
million rows. `memory_mb` is the most it has resident, `anonymous_mb` that without the pages of files, and
`memory_over_10x_data` the latter over that of a tenth of the rows. `store_bytes_per_row`: on disk.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from benchmarks.harness import CACHE, Benchmark, Figures, Say, main, require, rounded
from benchmarks.memory import in_a_process, most_anonymous
from fullrank.data.impressions.prepare import prepare_impressions
from fullrank.data.impressions.schema import Schema, TemporalSplit
from fullrank.data.impressions.store import ImpressionStore
from fullrank.data.sources.planted_clicks import PlantedClicks

PER_FILE = PER_PART = 1_000_000
USERS, ITEMS = 100_000, 10_000


def write_impressions(folder: Path, rows: int, per_file: int = PER_FILE) -> Schema:
    """A folder of planted impressions in order of time; each file is of a seed of its own. Returns their schema."""
    folder.mkdir(parents=True)
    for number, start in enumerate(range(0, rows, per_file)):
        size = min(per_file, rows - start)
        source = PlantedClicks(rows=size, users=USERS, items=ITEMS, split=TemporalSplit(), seed=number)
        found = source.impressions()
        found.table.with_columns(pl.col("timestamp") + start).write_parquet(folder / f"{number:04}.parquet")
    return found.schema


def prepared(folder: Path, out: Path, schema: Any, parts: int | None) -> ImpressionStore:
    return prepare_impressions(folder, out, schema=schema, parts=parts, overwrite=True)


def check(make: Any = prepared) -> None:
    """The same fingerprint for other numbers of parts, and the rows of a store in one."""
    folder = CACHE / "prepare-impressions-check"
    shutil.rmtree(folder, ignore_errors=True)
    try:
        schema = write_impressions(folder / "rows", 3_000, 1_300)
        found = [make(folder / "rows", folder / f"in-{count}", schema, count) for count in (1, 4)]
        whole = prepared(folder / "rows", folder / "whole", schema, None)
        require(len({store.fingerprint for store in found}) == 1, "the number of parts changes the fingerprint")
        rows = np.random.default_rng(0).permutation(len(whole))
        for store in found:
            same = len(store) == len(whole) and store.batch(rows).categorical.equal(whole.batch(rows).categorical)
            require(same, "a store in parts does not hold the rows of a store in one")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def measure(options: argparse.Namespace, say: Say) -> Figures:
    folder = CACHE / "prepare-impressions"
    shutil.rmtree(folder, ignore_errors=True)
    try:
        found = {}
        for name, rows in (("tenth", options.rows // 10), ("whole", options.rows)):
            say(f"write {rows:,} impressions")
            schema = write_impressions(folder / name, rows)
            (folder / f"{name}.json").write_text(schema.to_json())
            say(f"prepare {rows:,} impressions")
            parts = max(round(rows / PER_PART), 1)
            words = folder / name, folder / f"{name}-store", folder / f"{name}.json", parts
            found[name] = in_a_process("benchmarks.prepare_impressions", "--one", *words)
        whole, tenth = found["whole"], found["tenth"]
        return rounded({
            "rows": whole["rows"],
            "rows_per_s": whole["rows"] / whole["seconds"],
            "memory_mb": whole["memory_mb"],
            "anonymous_mb": whole["anonymous_mb"],
            "anonymous_mb_tenth": tenth["anonymous_mb"],
            "memory_over_10x_data": whole["anonymous_mb"] / tenth["anonymous_mb"],
            "seconds": whole["seconds"],
            "seconds_tenth": tenth["seconds"],
            "store_bytes_per_row": whole["bytes"] / whole["rows"],
            "fingerprint": whole["fingerprint"],
        })  # fmt: skip
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _one(rows: str, out: str, schema: str, parts: str) -> None:
    """One preparation, in this process: its seconds, its peak memory and what came of it, as JSON."""
    begun = time.perf_counter()
    with most_anonymous() as most:
        store = prepared(Path(rows), Path(out), schema, int(parts))
    print(json.dumps({
        "seconds": time.perf_counter() - begun, "anonymous_mb": most[0], "rows": len(store),
        "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, "fingerprint": store.fingerprint,
        "bytes": sum(file.stat().st_size for file in Path(out).rglob("*") if file.is_file()),
    }))  # fmt: skip


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, default=20_000_000, help="planted impressions (default 20,000,000)")


BENCHMARK = Benchmark(
    "prepare_impressions", "preparing impressions in parts: memory and pace", _arguments, check, measure
)

if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        _one(*sys.argv[2:])
    else:
        sys.exit(main(BENCHMARK))
