"""All draws of the attack, then a table of what came of them, recorded in ``results/attack/``.

    python -m tests.attack [-n WORKERS] [--out FILE|FOLDER] [words for pytest]

Runs without the run-time type checker of the other tests: what a caller gets is attacked, not what a test would see.
Leaves with the exit code of pytest.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from benchmarks import harness, machine
from tests.attack.frame import SURVIVED

ROOT = Path(__file__).resolve().parents[2]
PYTEST = ["-q", "-p", "no:cacheprovider", "-o", "addopts=--import-mode=importlib --strict-markers --strict-config"]
NAMES = ("tried", "survived", "refused", "failed")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.attack", description=__doc__)
    parser.add_argument("-n", default="2", metavar="WORKERS", help="processes of pytest-xdist  [default: 2]")
    parser.add_argument("--out", type=Path, metavar="FILE|FOLDER", help="where the counts go; nowhere by default")
    options, words = parser.parse_known_args(argv)
    tests = [] if any("test_" in word for word in words) else [str(ROOT / "tests" / "attack")]
    code, rows = run("-n", options.n, *words, *tests)
    print(table(rows))
    if options.out is not None:
        parts = counts(rows)
        answer = {
            "name": "attack", "parts": parts,
            "figures": {name: sum(part[name] for part in parts.values()) for name in NAMES},
            "slowest": {row["test"]: row["seconds"] for row in sorted(rows, key=lambda row: -row["seconds"])[:20]},
            "failed": [row for row in rows if row["failure"]], "machine": machine.record(ROOT),
            "settings": {"command": " ".join(["python -m tests.attack", *(argv or sys.argv[1:])]),
            "workers": options.n},
            "taken": datetime.now(UTC).isoformat(timespec="seconds"),
        }  # fmt: skip
        print(f"recorded in {harness.write(answer, options.out)}")
    return code


def run(*words: str, source: Path = ROOT / "src") -> tuple[int, list[dict[str, Any]]]:
    """The exit code of pytest on the package at `source`, and what came of each test."""
    with tempfile.TemporaryDirectory() as folder:
        paths = ["-o", f"pythonpath=. {source} tests", f"--junitxml={folder}/junit.xml"]
        threads = {"OMP_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1", "PYTHONPATH": str(source)}
        command = [sys.executable, "-m", "pytest", *PYTEST, *paths, *words]
        code = subprocess.run(command, cwd=ROOT, env={**os.environ, **threads}).returncode
        return code, read(Path(folder) / "junit.xml")


def read(report: Path) -> list[dict[str, Any]]:
    """A row a test: its file and name, its seconds, how it failed, and its draws as `PART/VERB/KIND` -> number."""
    rows = []
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        wrong = [child.attrib.get("message", "") for child in case if child.tag in ("failure", "error")]
        properties = [(item.attrib["name"], item.attrib["value"]) for item in case.iter("property")]
        part = case.attrib["classname"].rpartition(".test_")[2].replace("_", " ")
        # what test_frame plants is found there, which is no fault of a verb
        draws = {name: int(text) for name, text in properties if "/" in name and part != "frame"}
        rows.append({"part": part, "test": case.attrib["name"], "seconds": round(float(case.attrib["time"]), 2),
                     "failure": "; ".join(wrong)[:600], "draws": draws})  # fmt: skip
    return rows


def counts(rows: list[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """Part -> tried, survived, of these refused; failed; then the draws of each verb. A test without draws is one."""
    found: dict[str, Counter[str]] = {}
    for row in rows:
        own = row["draws"] or {f"{row['part']}/{row['test'].partition('[')[0]}/{'bug' if row['failure'] else 'ok'}": 1}
        for key, count in own.items():
            part, verb, kind = key.split("/")
            counter = found.setdefault(part, Counter(dict.fromkeys(NAMES, 0)))
            names = ("survived", "refused") if kind == "refused" else ("survived" if kind in SURVIVED else "failed",)
            counter.update(dict.fromkeys(("tried", *names, verb), count))
    return {part: dict(counter) for part, counter in sorted(found.items())}


def table(rows: list[dict[str, Any]]) -> str:
    """A line a part, their sum, then a line for each test that failed."""
    parts = counts(rows)
    parts["all"] = {name: sum(part[name] for part in parts.values()) for name in NAMES}
    lines = [f"{'part':<24}" + "".join(f"{name:>10}" for name in NAMES)]
    lines += [f"{part:<24}" + "".join(f"{row[name]:>10,}" for name in NAMES) for part, row in parts.items()]
    return "\n".join(
        [*lines, *(f"{row['part']} {row['test']}: {row['failure'][:300]}" for row in rows if row["failure"])]
    )


if __name__ == "__main__":
    sys.exit(main())
