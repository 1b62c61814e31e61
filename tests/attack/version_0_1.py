"""The 21 points of the review on a checkout of version 0.1: each has to fail there, or its test shows nothing.

    git worktree add --detach ../v01 0addcbb
    python -m tests.attack.version_0_1 ../v01 [--out results/attack/version_0.1.json]

Prints a line a point, and leaves with 1 where a point passes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path

from benchmarks import machine
from tests.attack.__main__ import PYTEST, ROOT

POINTS = 21
TESTS = ("test_review.py", "test_review_crashes.py")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.attack.version_0_1", description=__doc__)
    parser.add_argument("checkout", type=Path, help="a checkout of version 0.1, or of any other")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where the record goes; nowhere by default")
    options = parser.parse_args()
    source = options.checkout.resolve() / "src"
    points = run(source)
    for point, counts in points.items():
        print(f"{point:>3}  failed {counts['failed']:>3}  passed {counts['passed']:>3}")
    unseen = [point for point in map(str, range(1, POINTS + 1)) if not points.get(point, {}).get("failed")]
    if options.out is not None:
        answer = {
            "name": "version_0.1", "checkout": machine.commit(options.checkout), "points": points, "not_failed": unseen,
            "settings": {"command": f"python -m tests.attack.version_0_1 CHECKOUT --out {options.out}"},
            "machine": machine.record(ROOT), "taken": datetime.now(UTC).isoformat(timespec="seconds"),
        }  # fmt: skip
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(answer, indent=2) + "\n", encoding="utf-8")
    if unseen:
        print(f"no test of these points fails on it: {', '.join(unseen)}")
    return int(bool(unseen))


def run(source: Path) -> dict[str, dict[str, int]]:
    """Point -> how many of its tests failed and passed with the package in `source`."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "junit.xml"
        words = [*PYTEST, "-n", "0", "--tb=no", "-o", f"pythonpath=. {source} tests", f"--junitxml={report}"]
        environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1"}
        tests = [str(ROOT / "tests" / "attack" / name) for name in TESTS]
        subprocess.run([sys.executable, "-m", "pytest", *words, *tests], cwd=ROOT, env=environment)
        found: dict[str, dict[str, int]] = defaultdict(lambda: {"failed": 0, "passed": 0})
        for case in ElementTree.parse(report).getroot().iter("testcase"):
            point = str(int(case.attrib["name"].split("_")[1]))
            found[point]["failed" if any(one.tag in ("failure", "error") for one in case) else "passed"] += 1
    return dict(found)


if __name__ == "__main__":
    sys.exit(main())
