"""Rows of finished jobs: rows.jsonl in the folder of a sweep, means over seeds, and one JSON file to keep.

Each row says what it was measured on and with: hardware, versions, the commit of this code.
"""

from __future__ import annotations

import math
import os
import platform
import statistics
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fullrank import __version__
from fullrank.core.errors import UserError, in_context
from fullrank.core.files import JsonObject, jsonable, write_jsonl
from fullrank.core.readers import read_json, read_jsonl
from fullrank.data.manifest import require_outside_stores
from fullrank.evaluation.spec import history_words
from fullrank.sweeps.cost import JobCost
from fullrank.sweeps.jobs import Job

Row = dict[str, Any]
"""A line of rows.jsonl."""


def environment() -> JsonObject:
    """Processor, cores this process may use, threads, accelerator, torch."""
    return {
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


@cache
def code_version() -> JsonObject:
    """Version of fullrank; where it runs from a git checkout, the commit and whether its source was edited since.

    As it was at the first call: code that a process has loaded does not change with the files.
    """
    here = Path(__file__).resolve().parents[1]
    if _git(here, "ls-files", "--error-unmatch", "__init__.py") is None:
        return {"fullrank": __version__, "commit": None, "edited": None}
    edited = _git(here, "status", "--porcelain", "--", ".")
    return {"fullrank": __version__, "commit": _git(here, "rev-parse", "HEAD"), "edited": bool(edited)}


def cpu_model() -> str:
    """`AMD EPYC 7763 64-Core Processor` where the system tells, else the architecture."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _git(folder: Path, *arguments: str) -> str | None:
    """The output of a git command, or None where git is absent, fails or hangs."""
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


Number = Annotated[float, Field(strict=True, gt=-1e300, lt=1e300)]


class _Spent(BaseModel):
    __pydantic_extra__: dict[str, Number]
    model_config = ConfigDict(extra="allow")

    train: Number


class _JobRow(BaseModel):
    """A row of a job: which job, its metrics, its seconds, and its error if it failed."""

    cell: str
    spec_hash: str
    data_fingerprint: str
    seed: Annotated[int, Field(strict=True)]
    metrics: dict[str, dict[str, Number | None]]
    seconds: _Spent
    error: str | None = None
    epochs: Annotated[int, Field(strict=True, ge=0)] | None = None


def not_ours(what: str) -> UserError:
    """The error for a file in the folder of a sweep or a search that holds something else, as `what` says."""
    return UserError(f"{what}; the file is damaged or not ours", code="file-damaged")


class RowsFile:
    """rows.jsonl: one line per attempt, in the order they ended. The last line of a job is the one that counts.

    Jobs are those on the data of a fingerprint; a folder may hold rows of other data.
    """

    def __init__(self, out: Path, fingerprint: str):
        self.path, self.fingerprint = out / "rows.jsonl", fingerprint
        with in_context("", "; the file is damaged or not ours"):
            self.all = read_jsonl(self.path, torn=False) if self.path.exists() else []
        for number, row in enumerate(self.all, 1):
            try:
                _JobRow.model_validate(row)
            except ValidationError:
                raise not_ours(f"line {number} of {self.path} is no row of a sweep") from None

    def add(self, row: Row) -> None:
        """Append one row; the file is replaced whole, so that it never ends in half a line."""
        write_jsonl(self.path, (jsonable(r) for r in [*self.all, row]))
        self.all.append(row)

    def last(self, job: Job) -> Row | None:
        """The newest row of this job: same cell, seed and spec."""
        return next((row for row in reversed(self.all) if is_row_of(row, job, self.fingerprint)), None)

    def finished(self, job: Job) -> Row | None:
        """The newest row of this job, where it holds all evaluations that the job asks for."""
        row = self.last(job)
        if row is None or row.get("error") or not set(job.evaluations) <= set(row["metrics"]):
            return None
        return row


def is_row_of(row: Mapping[str, Any], job: Job, fingerprint: str) -> bool:
    """Whether a row is of this job on these data, also by a hash that the job had in an earlier version."""
    mine = (job.cell, job.seed, fingerprint)
    if (row["cell"], row["seed"], row["data_fingerprint"]) != mine:
        return False
    return row["spec_hash"] == job.spec_hash or row["spec_hash"] in job.earlier_hashes


@dataclass
class Outcome:
    """Rows and costs of the jobs of a call, so far or at the end."""

    jobs: Sequence[Job]
    rows: RowsFile
    costs: dict[str, JobCost | None] = field(default_factory=dict)
    """By `Job.cost_key`; jobs that were finished before are not in it."""
    estimate: list[JsonObject] = field(default_factory=list)
    """Expected cost of each job before the first one ran: cell, seed, hours (at most)."""
    not_run: list[JsonObject] = field(default_factory=list)
    """Jobs that would not fit the time allowed, or that the engine did not ask for: cell, seed, hours."""
    hours: float = 0.0
    """Spent by this call, the measurement included."""

    @property
    def newest(self) -> list[Row]:
        """The row of each job that has one, in the order of the jobs."""
        return [row for job in self.jobs if (row := self.rows.last(job)) is not None]

    @property
    def failed(self) -> list[Row]:
        return [row for row in self.newest if row.get("error")]


def summarise_seeds(rows: Iterable[Row]) -> JsonObject:
    """Cell -> split or further evaluation (`test`, `test_seen_keep`) -> metric -> {mean, sd, n} over the seeds.

    Seeds that failed are left out; `sd` (n - 1) is null for one seed.
    """
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


def protocols_in_words(rows: Iterable[Row]) -> dict[str, dict[str, str]]:
    """Cell -> evaluation -> `history excluded` or `history ranked`; nothing of ranking models."""
    histories: dict[str, dict[str, str]] = {}
    for row in rows:
        for name, protocol in row.get("protocol", {}).items():
            if words := history_words(protocol):
                histories.setdefault(row["cell"], {})[name] = words
    return histories


def _spread(values: list[float]) -> dict[str, float | int | None]:
    sd = statistics.stdev(values) if len(values) > 1 else None
    return {"mean": statistics.fmean(values), "sd": sd, "n": len(values)}


def results_file(results: str | Path | None) -> Path | None:
    """The path to keep results at.

    Raises `UserError` for a folder and for a file of others, before anything runs.
    """
    if results is None:
        return None
    path = Path(results)
    if path.is_dir():
        raise UserError(f"{path} is a folder; give the name of a JSON file for the results", code="not-a-file")
    require_outside_stores(path)
    if path.is_file():
        tree: JsonObject = {}
        with suppress(UserError):
            tree = read_json(path)
        if not {"grid", "rows"} <= tree.keys():
            raise UserError(
                f"{path} is there already and holds no results of a sweep: name another file", code="already-there"
            )
    return path
