"""Peak anonymous memory of a ranking, measured in a process of its own: ``python -m benchmarks.memory ITEMS USERS``.

The vectors are loaded and a small ranking has run (so that code and thread pools are in memory) before the level is
read from /proc/self/status (RssAnon). The kernel's high-water mark is then reset through /proc/self/clear_refs, the
ranking runs, and the new mark (VmHWM, which no short peak escapes) less the file-backed part is the peak. Linux only.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from benchmarks.harness import ROOT
from fullrank.core.errors import UserError
from fullrank.core.jagged import Jagged
from fullrank.data.batch import Batch
from fullrank.data.histories import Histories
from fullrank.inference.batches import BLOCK, Batching
from fullrank.inference.recommend import rank
from fullrank.models import DenseScorer, Model

DIM, K, SEEN = 64, 20, 9
"""Width of the vectors, length of the lists, events in a history (the mean of amazon-beauty)."""


class Given(Model):
    """A model whose user and item vectors are already there."""

    max_length = 50

    def __init__(self, users: int, items: int):
        draw = torch.Generator().manual_seed(0)
        self.num_items = items
        self.vectors = torch.randn(users, DIM, generator=draw)
        self.table = torch.randn(items, DIM, generator=draw)

    def answer(self, batch: Batch) -> DenseScorer:
        assert batch.rows is not None
        return DenseScorer(self.vectors[batch.rows], self.table)


def ranking_of(users: int, items: int, block: int) -> Callable[[], object]:
    """Loads vectors and histories; what is returned ranks all items for all users, seen ones excluded."""
    model = Given(users, items)
    flat = np.random.default_rng(0).integers(0, items, users * SEEN).astype(np.int32)
    starts = np.arange(users, dtype=np.int64) * SEEN
    histories = Histories(Jagged(flat, starts, starts + SEEN))
    return lambda: rank(model, histories, k=K, how=Batching(block=block))


def peak_above(action: Callable[[], object]) -> tuple[float, float]:
    """Anonymous megabytes before the action, and the most above that while it ran.

    What the allocator keeps of freed memory goes back to the system first: it would count as memory before, and an
    action that finds room in it would seem to need none.
    """
    gc.collect()
    if hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)
    before = _status()
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError as error:
        raise UserError(f"peak memory needs Linux's /proc/self/clear_refs: {error}") from None
    kept = action()
    after = _status()
    del kept
    files = before["RssFile"] + before.get("RssShmem", 0)
    return before["RssAnon"] / 1024, (after["VmHWM"] - files - before["RssAnon"]) / 1024


def measured(users: int, items: int, *, block: int, threads: int) -> dict[str, float]:
    """`level_mb` and `peak_mb` (above it) of one ranking in a fresh process."""
    return in_a_process("benchmarks.memory", items, users, block, threads)


def in_a_process(module: str, *words: object) -> dict[str, float]:
    """What a module of the benchmarks prints as JSON when it runs in a fresh process."""
    command = [sys.executable, "-m", module, *map(str, words)]
    path = os.pathsep.join([str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path})
    if done.returncode:
        raise UserError(f"measuring memory failed: {done.stderr.strip().splitlines()[-1:]}")
    found: dict[str, float] = json.loads(done.stdout)
    return found


def _status() -> dict[str, int]:
    """Kilobytes by name from /proc/self/status."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError as error:
        raise UserError(f"peak memory needs Linux's /proc/self/status: {error}") from None
    return {name: int(rest.split()[0]) for name, _, rest in (x.partition(":") for x in lines) if rest.endswith("kB")}


@contextmanager
def most_anonymous(every: float = 0.01) -> Iterator[list[float]]:
    """The most anonymous megabytes at any of many moments of the block, as the list's one number.

    The high-water mark has the mapped pages of files in it, which the system takes back when it needs them.
    """
    most, done = [0.0], threading.Event()

    def look() -> None:
        while not done.is_set():
            most[0] = max(most[0], _status()["RssAnon"] / 1024)
            done.wait(every)

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    try:
        yield most
    finally:
        done.set()
        watcher.join()


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("items", type=int)
    parser.add_argument("users", type=int)
    parser.add_argument("block", type=int, nargs="?", default=BLOCK)
    parser.add_argument("threads", type=int, nargs="?", default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    ranking_of(64, 300, 128)()
    level, peak = peak_above(ranking_of(options.users, options.items, options.block))
    print(json.dumps({"level_mb": level, "peak_mb": peak}))


if __name__ == "__main__":
    _main()
