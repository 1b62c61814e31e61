"""Hashes of all runs that the grids under experiments/ name, and which committed rows a sweep takes for run.

A row counts as run where its cell, seed and hash of the spec are those of a job (`fr.sweep` skips it then), today or
before the fields in `sweeps.jobs.ADDED` existed. A setting that is renamed or given another default changes the hash of
every spec that holds it, and the rows are lost; so does one that is added without `core.spec.later`.
`grids.json` is what the baseline commit found. Where a grid or a recipe was changed on purpose,
``python -m tests.golden.grids`` writes it anew, and the difference shows what else has changed.
"""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import fullrank as fr

ROOT = Path(__file__).resolve().parents[2]
EXPERIMENTS, RESULTS = ROOT / "experiments", ROOT / "results"
RECORDED = Path(__file__).with_name("grids.json")
GRIDS = sorted(EXPERIMENTS.glob("*/*.yaml"))


def label(path: Path) -> str:
    return "/".join(path.parts[-2:])


def is_search(path: Path) -> bool:
    """Whether `fullrank tune` reads it; `fullrank sweep` reads the others."""
    return "space:" in path.read_text()


def read(path: Path) -> fr.Grid | fr.Search:
    return fr.Search.read(path) if is_search(path) else fr.Grid.read(path)


@cache
def jobs(path: Path) -> tuple[Any, ...]:
    """Every job of a grid or search."""
    return tuple(read(path).jobs())


def hashes(path: Path) -> dict[str, str]:
    """Run folder -> hash of the spec."""
    return {job.folder: job.spec_hash for job in jobs(path)}


def committed() -> Iterator[tuple[Path, list[dict[str, Any]]]]:
    """Every file of results/ with rows of a sweep, and those rows, each run once."""
    for path in sorted(RESULTS.glob("*/*.json")):
        tree = json.loads(path.read_text())
        rows = tree.get("rows") if isinstance(tree, dict) else None
        found = [row for row in rows if isinstance(row, dict) and "spec_hash" in row] if isinstance(rows, list) else []
        # a ladder has a row of each run on each of its stores
        jobs = list({(row["cell"], row["seed"], row["spec_hash"]): row for row in found}.values())
        if jobs:
            yield path, jobs


def cell_of(row: dict[str, Any]) -> dict[str, Any]:
    """The cell of a grid that a row is of, written out."""
    return {"name": row["cell"], "recipe": row["recipe"], "set": row["set"], "seeds": [row["seed"]]}


def still_run(rows: list[dict[str, Any]]) -> list[str]:
    """The run folders of those rows whose cell, built today, has the row's hash."""
    found = []
    for row in rows:
        try:
            jobs = fr.Grid.parse({"cells": [cell_of(row)]}).jobs()
        except fr.UserError:  # some of the first rows have cells that are named by hand, or settings that are gone
            continue
        found += [job.folder for job in jobs if row["spec_hash"] in {job.spec_hash, *job.earlier_hashes}]
    return found


def in_grids(folder: str, rows: list[dict[str, Any]]) -> dict[str, list[str]]:
    """Run folder -> the grids of the rows' folder that ask for this very run, of those rows that one asks for."""
    asked: dict[tuple[str, str], list[str]] = {}
    for path in sorted((EXPERIMENTS / folder).glob("*.yaml")):
        for job in jobs(path):
            for value in {job.spec_hash, *job.earlier_hashes}:
                asked.setdefault((job.folder, value), []).append(label(path))
    keys = [(f"{row['cell']}-seed{row['seed']}", row["spec_hash"]) for row in rows]
    return {key[0]: asked[key] for key in keys if key in asked}


def last_of(found: dict[str, list[str]]) -> dict[str, str]:
    """One grid for each run folder: that a later grid asks for the same run is no change."""
    return {name: some[-1] for name, some in found.items()}


def main() -> None:
    found: dict[str, Any] = {"jobs": {label(path): hashes(path) for path in GRIDS}, "run": {}, "asked for": {}}
    for path, rows in committed():
        found["run"] |= {label(path): some for some in [still_run(rows)] if some}
        found["asked for"] |= {label(path): some for some in [last_of(in_grids(path.parent.name, rows))] if some}
    RECORDED.write_text(json.dumps(found, indent=1) + "\n")
    count = sum(len(rows) for _, rows in committed())
    print(f"{sum(map(len, found['run'].values()))} of {count} committed rows count as run")


if __name__ == "__main__":
    main()
