"""What preparing impressions costs: a million rows in seconds, and memory that does not grow with the rows."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import fullrank.data

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc (Linux)")
MEASURE = """
import json, sys, threading, time
sys.path.insert(0, sys.argv[1])

most = 0

def watch():  # memory of its own; the pages of a mapped input file are the system's to take back
    global most
    while True:
        with open("/proc/self/status") as file:
            most = max(most, int(next(line.split()[1] for line in file if line.startswith("RssAnon"))) * 1024)
        time.sleep(0.01)

threading.Thread(target=watch, daemon=True).start()
from fullrank.data.impressions.prepare import prepare_impressions
cpu = time.process_time()
store = prepare_impressions(sys.argv[2], sys.argv[3], schema=json.loads(sys.argv[4]))
print(json.dumps({"cpu": time.process_time() - cpu, "peak": most, "rows": len(store), "torch": "torch" in sys.modules}))
"""
SCHEMA = {
    "fields": [
        "user", {"name": "item", "min_count": 2}, "a", "b", "c", {"kind": "numeric", "name": "x"},
        {"kind": "numeric", "name": "y", "transform": "bucket"}, {"kind": "bag", "name": "tags", "separator": "|"},
        {"kind": "sequence", "name": "history", "shares": "item"},
    ],
    "group": "user", "time": "time", "split": "temporal",
}  # fmt: skip
BLOCK = 250_000


@functools.cache
def block(number: int) -> pl.DataFrame:
    draw = np.random.default_rng(number)
    tags = pl.Series(["", "red", "red|blue", "blue|green|red"])
    return pl.DataFrame(
        {
            "label": draw.integers(0, 2, BLOCK),
            "user": draw.integers(0, 6_000, BLOCK),
            "item": (draw.pareto(1.0, BLOCK) * 50).astype(np.int64) % 4_000,
            **{name: tags.gather(draw.integers(0, 4, BLOCK)) for name in "abc"},
            "x": draw.normal(size=BLOCK),
            "y": draw.normal(size=BLOCK),
            "tags": tags.gather(draw.integers(0, 4, BLOCK)),
            "history": [" ".join(map(str, row)) for row in draw.integers(0, 4_000, (BLOCK, 3)).tolist()],
            "time": draw.integers(0, 10**9, BLOCK),
        }
    )


def written(folder: Path, blocks: int) -> Path:
    """A folder of Parquet files, made one at a time."""
    folder.mkdir()
    for number in range(blocks):
        block(number).write_parquet(folder / f"{number}.parquet")
    return folder


def measured(table: Path, out: Path) -> dict[str, float]:
    schema = {**SCHEMA, "fields": [*SCHEMA["fields"][:-1], SCHEMA["fields"][-1] | {"separator": " "}]}  # type: ignore[index,operator]
    source = str(Path(fullrank.data.__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, source, str(table), str(out), json.dumps(schema)],
        capture_output=True, text=True, env=os.environ | {"POLARS_MAX_THREADS": "2", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.process
def test_a_million_impressions(tmp_path: Path) -> None:
    found = measured(written(tmp_path / "table", 4), tmp_path / "store")
    assert found["rows"] == 4 * BLOCK and not found["torch"], "prepare must stay light"
    # Processor time, so that a busy machine fails nobody.
    assert found["cpu"] < 10, found


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_memory_does_not_grow_with_the_rows(tmp_path: Path, kind: str) -> None:
    peaks = []
    for blocks in (12, 24):  # below some 200 MB of CSV the engine's own buffers still grow
        table = tmp_path / (f"{blocks}.csv" if kind == "csv" else str(blocks))
        if kind == "parquet":
            table.mkdir()
        for number in range(blocks):
            piece = block(number % 4)  # making text is what takes longest here
            if kind == "parquet":
                piece.write_parquet(table / f"{number:02}.parquet")
            else:
                with open(table, "ab") as file:
                    piece.write_csv(file, include_header=number == 0)
        peaks.append(measured(table, tmp_path / f"store{blocks}")["peak"])
    assert peaks[1] < peaks[0] + 100e6, f"{peaks}: {12 * BLOCK:,} rows more may not add 100 MB"
    assert peaks[1] < 700e6, peaks
