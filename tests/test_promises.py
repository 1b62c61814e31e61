"""Every promise of docs/guide/promises.md names tests that there are."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "guide" / "promises.md").read_text(encoding="utf-8")
MADE = PAGE.partition("\n## What the tests notice\n")[0]
PROMISES = [line.strip("|").split("|") for line in MADE.splitlines() if line.startswith("| ")]
ROWS = [row for row in PROMISES if row[0].strip() not in ("folder or verb", "verb")]


@pytest.mark.parametrize("row", ROWS, ids=[row[0].strip() for row in ROWS])
def test_a_promise_names_its_tests(row: list[str]) -> None:
    assert len(row) == 3, "a folder or verb, the promise, its tests"
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", row[2])
    assert named and len(named) == row[2].count("`") // 2
    for file, test in named:
        assert f"def {test}(" in (ROOT / file).read_text(encoding="utf-8"), f"{file} has no {test}"


def test_the_page_has_its_tables() -> None:
    assert len(ROWS) > 20
