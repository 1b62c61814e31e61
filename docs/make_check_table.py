"""Writes the tables of guide/check.md from the newest record of `benchmarks.data_check` (part of `make docs`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "guide" / "check.md"
BEGIN, END = "<!-- findings: written by docs/make_check_table.py -->", "<!-- end of findings -->"
NOT_SHARES = ("order", "tells_label")
"""Findings whose number is a factor, or an AUC."""


def record() -> dict[str, Any]:
    """What the newest record says of each set."""
    records = (json.loads(file.read_text(encoding="utf-8")) for file in (ROOT / "results/data_check").glob("*.json"))
    sets: dict[str, Any] = max(records, key=lambda one: str(one["taken"]))["figures"]["sets"]
    return sets


def cell(finding: dict[str, Any] | None, name: str) -> str:
    """A number, with its grade where it is not in order."""
    if finding is None:
        return ""
    value = finding["value"]
    told = "" if value is None else f"{value:.2f}" if name in NOT_SHARES else f"{100 * value:.1f} %"
    marked = {"ok": told, "note": f"{told} note", "warning": f"**{told} warning**"}
    return marked[finding["grade"]].strip()


def table(sets: dict[str, Any], problem: str) -> str:
    """Findings by set, of events or of impressions."""
    own = {name: one["findings"] for name, one in sets.items() if ("order" in one["findings"]) == (problem == "events")}
    names = list(dict.fromkeys(name for found in own.values() for name in found))
    rows = [["finding", *(f"`{name}`" for name in own)], ["---"] * (1 + len(own))]
    rows += [[f"`{name}`", *(cell(found.get(name), name) for found in own.values())] for name in names]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def tables() -> str:
    sets = record()
    return f"{table(sets, 'events')}\n\n{table(sets, 'impressions')}"


def main() -> None:
    before, mark, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, ended, after = rest.partition(END)
    assert mark and ended, f"{PAGE} has lost {BEGIN} or {END}"
    PAGE.write_text(f"{before}{BEGIN}\n{tables()}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
