"""What preparing costs: seconds, and memory that does not grow with the rows; and that torch stays unloaded."""

import functools
import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import fullrank.data
from folders import python

ON_LINUX = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc (Linux)")
MEASURE = """
import json, sys, time

def peak():
    # Bytes. Not ru_maxrss: a child inherits that of the process which started it.
    with open("/proc/self/status") as file:
        return int(next(line.split()[1] for line in file if line.startswith("VmHWM"))) * 1024

import fullrank
from fullrank.data.events.prepare import Prepare, prepare
cpu = time.process_time()
store = prepare(sys.argv[1], sys.argv[2], spec=Prepare(k_core=5, duplicates="first"))
print(json.dumps({
    "cpu": time.process_time() - cpu, "events": store.num_events,
    "peak": peak(),
    "loaded": [m for m in ("torch", "lightning", "pandas", "pyarrow", "duckdb") if m in sys.modules],
}))
"""


def million(strings: bool) -> pl.DataFrame:
    random = np.random.default_rng(0)
    size = 1_000_000
    user, time = random.integers(0, 100_000, size), random.integers(1_300_000_000, 1_400_000_000, size)
    item = (random.pareto(1.0, size) * 50).astype(np.int64) % 50_000
    frame = pl.DataFrame({"user_id": user, "item_id": item, "timestamp": time})
    if strings:
        frame = frame.with_columns(user_id=pl.format("user-{}", "user_id"), item_id=pl.format("B00{}", "item_id"))
    return frame


def measured(code: str, *arguments: object) -> dict:
    """What a process says that prepares: CPU seconds, so that a busy machine fails nobody, and peaks of memory."""
    return json.loads(python(code, *arguments, POLARS_MAX_THREADS="2", OMP_NUM_THREADS="1").stdout)


@pytest.mark.process
@ON_LINUX
@pytest.mark.parametrize("kind", ["integers.parquet", "strings.parquet", "integers.csv"])
def test_a_million_events(tmp_path: Path, kind: str) -> None:
    frame, path = million(strings=kind.startswith("strings")), tmp_path / kind
    frame.write_parquet(path) if path.suffix == ".parquet" else frame.write_csv(path)
    found = measured(MEASURE, path, tmp_path / "store")
    assert found["loaded"] == [], "prepare must stay light"
    assert found["events"] > 900_000 and found["peak"] < 1.5 * frame.estimated_size() + 300e6, found
    assert found["cpu"] < 5, found  # 5 s on 2 cores would allow 10


@pytest.mark.process
def test_nothing_but_batches_loader_and_tensors_reaches_torch() -> None:
    heavy = ("__init__", "batch", "loader", "tensors")
    folder = Path(fullrank.data.__file__).parent
    modules = [path.relative_to(folder.parents[1]).with_suffix("").parts for path in folder.rglob("*.py")]
    code = "import sys\n" + "\n".join(f"import {'.'.join(parts)}" for parts in modules if parts[-1] not in heavy)
    done = python(code + "\nprint({'torch', 'lightning', 'pandas'} & {*sys.modules})")
    assert done.stdout.strip() == "set()"


IMPRESSIONS = """
import json, sys, threading, time

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
store = prepare_impressions(sys.argv[1], sys.argv[2], schema=json.loads(sys.argv[3]))
print(json.dumps({"cpu": time.process_time() - cpu, "peak": most, "rows": len(store), "torch": "torch" in sys.modules}))
"""
SCHEMA = {
    "fields": [
        "user", {"name": "item", "min_count": 2}, "a", "b", "c", {"kind": "numeric", "name": "x"},
        {"kind": "numeric", "name": "y", "transform": "bucket"}, {"kind": "bag", "name": "tags", "separator": "|"},
        {"kind": "sequence", "name": "history", "shares": "item", "separator": " "},
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


@pytest.mark.process
@ON_LINUX
def test_a_million_impressions(tmp_path: Path) -> None:
    (tmp_path / "table").mkdir()
    for number in range(4):
        block(number).write_parquet(tmp_path / "table" / f"{number}.parquet")
    found = measured(IMPRESSIONS, tmp_path / "table", tmp_path / "store", json.dumps(SCHEMA))
    assert found["rows"] == 4 * BLOCK and not found["torch"], "prepare must stay light"
    assert found["cpu"] < 10, found


@pytest.mark.slow
@ON_LINUX
@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_memory_does_not_grow_with_the_rows(tmp_path: Path, kind: str) -> None:
    peaks, table = [], tmp_path / ("table.csv" if kind == "csv" else "table")
    if kind == "parquet":
        table.mkdir()
    for blocks in (12, 24):  # below some 200 MB of CSV the engine's own buffers still grow
        for number in range(blocks - 12, blocks):
            piece = block(number % 4)  # making text is what takes longest here
            if kind == "parquet":
                piece.write_parquet(table / f"{number:02}.parquet")
            else:
                with open(table, "ab") as file:
                    piece.write_csv(file, include_header=number == 0)
        peaks.append(measured(IMPRESSIONS, table, tmp_path / f"store{blocks}", json.dumps(SCHEMA))["peak"])
    assert peaks[1] < peaks[0] + 100e6, f"{peaks}: {12 * BLOCK:,} rows more may not add 100 MB"
    assert peaks[1] < 700e6, peaks
