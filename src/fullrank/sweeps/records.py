"""Rows of finished jobs: rows.jsonl in the folder of a sweep, summaries over seeds, and one JSON file to keep."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fullrank.core.errors import UserError
from fullrank.core.files import jsonable, write_json, write_jsonl
from fullrank.core.readers import read_jsonl
from fullrank.sweeps.jobs import Job

Row = dict[str, Any]


class Rows:
    """rows.jsonl: one line per attempt, in the order they ended. The last line of a job is the one that counts."""

    def __init__(self, out: Path):
        self.path = out / "rows.jsonl"
        self.all: list[Row] = []
        try:
            found = read_jsonl(self.path, torn=False) if self.path.exists() else []
        except UserError as error:
            raise UserError(f"{error}; the file is damaged or not ours") from None
        for number, row in enumerate(found, 1):
            if not {"cell", "seed", "spec_hash", "data_fingerprint"} <= row.keys():
                raise UserError(f"line {number} of {self.path} is no row of a sweep; the file is damaged or not ours")
            self.all.append(row)

    def add(self, row: Row) -> None:
        """Append one row; the file is replaced whole, so that it never ends in half a line."""
        write_jsonl(self.path, (jsonable(r) for r in [*self.all, row]))
        self.all.append(row)

    def last(self, job: Job, fingerprint: str) -> Row | None:
        """The newest row of this job on these data: same cell, seed and spec."""
        for row in reversed(self.all):
            if matches(row, job, fingerprint):
                return row
        return None

    def finished(self, job: Job, fingerprint: str) -> Row | None:
        """Its newest row, where it holds everything that the job asks for."""
        row = self.last(job, fingerprint)
        if row is None or row.get("error") or not set(job.splits) <= set(row.get("metrics", {})):
            return None
        return row


def matches(row: Mapping[str, Any], job: Job, fingerprint: str) -> bool:
    mine = (job.cell, job.seed, job.spec_hash, fingerprint)
    return (row["cell"], row["seed"], row["spec_hash"], row["data_fingerprint"]) == mine


def summarise_seeds(rows: Iterable[Row]) -> dict[str, Any]:
    """Cell -> split -> metric -> {mean, sd, n} over the seeds that ended well. `sd` (n - 1) is null for one seed."""
    groups: dict[str, dict[str, dict[str, list[float]]]] = {}
    for row in rows:
        if row.get("error"):
            continue
        for split, metrics in row["metrics"].items():
            into = groups.setdefault(row["cell"], {}).setdefault(split, {})
            for name, value in metrics.items():
                if isinstance(value, int | float) and math.isfinite(value):
                    into.setdefault(name, []).append(float(value))
    return {
        cell: {split: {name: _spread(v) for name, v in metrics.items()} for split, metrics in splits.items()}
        for cell, splits in groups.items()
    }


def _spread(values: list[float]) -> dict[str, float | int | None]:
    sd = statistics.stdev(values) if len(values) > 1 else None
    return {"mean": statistics.fmean(values), "sd": sd, "n": len(values)}


def results_file(results: str | Path | None) -> Path | None:
    """Where results are to be kept. Raises `UserError` for a folder, before anything runs."""
    place = None if results is None else Path(results)
    if place is not None and place.is_dir():
        raise UserError(f"{place} is a folder; give the name of a JSON file for the results")
    return place


def write_results(path: Path, tree: Mapping[str, Any]) -> None:
    """A JSON file that is replaced whole."""
    write_json(path, jsonable(tree))
