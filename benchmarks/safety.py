"""What it costs that damage is noticed and nothing is lost: hashes, locks and flushes in training and opening a run.

``safety_share_of_train``: seconds in hashing, taking locks and flushing to disk over those of `train` on amazon-beauty,
all of them counted in the one call. ``open_over_unhashed``: opening a run for answers over the same without comparing
hashes, by turns, each with the memory of earlier hashes emptied.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import polars as pl

import fullrank as fr
from benchmarks import data
from benchmarks.harness import Benchmark, Figures, Say, main, require, rounded
from fullrank.core import files, locks
from fullrank.core.errors import UserError
from fullrank.data import manifest
from fullrank.data.events.store import Store
from fullrank.run import checkpoint

COSTS: dict[str, tuple[tuple[Any, str], ...]] = {
    "hashing": ((manifest, "sha256_file"), (checkpoint, "sha256_file")),
    "locks": ((locks, "_acquire"),),
    "flushing": ((files, "flush"),),
}
"""What is counted -> the functions that do it, where they are called from."""


@contextmanager
def counted() -> Iterator[dict[str, float]]:
    """Seconds spent inside, by what for."""
    spent = dict.fromkeys(COSTS, 0.0)
    with ExitStack() as stack:
        for name, places in COSTS.items():
            for module, function in places:
                timed = _timed(getattr(module, function), name, spent)
                stack.enter_context(mock.patch.object(module, function, timed))
        yield spent


def _timed(function: Callable[..., Any], name: str, spent: dict[str, float]) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Any:
        begun = time.perf_counter()
        try:
            return function(*arguments, **named)
        finally:
            spent[name] += time.perf_counter() - begun

    return call


def opened(run: Path, *, hashed: bool) -> float:
    """Seconds to open a run for answers, with its files hashed or not."""
    manifest._hash_of.cache_clear()
    begun = time.perf_counter()
    with mock.patch.object(manifest, "check_hash", manifest.check_hash if hashed else lambda *_: None):
        fr.load(run, device="cpu")
    return time.perf_counter() - begun


def trained(store: Store, out: Path, settings: list[str]) -> tuple[float, dict[str, float]]:
    """Seconds of one training, and those that `counted` counts in it."""
    begun = time.perf_counter()
    with counted() as spent:
        fr.train("sasrec", store, out, set=settings, progress=False)
    return time.perf_counter() - begun, spent


def check() -> None:
    """What is left out of the timing is what notices damage."""
    with tempfile.TemporaryDirectory() as home:
        events = {"user_id": [u for u in range(30) for _ in range(5)], "item_id": [i % 11 for i in range(150)]}
        store = fr.prepare(pl.DataFrame(events | {"timestamp": range(150)}), Path(home) / "store")
        tiny = ["model.dim=8", "model.encoder.layers=1", "training.max_epochs=1", "training.patience=null"]
        _, spent = trained(store, Path(home) / "run", tiny)
        require(all(seconds > 0 for seconds in spent.values()), f"a training that costs nothing: {spent}")
        weights = Path(home) / "run" / "weights.safetensors"
        data_of = bytearray(weights.read_bytes())
        data_of[-1] ^= 1
        weights.write_bytes(bytes(data_of))
        opened(Path(home) / "run", hashed=False)
        try:
            opened(Path(home) / "run", hashed=True)
        except UserError:
            return
        require(False, "a flipped bit is not noticed")


def measure(options: argparse.Namespace, say: Say) -> Figures:
    store = data.beauty(options.data, say)
    with tempfile.TemporaryDirectory() as home:
        run = Path(home) / "run"
        say(f"train {options.epochs} epochs")
        seconds, spent = trained(store, run, [f"training.max_epochs={options.epochs}", "training.patience=null"])
        say("open")
        pairs = [(opened(run, hashed=True), opened(run, hashed=False)) for _ in range(options.rounds + 1)][1:]
        size = sum(path.stat().st_size for path in run.iterdir() if path.is_file())
    hashed, bare = (median(column) for column in zip(*pairs, strict=True))
    shares = {f"{name}_share_of_train": value / seconds for name, value in spent.items()}
    return rounded(
        {
            "safety_share_of_train": sum(spent.values()) / seconds, **shares, "train_seconds": seconds,
            "open_over_unhashed": hashed / bare, "open_ms": hashed * 1e3, "unhashed_ms": bare * 1e3,
            "run_megabytes": size / 1e6,
        }
    )  # fmt: skip


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, help="a store in place of amazon-beauty")
    parser.add_argument("--epochs", type=int, default=2, help="epochs of training (default 2: a full one has more)")
    parser.add_argument("--rounds", type=int, default=20, help="timed openings (default 20)")


BENCHMARK = Benchmark("safety", "what hashes, locks and flushes cost", _arguments, check, measure)

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
