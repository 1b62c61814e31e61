"""What preparing costs: seconds and resident memory for a million events, and that torch stays unloaded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import fullrank.data

MEASURE = """
import json, sys, time
sys.path.insert(0, sys.argv[1])

def peak():
    # Bytes. Not ru_maxrss: a child inherits that of the process which started it.
    with open("/proc/self/status") as file:
        return int(next(line.split()[1] for line in file if line.startswith("VmHWM"))) * 1024

import fullrank
from fullrank.data.events.prepare import Prepare, prepare
wall, cpu = time.perf_counter(), time.process_time()
store = prepare(sys.argv[2], sys.argv[3], spec=Prepare(k_core=5, duplicates="first"))
print(json.dumps({
    "wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu, "events": store.num_events,
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


@pytest.mark.process
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc (Linux)")
@pytest.mark.parametrize("kind", ["integers.parquet", "strings.parquet", "integers.csv"])
def test_a_million_events(tmp_path: Path, kind: str) -> None:
    frame = million(strings=kind.startswith("strings"))
    raw = frame.estimated_size()
    path = tmp_path / kind
    frame.write_parquet(path) if path.suffix == ".parquet" else frame.write_csv(path)
    source = str(Path(fullrank.data.__file__).parents[2])
    threads = {"POLARS_MAX_THREADS": "2", "OMP_NUM_THREADS": "1"}
    limit = 1.5 * raw + 300e6
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, source, str(path), str(tmp_path / "store")],
        capture_output=True, text=True, check=True, env=os.environ | threads,
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert found["loaded"] == [], "prepare must stay light"
    assert found["events"] > 900_000
    assert found["peak"] < limit, found
    # Processor time, so that a busy machine fails nobody: 5 s on 2 cores would allow 10.
    assert found["cpu"] < 5, found


@pytest.mark.process
def test_nothing_but_loader_and_tensors_reaches_torch() -> None:
    heavy = ("__init__", "batch", "loader", "tensors")
    source = str(Path(fullrank.data.__file__).parents[2])
    files = [p.relative_to(source) for p in Path(fullrank.data.__file__).parent.rglob("*.py") if p.stem not in heavy]
    code = "import sys; sys.path.insert(0, sys.argv[1])\n"
    code += "\n".join(f"import {'.'.join(file.with_suffix('').parts)}" for file in files)
    code += "\nprint('torch' in sys.modules or 'lightning' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code, source], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
