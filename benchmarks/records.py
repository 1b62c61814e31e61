"""Records of earlier runs in `results/`: the newest of a benchmark on a kind of processor, and a run beside it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent.parent / "results"


@dataclass(frozen=True)
class Record:
    """A file of `results/NAME`, as a benchmark's `--out` writes it."""

    file: Path
    cpu: str
    taken: str
    figures: Mapping[str, Any]


def records(name: str, results: Path | None = None) -> list[Record]:
    """Those of a benchmark, the newest first; what was measured with changed settings (`--set`) is left out."""
    return sorted(_read((results or RESULTS) / name), key=lambda record: record.taken, reverse=True)


def newest(found: list[Record], cpu: str, figure: str) -> Record | None:
    """The newest record of a processor that has a figure: some hold a part of a benchmark alone."""
    return next((record for record in found if record.cpu == cpu and figure in record.figures), None)


def beside(figures: Mapping[str, Any], name: str, cpu: str, results: Path | None = None) -> str:
    """Each figure of a run, what the newest record of the same kind of processor has, and the ratio of the two."""
    found = records(name, results)
    rows, files = [("figure", "now", "then", "now / then")], {}
    for figure, now in figures.items():
        record = newest(found, cpu, figure) if _number(now) else None
        if record is None or not _number(then := record.figures[figure]):
            rows.append((figure, shown(now), "", ""))
            continue
        rows.append((figure, shown(now), shown(then), f"{now / then:.2f}" if then else ""))
        files[record.file.name] = record.taken[:10]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    if files:
        then = ", ".join(f"results/{name}/{file} ({day})" for file, day in files.items())
        return "\n".join([*lines, f"then: {then}, on {cpu}"])
    return "\n".join([*lines, f"then: results/{name} has no record of {cpu} yet"])


def shown(value: object) -> str:
    """A figure as a person reads it."""
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{value:,}" if _number(value) else str(value)


def _read(folder: Path) -> Iterator[Record]:
    for file in sorted(folder.glob("*.json")):
        tree = json.loads(file.read_text(encoding="utf-8"))
        settings = tree.get("settings", {})
        if isinstance(tree.get("figures"), dict) and not (isinstance(settings, dict) and settings.get("set")):
            yield Record(file, tree["machine"]["cpu"], tree["taken"], tree["figures"])


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
