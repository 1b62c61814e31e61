"""Runs the sections one after another, and writes what came of each as it ends. Exit code 1: something was not right;
2: it could not be started as asked."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.harness import LOCK, ROOT, locked
from fullrank.core.errors import UserError

SECTIONS = ("parity", "exact_softmax", "steps", "precision", "evaluation", "retrieval", "components")
"""In order; each is a module of this package."""
SECONDS = 570
"""For all of them: under ten minutes."""
LIMITS = {"exact_softmax": 150, "steps": 200, "precision": 90, "parity": 120}
"""Seconds that a section may take; the others take what is left."""


def main(argv: Sequence[str] | None = None, *, lock: Path = LOCK) -> int:
    options = _parser().parse_args(argv)
    if options.section is not None:
        return run_section(options.section[0], options, Path(options.section[1]))
    try:
        return run_all(options, lock)
    except UserError as error:
        print(f"benchmarks.gpu: {error}", file=sys.stderr)
        return 2


def run_all(options: argparse.Namespace, lock: Path) -> int:
    import torch

    from benchmarks.gpu.device import described

    if options.device == "cuda" and not torch.cuda.is_available():
        raise UserError(
            "this machine has no CUDA device that torch can use, so there is nothing to measure (--device cpu --small "
            "tries the script itself)",
            code="device-unavailable",
        )
    if options.device == "cpu" and not options.small:
        raise UserError("--device cpu tries the script and measures nothing: give --small too", code="options-together")
    device = torch.device(options.device)
    answer: dict[str, Any] = {
        "name": "gpu", "device": described(device), "small": options.small, "sections": {}, "rows": [],
        "machine": machine.record(ROOT), "taken": datetime.now(UTC).isoformat(timespec="seconds"),
    }  # fmt: skip
    with locked("gpu", lock):
        watch, begun = machine.Watch(), time.perf_counter()
        for name in options.only or SECTIONS:
            left = SECONDS - (time.perf_counter() - begun)
            found, answer["sections"][name] = started(name, options, min(left, LIMITS.get(name, left)))
            answer["rows"] += [{"section": name, **row} for row in found]
            answer["quiet"] = watch.record()
            if options.out is not None:
                write(answer, options.out)
    if options.json:
        print(json.dumps(answer))
    return 0 if all(one["state"] == "right" for one in answer["sections"].values()) else 1


def started(name: str, options: argparse.Namespace, seconds: float) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Rows of a section that ran in a process of its own, and how it ended."""
    if seconds < 5:
        return [], {"state": "not started", "error": "the time for all sections was used up"}
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "rows.jsonl"
        command = [sys.executable, "-m", "benchmarks.gpu", "--device", options.device, "--section", name, str(out)]
        command += ["--small"] * options.small
        path = os.pathsep.join([str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "PYTHONPATH": path}
        if options.device == "cpu":
            environment["TRITON_INTERPRET"] = "1"
        say(f"{name} ...")
        error: str | None = None
        try:
            done = subprocess.run(
                command, cwd=ROOT, env=environment, timeout=seconds, stderr=subprocess.PIPE, text=True
            )  # fmt: skip
            if done.returncode:
                error = f"exit code {done.returncode}: {(done.stderr.strip().splitlines() or [''])[-1][:500]}"
        except subprocess.TimeoutExpired:
            error = f"not ended after {seconds:.0f} seconds"
        text = out.read_text(encoding="utf-8") if out.exists() else ""
    found = [json.loads(line) for line in text.splitlines()]
    wrong = [row for row in found if row.get("right") is False]
    state = "failed" if error else "wrong" if wrong or not found else "right"
    ended = {"state": state, "error": error, "rows": len(found), "seconds": round(time.perf_counter() - begun, 1)}
    say(f"{name}: {state}, {len(found)} rows, {ended['seconds']} s{f' ({error})' if error else ''}")
    return found, ended


def run_section(name: str, options: argparse.Namespace, out: Path) -> int:
    """In the section's own process: one line of JSON a row, there as soon as it is known."""
    import torch

    from benchmarks.gpu.device import Where

    device = torch.device(options.device)
    torch.backends.cuda.matmul.allow_tf32 = False  # fp32 means fp32
    with open(out, "w", encoding="utf-8") as file:
        for row in import_module(f"benchmarks.gpu.{name}").rows(Where(device, options.small)):
            file.write(json.dumps(row) + "\n")
            file.flush()
            print(f"  {' '.join(f'{k}={_short(v)}' for k, v in row.items())}", file=sys.stderr)
    return 0


def write(answer: dict[str, Any], out: Path) -> Path:
    """Writes the answer to the file `out`, or in the folder `out` to <date>_<device>.json. Returns the file."""
    slug = re.sub(r"[^a-z0-9]+", "-", answer["device"]["name"].lower()).strip("-")
    path = out if out.suffix == ".json" else out / f"{answer['taken'][:10]}_{slug}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(answer, indent=2) + "\n", encoding="utf-8")
    return path


def say(text: str) -> None:
    print(f"[gpu] {text}", file=sys.stderr, flush=True)


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)[:80]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--out", type=Path, help="write the answer to this .json file or folder (results/gpu)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu tries the script alone")
    parser.add_argument("--small", action="store_true", help="tiny sizes, whose figures mean nothing")
    parser.add_argument("--only", nargs="*", choices=SECTIONS, help="these sections alone")
    parser.add_argument("--section", nargs=2, help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
