"""What the tests of the review's 21 points share: command lines with their answers, and a training to interrupt.

All of it runs on version 0.1 too.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.attack.frame import SECONDS, SURVIVED, Said, call, outcome_of, patience, shared
from tests.attack.worlds import DIM, set_of, world

MANY = ("training.max_epochs=3000", "training.batch_size=64", "training.patience=null", *DIM)
TRAIN = ("train", "sasrec")
ASKED = ("--k", 30, "--history", "9,7,5")


SLOW = (pytest.mark.process, pytest.mark.attack)


def slow(test: Any) -> Any:
    """Mark what `make test` leaves out; what it guards has a fast test in its own room."""
    return pytest.mark.process(pytest.mark.attack(test))


def survived(*words: object, kinds: tuple[str, ...] = SURVIVED) -> Said:
    """The command line ends with an answer or a refusal. Version 0.1 had no codes: `test_options` asks for them."""
    said = call(*words, "--json")
    outcome = outcome_of(said, as_json=kinds == ("ok",))
    assert outcome.kind in kinds, outcome
    return said


def refused(*words: object) -> Said:
    """The command line ends with status 2 and one sentence."""
    return survived(*words, kinds=("refused",))


def answer(*words: object) -> Any:
    """The JSON of a command line that ends with 0."""
    return survived(*words, kinds=("ok",)).json


def spawn(*words: object, seconds: float = SECONDS + 10, memory: int | None = None) -> Said:
    """A command line in a process of its own, with at most `memory` bytes; its whole group is ended in time.

    The ten seconds are those of starting Python on a busy machine.
    """
    bound = None if memory is None else lambda: resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    begun, hung = time.perf_counter(), False
    process = subprocess.Popen(
        [sys.executable, "-m", "fullrank", *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        errors="backslashreplace", start_new_session=True, env=environment(), preexec_fn=bound,
    )  # fmt: skip
    try:
        out, err = process.communicate(timeout=seconds * patience())
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        hung = True
    return Said(tuple(map(str, words)), process.returncode, out, err, time.perf_counter() - begun, hung)


def environment() -> dict[str, str]:
    """This process's environment, with one thread and the package that is imported here."""
    import fullrank

    path = os.pathsep.join(filter(None, [str(Path(fullrank.__file__).parents[1]), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1"}


def listed(run: object, *words: object) -> list[tuple[Any, ...]]:
    rows = answer("recommend", run, *words)["recommendations"]
    return [(row["item"], round(row["score"], 6)) for row in rows]


@contextlib.contextmanager
def training(run: Path) -> Iterator[tuple[subprocess.Popen[bytes], list[str]]]:
    """A process that trains for long, once it has kept a checkpoint, and its words; killed at the end."""
    words = [*TRAIN, "--data", world("store"), "--out", str(run), *set_of(*MANY)]
    process = subprocess.Popen([sys.executable, "-m", "fullrank", *words], env=environment(), stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL, start_new_session=True)  # fmt: skip
    try:
        waited(lambda: len(rows_of(run)) >= 2 or process.poll() is not None)
        assert process.poll() is None, "the training has ended before its time"
        yield process, words
    finally:
        process.kill()
        process.wait()


def waited(until: Callable[[], bool], seconds: float = 80) -> None:
    end = time.monotonic() + seconds * patience()
    while not until():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def rows_of(run: Path) -> list[int]:
    """The epochs in a run's metrics."""
    if not (run / "metrics.jsonl").exists():
        return []
    lines = (run / "metrics.jsonl").read_text().split("\n")[:-1]
    return [json.loads(line)["epoch"] for line in lines if '"event": "epoch"' in line]


def cut_off(copy: Path) -> tuple[Path, list[str]]:
    """A copy of a run whose training was killed, with its checkpoint, and the words that resume it."""

    def make(run: Path) -> None:
        with training(run):
            waited(lambda: len(rows_of(run)) >= 4)

    shutil.copytree(shared("killed", make), copy)
    return copy, [*TRAIN, "--resume", "--data", world("store"), "--out", str(copy), *set_of(*MANY)]
