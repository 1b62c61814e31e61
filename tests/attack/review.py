"""What the tests of the review's 21 points share: command lines with their answers, and a training to interrupt.

All of it runs on version 0.1 too.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.attack.frame import Said, call, outcome_of, patience, shared
from tests.attack.spawn import environment
from tests.attack.worlds import DIM, set_of, world

MANY = ("training.max_epochs=3000", "training.batch_size=64", "training.patience=null", *DIM)


def refused(*words: object) -> Said:
    """The command line ends with status 2 and one sentence. Version 0.1 had no codes: `test_options` asks for them."""
    said = call(*words, "--json")
    outcome = outcome_of(said, as_json=False)
    assert outcome.kind == "refused", f"{outcome.kind}: {outcome.detail}"
    return said


def answer(*words: object) -> Any:
    """The JSON of a command line that ends with 0."""
    said = call(*words, "--json")
    outcome = outcome_of(said)
    assert outcome.kind == "ok", f"{outcome.kind}: {outcome.detail}"
    return said.json


def listed(run: object, *words: object) -> list[tuple[Any, ...]]:
    rows = answer("recommend", run, *words)["recommendations"]
    return [(row["item"], round(row["score"], 6)) for row in rows]


ASKED = ("--k", 30, "--history", "9,7,5")


@contextlib.contextmanager
def training(run: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that trains for long, once it has kept a checkpoint; killed at the end."""
    given = ["train", "sasrec", "--data", world()["store"], "--out", str(run), *words, *set_of(*MANY)]
    process = subprocess.Popen(
        [sys.executable, "-m", "fullrank", *given],
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        waited(lambda: len(rows_of(run)) >= 2 or process.poll() is not None)
        assert process.poll() is None, "the training has ended before its time"
        yield process
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


def cut_off() -> Path:
    """A run whose training was killed, with its checkpoint."""

    def make(folder: Path) -> None:
        with training(folder / "run"):
            waited(lambda: len(rows_of(folder / "run")) >= 4)

    return shared("cut-off", make) / "run"
