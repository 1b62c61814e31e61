"""All cases of the attack, then a table of what came of them, recorded in ``results/attack/``.

    python -m tests.attack [-n WORKERS] [--out FILE|FOLDER] [words for pytest]

Runs without the run-time type checker of the other tests: what a caller gets is attacked, not what a test would see.
Leaves with the exit code of pytest.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks import harness, machine
from tests.attack.frame import KINDS, RESULTS

ROOT = Path(__file__).resolve().parents[2]
PYTEST = ["-q", "-p", "no:cacheprovider", "-o", "addopts=--import-mode=importlib --strict-markers --strict-config"]
SHOWN = 200
"""Failed cases that the record holds in full."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.attack", description=__doc__)
    parser.add_argument("-n", default="2", metavar="WORKERS", help="processes of pytest-xdist  [default: 2]")
    parser.add_argument("--out", type=Path, metavar="FILE|FOLDER", help="where the counts go; nowhere by default")
    options, words = parser.parse_known_args(argv)
    with tempfile.TemporaryDirectory(prefix="fullrank-attack-") as folder:
        threads = {"OMP_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1"}
        tests = [] if any("test_" in word for word in words) else [str(ROOT / "tests" / "attack")]
        given = [sys.executable, "-m", "pytest", *PYTEST, "-n", options.n, *words, *tests]
        begun = time.perf_counter()
        code = subprocess.run(given, cwd=ROOT, env={**os.environ, **threads, RESULTS: folder}).returncode
        spent = time.perf_counter() - begun
        rows = read(Path(folder))
    print(table(rows))
    if options.out is not None:
        settings = {"command": " ".join(["python -m tests.attack", *(argv or sys.argv[1:])]), "workers": options.n}
        answer = {
            "name": "attack", "figures": figures(rows) | {"seconds": round(spent)}, "parts": counts(rows),
            "failed": [row for row in rows if not row["held"]][:SHOWN], "settings": settings,
            "machine": machine.record(ROOT), "taken": datetime.now(UTC).isoformat(timespec="seconds"),
        }  # fmt: skip
        print(f"recorded in {harness.write(answer, options.out)}")
    return code


def read(folder: Path) -> list[dict[str, Any]]:
    """The rows of all processes, in order of their names."""
    lines = [line for file in folder.glob("*.jsonl") for line in file.read_text(encoding="utf-8").splitlines()]
    return sorted((json.loads(line) for line in lines), key=lambda row: (row["part"], row["verb"], row["name"]))


def counts(rows: list[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """Part -> tried, survived, and of these how many were refused; failed; and the cases of each kind of outcome."""
    found = {}
    for part in sorted({row["part"] for row in rows}):
        own = [row for row in rows if row["part"] == part]
        held = [row for row in own if row["held"]]
        kinds = Counter(row["kind"] for row in own)
        found[part] = {
            "tried": len(own), "survived": len(held), "refused": sum(row["kind"] == "refused" for row in held),
            "failed": len(own) - len(held), **{kind: kinds[kind] for kind in KINDS if kinds[kind]},
        }  # fmt: skip
    return found


def figures(rows: list[dict[str, Any]]) -> dict[str, float]:
    """The sums over all parts."""
    failed = Counter(row["kind"] for row in rows if not row["held"])
    return {
        "tried": len(rows), "survived": sum(row["held"] for row in rows), **{kind: failed[kind] for kind in KINDS},
        "slowest_seconds": max((row["seconds"] for row in rows), default=0.0),
    }  # fmt: skip


def table(rows: list[dict[str, Any]]) -> str:
    """A line a part, their sum, then a line for each case that failed."""
    names = ("tried", "survived", "refused", "failed")
    parts = counts(rows)
    total = {name: sum(part[name] for part in parts.values()) for name in names}
    lines = [f"{'part':<24}" + "".join(f"{name:>10}" for name in names)]
    for part, numbers in [*parts.items(), ("all", total)]:
        lines.append(f"{part:<24}" + "".join(f"{numbers[name]:>10,}" for name in names))
    for row in rows:
        if not row["held"]:
            lines.append(f"{row['kind']:<8}{row['part']} {row['verb']} {row['name']}: {row['detail'][:200]}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
