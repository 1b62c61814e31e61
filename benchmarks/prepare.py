"""Preparing a store in parts from a table ten times as large: memory, pace, and what three killed processes cost.

Planted events in Parquet files of ten million rows: a million users and a hundred thousand items for a hundred million
events, popular ones as in shops. Each preparation is a process of its own, of parts of two million events, with a
5-core and leave-one-out. `memory_mb` is the most it has resident, `anonymous_mb` that without the pages of files, and
`memory_over_10x_data` the latter over that of a tenth of the events. `look_seconds`, `spill_seconds`, `filter_seconds`,
`write_seconds` are those of its passes, and `cores` the processor seconds of a second. `equal_after_crashes`: a
preparation of the tenth, killed at three random moments and called again, has the fingerprint of an unbroken one.

``--spark local[2]`` measures something else: one preparation in this library and one on Spark, of the same events, and
whether both stores have one fingerprint.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import polars as pl

from benchmarks.harness import CACHE, ROOT, Benchmark, Figures, Say, main, require, rounded
from benchmarks.memory import in_a_process, most_anonymous
from fullrank.data.events.pieces import EventPieces
from fullrank.data.events.prepare import Prepare, prepare
from fullrank.data.events.store import Store
from fullrank.parallel import Threads
from fullrank.parallel.spark import session_of

PER_FILE = 10_000_000
PER_PART = 2_000_000
SPEC = Prepare(k_core=5)
PASSES = ("look", "spill", "filter", "write")


def write_events(folder: Path, events: int, per_file: int = PER_FILE) -> None:
    """A folder of planted events: who, what, when, in no order."""
    folder.mkdir(parents=True)
    for number, start in enumerate(range(0, events, per_file)):
        draw, rows = np.random.default_rng(number), min(per_file, events - start)
        users, items = max(events // 100, 20), max(events // 1000, 50)
        pl.DataFrame({
            "user_id": (users * draw.random(rows, np.float32) ** 1.5).astype(np.int64) * 7 + 3,
            "item_id": (items * draw.random(rows, np.float32) ** 2).astype(np.int64),
            "timestamp": draw.integers(1_600_000_000, 1_700_000_000, rows),
        }).write_parquet(folder / f"{number:04}.parquet")  # fmt: skip


def prepared(folder: Path, out: Path, parts: int) -> Store:
    return prepare(folder, out, spec=SPEC, parts=parts, overwrite=True)


def check(make: Any = prepared) -> None:
    """The same fingerprint for other numbers of parts, and the events of a store in one."""
    folder = CACHE / "prepare-check"
    shutil.rmtree(folder, ignore_errors=True)
    try:
        write_events(folder / "events", 20_000, 7_000)
        found = [make(folder / "events", folder / f"in-{count}", count) for count in (1, 4)]
        whole = prepare(folder / "events", folder / "whole", spec=SPEC)
        require(len({store.fingerprint for store in found}) == 1, "the number of parts changes the fingerprint")
        for store in found:
            rows = store.rows_of(whole.user_ids)
            same = np.array_equal(store.events.items.take(rows).flat(), whole.events.items.flat())
            require(same, "a store in parts does not hold the events of a store in one")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def measure(options: argparse.Namespace, say: Say) -> Figures:
    folder = CACHE / "prepare"
    shutil.rmtree(folder, ignore_errors=True)
    try:
        if options.spark is not None:
            return _beside_spark(options, folder, say)
        found = {}
        for name, events in (("tenth", options.events // 10), ("whole", options.events)):
            say(f"write {events:,} events")
            write_events(folder / name, events)
            say(f"prepare {events:,} events")
            parts = max(round(events / PER_PART), 1)
            found[name] = in_a_process("benchmarks.prepare", "--one", folder / name, folder / f"{name}-store", parts)
        say("three crashes")
        seconds = found["tenth"]["seconds"]
        print_of, crashes = _after_crashes(folder, max(round(options.events / 10 / PER_PART), 1), seconds)
        whole, tenth = found["whole"], found["tenth"]
        return rounded({
            "events": whole["events"],
            "events_per_s": options.events / whole["seconds"],
            "memory_mb": whole["memory_mb"],
            "anonymous_mb": whole["anonymous_mb"],
            "anonymous_mb_tenth": tenth["anonymous_mb"],
            "memory_over_10x_data": whole["anonymous_mb"] / tenth["anonymous_mb"],
            "seconds": whole["seconds"],
            "seconds_tenth": tenth["seconds"],
            **{f"{name}_seconds": whole[f"{name}_seconds"] for name in PASSES},
            "cores": whole["cores"],
            "crashes": crashes,
            "equal_after_crashes": print_of == tenth["fingerprint"],
            "fingerprint": whole["fingerprint"],
        })  # fmt: skip
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _after_crashes(folder: Path, parts: int, seconds: float) -> tuple[str, int]:
    """The fingerprint of a preparation that was killed three times, each a random while behind its start."""
    out, draw, crashes = folder / "crashed-store", random.Random(0), 0
    command = [sys.executable, "-m", "benchmarks.prepare", "--one", folder / "tenth", out, parts]
    for _ in range(3):
        process = subprocess.Popen([str(word) for word in command], cwd=ROOT, stdout=subprocess.DEVNULL)
        time.sleep(draw.uniform(0.2, 0.8) * seconds)
        crashes += process.poll() is None
        process.kill()
        process.wait()
    return in_a_process("benchmarks.prepare", "--one", folder / "tenth", out, parts)["fingerprint"], crashes


def _beside_spark(options: argparse.Namespace, folder: Path, say: Say) -> Figures:
    """The same events by both engines. Spark's seconds are without the start of its session."""
    say(f"writing {options.events:,} events")
    write_events(folder / "events", options.events)
    parts = max(round(options.events / PER_PART), 1)
    found = {}
    for name, master in (("embedded", ()), ("spark", (options.spark,))):
        say(f"preparing, {name}")
        found[name] = in_a_process("benchmarks.prepare", "--one", folder / "events", folder / name, parts, *master)
    ours, theirs = found["embedded"], found["spark"]
    return rounded({
        "events": theirs["events"],
        "equal_on_spark": ours["fingerprint"] == theirs["fingerprint"],
        "spark_events_per_s": options.events / theirs["seconds"],
        "embedded_events_per_s": options.events / ours["seconds"],
        "spark_seconds": theirs["seconds"],
        "embedded_seconds": ours["seconds"],
        "fingerprint": theirs["fingerprint"],
    })  # fmt: skip


