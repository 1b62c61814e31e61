"""Runs one library's runner in its environment and reads what it measured."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness import ROOT, Figures
from benchmarks.peers.environments import HERE


def launch(
    name: str, runner: str, python: Path, folder: Path, *, precision: str, threads: int, limit: float,
    runners: Path = HERE / "runners",
) -> Figures:  # fmt: skip
    """``run_<runner>.py folder folder/name-precision precision``: its timing.json with the precision, which only ours
    reads, or `failed` with how it failed or how long it ran."""
    out = folder / f"{name}-{precision}"
    out.mkdir()
    path = os.pathsep.join([str(ROOT / "src")] if name == "ours" else [])
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | ({"PYTHONPATH": path} if path else {})
    environment["OMP_NUM_THREADS"] = str(threads)
    command = [str(python), str(runners / f"run_{runner}.py"), str(folder), str(out), precision]
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=out, timeout=limit)
    except subprocess.TimeoutExpired:
        return {"library": name, "precision": precision, "failed": f"still running after {limit:g} s"}
    if done.returncode:
        last = " | ".join(done.stderr.strip().splitlines()[-3:])
        return {"library": name, "precision": precision, "failed": last}
    return {"precision": precision, **json.loads((out / "timing.json").read_text(encoding="utf-8"))}


def trainings(libraries: Sequence[str], precisions: Sequence[str]) -> list[tuple[str, str]]:
    """(library, precision) of each training: ours in each of these, a peer in fp32, which is what they have."""
    return [(name, each) for name in libraries for each in (precisions if name == "ours" else ("fp32",))]


def suffix(ours: Figures) -> str:
    """Behind the names of ratios to one of our rows, which fp32 goes without."""
    return "" if ours["precision"] == "fp32" else f"_{ours['precision']}"
