"""The 21 points of the review on a checkout of version 0.1: each has to fail there, or its test shows nothing.

    git worktree add --detach ../v01 0addcbb
    python -m tests.attack.version_0_1 ../v01 [--out results/attack/version_0.1.json]

Prints a line a point, and leaves with 1 where a point passes.
"""

import argparse
import json
import sys
from datetime import UTC, datetime
from pathlib import Path

from benchmarks import machine
from tests.attack.__main__ import ROOT, run

POINTS = [str(number) for number in range(1, 22)]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.attack.version_0_1", description=__doc__)
    parser.add_argument("checkout", type=Path, help="a checkout of version 0.1, or of any other")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where the record goes; nowhere by default")
    options = parser.parse_args()
    _, rows = run(
        "-n", "0", "--tb=line", f"{ROOT}/tests/attack/test_review.py", source=options.checkout.resolve() / "src"
    )
    points = {point: {"failed": 0, "passed": 0} for point in POINTS}
    for row in rows:
        points[str(int(row["test"].split("_")[1]))]["failed" if row["failure"] else "passed"] += 1
    for point, counts in points.items():
        print(f"{point:>3}  failed {counts['failed']:>3}  passed {counts['passed']:>3}")
    unseen = [point for point, counts in points.items() if not counts["failed"]]
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


if __name__ == "__main__":
    sys.exit(main())
