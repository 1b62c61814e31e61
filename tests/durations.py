"""No test of `make test` takes long: ``python tests/durations.py`` reads the committed record and the last run's.

tests/conftest.py writes what tests took into build/. `RECORD` holds those over a second on a quiet machine:
``python tests/durations.py --record`` writes it anew from the last `make test`.
"""

import json
import sys
from pathlib import Path
from statistics import median

LAST = Path(__file__).resolve().parent.parent / "build" / "durations.json"
RECORD = Path(__file__).with_name("durations.json")
MOST = 5.0
"""CPU seconds: a busy machine adds less to them than to seconds of the clock."""
RECORDED = 1.0
COMMON = 20
"""Recorded tests that a run must have before it says how fast its machine is."""
LONG = {
    f"tests/components/test_encoders.py::test_encoders[encoders.{kind}]": "all checks of the encoder with most settings"
    for kind in ("seq2seq", "transformer")
}
"""Test -> why it takes longer than `MOST` and stays in `make test`."""


def too_long(seconds: dict[str, float], reasons: dict[str, str] = LONG) -> list[str]:
    """A sentence for each test over `MOST` without a reason, and for each reason of a test that is quick or gone."""
    over = {test: value for test, value in seconds.items() if value > MOST}
    slow = [f"{test} takes {over[test]:.1f} s of {MOST:g}: make it quicker, mark it slow, or say why in LONG"
            for test in sorted(over) if test not in reasons]  # fmt: skip
    return slow + [f"{test} is listed in LONG and is quick, or gone" for test in reasons if test not in seconds]


def on_the_record(last: dict[str, float], record: dict[str, float]) -> dict[str, float]:
    """The seconds of a run as the machine of the record would have had them: over the median ratio of tests in both.

    A machine that is quicker changes nothing. Twice as slow is the most that is taken for the machine.
    """
    ratios = [last[test] / record[test] for test in record if test in last]
    slower = min(max(median(ratios), 1.0), 2.0) if len(ratios) >= COMMON else 1.0
    return {test: value / slower for test, value in last.items()}


def main(words: list[str]) -> int:
    if "--record" in words:
        seconds = {test: value for test, value in json.loads(LAST.read_text()).items() if value > RECORDED}
        RECORD.write_text(json.dumps(seconds, indent=1) + "\n", encoding="utf-8")
    seconds = json.loads(RECORD.read_text(encoding="utf-8"))
    seconds |= on_the_record(json.loads(LAST.read_text(encoding="utf-8")), seconds) if LAST.exists() else {}
    faults = too_long(seconds)
    print("\n".join(faults) or f"no test of `make test` takes over {MOST:g} CPU seconds")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
