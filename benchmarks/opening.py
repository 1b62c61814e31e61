"""What hashes cost: a run opened with and without them, and their share of a training on amazon-beauty.

``opening_over_reading``: median over rounds of the seconds of `fr.load`, with every file hashed, over those of the same
call that compares no hash: it reads the same files and builds the same model. ``hash_share_of_train``: seconds spent in
hashing, of the store when it is opened, of checkpoints and of the seal, over those of a training of one epoch with its
validation; a longer one hashes the store as often. ``store_*``: the same of opening the store alone.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import fullrank as fr
from benchmarks import data
from benchmarks.harness import Benchmark, Figures, Say, main, require, rounded
from fullrank.core.errors import UserError
from fullrank.data import manifest
from fullrank.data.events.store import Store
from fullrank.run import Run
from fullrank.training import checkpoint

WEIGHTS = "weights.safetensors"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, metavar="STORE", help="another store than amazon-beauty")
    parser.add_argument("--rounds", type=int, default=15, metavar="N", help="rounds of opening  [default: 15]")


def check() -> None:
    """Opening finds a flipped bit with hashes and not without: what is timed makes the difference."""
    with tempfile.TemporaryDirectory() as folder:
        store = data.tiny()
        run = fr.train(small("training.max_epochs=1"), store, Path(folder) / "run", progress=False)
        whole = bytearray((run.path / WEIGHTS).read_bytes())
        whole[-1] ^= 1
        (run.path / WEIGHTS).write_bytes(bytes(whole))
        require(refuses(run.path), "a flipped bit was not found")
        with without_hashes():
            require(not refuses(run.path), "what is timed as reading compares hashes")


def small(*settings: str) -> Any:
    return fr.recipe("sasrec", "model.dim=16", "model.encoder.layers=1", *settings)


def refuses(run: Path) -> bool:
    try:
        fr.load(run)
    except UserError:
        return True
    return False


@contextmanager
def without_hashes() -> Iterator[None]:
    """As if no manifest held a hash."""
    with mock.patch.object(manifest, "check_hash", lambda *given: None):
        yield


def opening(call: Callable[[], object], rounds: int) -> tuple[float, float]:
    """Median seconds of a call with hashes, nothing of them known from before, and without, by turns."""
    hashed, plain = [], []
    for _ in range(rounds):
        manifest._hash_of.cache_clear()
        hashed.append(seconds(call))
        with without_hashes():
            plain.append(seconds(call))
    return median(hashed), median(plain)


def seconds(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def train_hashing(store: Path, out: Path) -> tuple[Run, float, float]:
    """The run, and the seconds of its training and of the hashing in it."""
    spent: list[float] = []
    plain = manifest.sha256_file

    def timed(path: Path) -> str:
        begun = time.perf_counter()
        found = plain(path)
        spent.append(time.perf_counter() - begun)
        return found

    manifest._hash_of.cache_clear()
    with mock.patch.object(manifest, "sha256_file", timed), mock.patch.object(checkpoint, "sha256_file", timed):
        begun = time.perf_counter()
        run = fr.train("sasrec", store, out, set=["training.max_epochs=1"], progress=False)
        whole = time.perf_counter() - begun
    return run, whole, sum(spent)


def measure(options: argparse.Namespace, say: Say) -> Figures:
    store = data.beauty(options.data, say)
    bytes_ = sum(path.stat().st_size for path in store.path.iterdir())
    say(f"open {store}")
    store_hashed, store_plain = opening(lambda: Store.open(store.path), options.rounds)
    with tempfile.TemporaryDirectory() as folder:
        say("train one epoch")
        run, trained, hashing = train_hashing(store.path, Path(folder) / "run")
        say("open the run")
        hashed, plain = opening(lambda: fr.load(run.path), options.rounds)
        run_bytes = sum((run.path / name).stat().st_size for name in run.manifest["files"])
    return rounded({
        "opening_over_reading": hashed / plain, "opening_seconds": hashed, "reading_seconds": plain,
        "run_megabytes": run_bytes / 1e6, "store_opening_over_reading": store_hashed / store_plain,
        "store_opening_seconds": store_hashed, "store_megabytes": bytes_ / 1e6,
        "hash_share_of_train": hashing / trained, "train_seconds": trained, "hashing_seconds": hashing,
    })  # fmt: skip


BENCHMARK = Benchmark("opening", __doc__ or "", arguments, check, measure)

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