@contextmanager
def _timed_passes() -> Iterator[dict[str, float]]:
    """The seconds of each pass in this process; planted events need no rounds of a core."""
    seconds = dict.fromkeys(PASSES, 0.0)

    def timed(owner: Any, name: str, label: Callable[..., str]) -> Any:
        done = getattr(owner, name)

        def measured(*given: Any, **named: Any) -> Any:
            begun = time.perf_counter()
            result = done(*given, **named)
            if label(*given) in seconds:
                seconds[label(*given)] += time.perf_counter() - begun
            return result

        return mock.patch.object(owner, name, measured)

    def task(runner: Any, work: Any, numbers: Any) -> str:
        return str(getattr(work, "func", work).__name__)

    with (
        timed(EventPieces, "look", lambda *given: "look"),
        timed(EventPieces, "spill", lambda *given: "spill"),
        timed(Threads, "total", task),
    ):
        yield seconds


def _one(events: str, out: str, parts: str, master: str | None = None) -> None:
    """One preparation, in this process: its seconds, its peak memory and what came of it, as JSON."""
    if master is not None:
        session_of(None, master).sparkContext.setLogLevel("ERROR")
    begun, used = time.perf_counter(), time.process_time()
    with most_anonymous() as most, _timed_passes() as passes:
        if master is None:
            store = prepared(Path(events), Path(out), int(parts))
        else:
            store = prepare(events, out, spec=SPEC, parts=int(parts), engine="spark", overwrite=True)
    seconds = time.perf_counter() - begun
    print(json.dumps({
        "seconds": seconds, "cores": (time.process_time() - used) / seconds, "anonymous_mb": most[0],
        "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, "events": store.num_events,
        "fingerprint": store.fingerprint, **{f"{name}_seconds": value for name, value in passes.items()},
    }))  # fmt: skip


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--events", type=int, default=100_000_000, help="planted events (default 100,000,000)")
    parser.add_argument("--spark", metavar="MASTER", default=None, help="compare with Spark there, such as local[2]")


BENCHMARK = Benchmark("prepare", "preparing a store in parts: memory and pace", _arguments, check, measure)

if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        _one(*sys.argv[2:])
    else:
        sys.exit(main(BENCHMARK))
