"""Runs one library's runner in its environment and reads what it measured."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from benchmarks.harness import ROOT, Figures
from benchmarks.peers.environments import HERE


def launch(
    name: str, runner: str, python: Path, folder: Path, *, threads: int, limit: float, runners: Path = HERE / "runners"
) -> Figures:
    """``run_<runner>.py folder folder/name``: its timing.json, or `failed` with how it failed or how long it ran."""
    out = folder / name
    out.mkdir()
    path = os.pathsep.join([str(ROOT / "src")] if name == "ours" else [])
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | ({"PYTHONPATH": path} if path else {})
    environment["OMP_NUM_THREADS"] = str(threads)
    command = [str(python), str(runners / f"run_{runner}.py"), str(folder), str(out)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=out, timeout=limit)
    except subprocess.TimeoutExpired:
        return {"library": name, "failed": f"still running after {limit:g} s"}
    if done.returncode:
        return {"library": name, "failed": " | ".join(done.stderr.strip().splitlines()[-3:])}
    found: Figures = json.loads((out / "timing.json").read_text(encoding="utf-8"))
    return found
