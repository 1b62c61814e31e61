"""What every benchmark shares: command line, lock, the correctness check before any timing, the form of the answer."""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks import machine, records
from fullrank.core.errors import UserError

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / ".benchmark.lock"
CACHE = ROOT / ".cache" / "benchmarks"
"""Prepared data of the benchmarks; may be deleted at any time."""

Say = Callable[[str], None]
Figures = dict[str, Any]


class Wrong(AssertionError):
    """What a benchmark times does not compute what it should: its figures would mean nothing."""


def require(holds: bool, otherwise: str) -> None:
    """Raises `Wrong` with this sentence unless the condition holds (an assert that ``python -O`` keeps)."""
    if not holds:
        raise Wrong(otherwise)


@dataclass(frozen=True)
class Benchmark:
    name: str
    about: str
    """What is measured, for ``--help``."""
    arguments: Callable[[argparse.ArgumentParser], None]
    check: Callable[[], None]
    """The correctness test, in seconds and without real data; raises `Wrong`."""
    measure: Callable[[argparse.Namespace, Say], Figures]


def main(benchmark: Benchmark, argv: Sequence[str] | None = None, *, lock: Path = LOCK) -> int:
    """Check, measure, print. Exit code 1: its check is red (no figures); 2: it could not be started as asked."""
    options = _parser(benchmark).parse_args(argv)
    try:
        with locked(benchmark.name, lock):
            say = _speaker(benchmark.name)
            say("correctness check")
            benchmark.check()
            machine.use_threads(options.threads)
            watch = machine.Watch()
            if watch.busy_at_start:
                say(f"{watch.busy_at_start}; the figures below are worse than the code")
            figures = benchmark.measure(options, say)
            answer = _answer(benchmark, options, figures, watch)
    except Wrong as error:
        print(f"benchmarks.{benchmark.name}: no figures, its correctness check failed: {error}", file=sys.stderr)
        return 1
    except UserError as error:
        print(f"benchmarks.{benchmark.name}: {error}", file=sys.stderr)
        return 2
    print(records.beside(figures, benchmark.name, answer["machine"]["cpu"]))  # before it is a record itself
    if options.out is not None:
        say(f"written to {write(answer, options.out)}")
    if options.json:
        print(json.dumps(answer))
    return 0


@contextmanager
def locked(name: str, lock: Path = LOCK) -> Iterator[None]:
    """Holds the lock file while a benchmark is timed; a second one is refused. A killed run leaves it free."""
    with open(lock, "a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            holder = file.read().strip() or "another benchmark"
            raise UserError(
                f"{holder} is being timed and holds {lock.name}: two at once would slow each other, so wait for it",
                code="benchmark-running",
            ) from None
        file.truncate(0)
        file.write(f"benchmarks.{name} (process {os.getpid()}, since {_now().strftime('%H:%M:%S')} UTC)")
        file.flush()
        try:
            yield
        finally:
            file.truncate(0)


def repeat(times: int, action: Callable[[], object]) -> list[float]:
    """Wall seconds of each of `times` calls."""
    seconds = []
    for _ in range(times):
        begun = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - begun)
    return seconds


def write(answer: Figures, out: Path) -> Path:
    """Writes the answer to `out`, or in the folder `out` to <date>_<hardware>.json. Returns the file."""
    path = out
    if out.suffix != ".json":
        path = out / f"{answer['taken'][:10]}_{machine.slug(answer['machine'])}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(answer, indent=2) + "\n", encoding="utf-8")
    return path


def rounded(figures: Figures, digits: int = 4) -> Figures:
    """Every float to this many significant digits: more would be noise."""
    return {k: float(f"{v:.{digits}g}") if isinstance(v, float) else v for k, v in figures.items()}


def _answer(benchmark: Benchmark, options: argparse.Namespace, figures: Figures, watch: machine.Watch) -> Figures:
    settings = {k: str(v) if isinstance(v, Path) else v for k, v in vars(options).items() if k not in ("json", "out")}
    return {
        "name": benchmark.name,
        "figures": figures,
        "settings": settings,
        "machine": machine.record(ROOT),
        "quiet": watch.record(),
        "taken": _now().isoformat(timespec="seconds"),
    }


def _parser(benchmark: Benchmark) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{benchmark.name}", description=benchmark.about)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--out", type=Path, help="write the answer to this .json file or folder (results/NAME)")
    parser.add_argument("--threads", type=int, default=2, help="threads of torch (default 2)")
    benchmark.arguments(parser)
    return parser


def _speaker(name: str) -> Say:
    return lambda text: print(f"[{name}] {text}", file=sys.stderr, flush=True)


def _now() -> datetime:
    return datetime.now(UTC)
