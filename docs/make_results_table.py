"""Writes the table of results/README.md: each file of results/ and the command that it holds (part of `make docs`)."""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results"
PAGE = RESULTS / "README.md"
BEGIN, END = "<!-- files: written by docs/make_results_table.py -->", "<!-- end of files -->"


def command_of(file: Path) -> str:
    """What made a file, as the file says it; of a benchmark's record the benchmark."""
    record = json.loads(file.read_text(encoding="utf-8"))
    named = record.get("command") or record.get("commands") or f"python -m benchmarks.{record['name']} --json"
    lines = [named] if isinstance(named, str) else named
    return "; ".join(line.replace(f" --results {file.relative_to(ROOT)}", "") for line in lines)


def table() -> str:
    """A row for neighbouring files that one command made."""
    rows = ["| file | made by |", "|---|---|"]
    for folder in sorted(path for path in RESULTS.iterdir() if path.is_dir()):
        for command, files in groupby(sorted(folder.glob("*.json")), command_of):
            names = ", ".join(f"`{folder.name}/{file.name}`" for file in files)
            rows.append(f"| {names} | {command.replace('|', chr(92) + '|')} |")
    return "\n".join(rows)


def main() -> None:
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    behind = rest.split(END)[1]
    PAGE.write_text(f"{before}{BEGIN}\n{table()}\n{END}{behind}", encoding="utf-8")


if __name__ == "__main__":
    main()
