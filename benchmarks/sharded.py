"""Item tables shared out to processes: memory of a process, and the losses of one process, of two and of four.

SASRec of width 64 takes ten steps of the exact softmax over five million items, on 1, 2 and 4 gloo processes that
torchrun starts: a whole run of `fullrank train` with its validation, checkpoint and weights. `table_memory_share_2` and
`_4`: the most anonymous memory of the process that takes most, less that of the same training with a thousand items,
over the same of one process. `losses_differ`: the largest relative difference of a step's loss from that of one
process; `metric_differs` that of the validation metric. `--items 10000000 --processes 2` trains one of these alone.

`--encoder` shares out the blocks of a large encoder instead (`training.shard_encoder`): a thousand items, twelve blocks
of width 512, 38 million numbers. `encoder_memory_share_2` and `_4` are counted above the same training with one block.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

from benchmarks.harness import CACHE, ROOT, Benchmark, Figures, Say, main, require, rounded
from benchmarks.memory import most_anonymous
from fullrank.data.events.prepare import prepare
from fullrank.run.experiment import Experiment, find_experiment

STEPS, ROWS, EVENTS = 10, 8, 12
"""Optimizer steps; histories of a step; events of a history, of which the last two are targets of the evaluation."""
FEW = 1000
"""Items of the training that the table's memory is counted above."""
SETTINGS = (
    "model.dim=64", "model.max_length=20", "model.encoder.layers=2", "model.encoder.dropout=0",
    "model.encoder.input_dropout=0", "model.scoring={similarity: dot}", "model.loss=cross_entropy",
    "training.batch_by=rows", f"training.batch_size={ROWS}", "training.max_epochs=1", "training.shard_items=true",
    "evaluation.bootstrap=0",
)  # fmt: skip

WIDE = (
    "model.dim=512", "model.encoder.attention.heads=8", "training.shard_items=false", "training.shard_encoder=true",
)  # fmt: skip
"""Settings of `--encoder`, but the number of blocks."""
BLOCKS = 12


def store_of(items: int, place: Path, users: int = ROWS * STEPS) -> Path:
    """A store of so many items, in which some users have a history and each other event is its user's only one."""
    folder = place / f"store-{items}-{users}"
    if not (folder / "manifest.json").exists():
        draw = np.random.default_rng(0)
        rest = max(items - users * EVENTS, 0)
        who = np.concatenate([np.repeat(np.arange(users), EVENTS), users + np.arange(rest)])
        what = np.concatenate([draw.integers(0, items, users * EVENTS), draw.permutation(items)[:rest]])
        frame = pl.DataFrame({"user_id": who, "item_id": what, "timestamp": np.arange(len(who))})
        every = pl.DataFrame({"item_id": np.arange(items)})
        prepare(frame, folder, items=every, overwrite=True)
    return folder


def experiment(*settings: str) -> Experiment:
    return find_experiment("sasrec").override(*SETTINGS, *settings)


def trained(items: int, processes: int, place: Path, *settings: str) -> dict[str, Any]:
    """One training: the memory of each process in megabytes, the loss of each step, the metric, the seconds."""
    out = place / f"run-{items}-{processes}"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    worker = ["-m", "benchmarks.sharded", "--one", store_of(items, place), out, *settings]
    several = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command = [sys.executable, *(several if processes > 1 else []), *map(str, worker)]
    path = os.pathsep.join([str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    # glibc raises its threshold when a block is freed, and then keeps gathered blocks in a heap that falls to pieces
    env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "262144"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    require(done.returncode == 0, f"training on {processes} processes failed: {done.stderr[-2000:]}")
    try:
        told = [json.loads(one.read_text()) for one in sorted(out.glob("process-*.json"))]
        rows = [json.loads(line) for line in (out / "run" / "metrics.jsonl").read_text().splitlines()]
    finally:
        shutil.rmtree(out, ignore_errors=True)
    epoch = rows[-1]
    return {
        "memory": [one["anonymous_mb"] for one in told],
        "losses": [row["loss"] for row in rows if row["event"] == "step"],
        "metric": epoch["validation/ndcg@10"],
        "seconds_per_step": epoch["seconds"] / epoch["step"],
        "seconds": max(one["seconds"] for one in told),
    }  # fmt: skip


def differences(found: dict[str, Any], one: dict[str, Any]) -> tuple[float, float]:
    """The largest relative difference of a step's loss, and that of the metric."""
    pairs = zip(found["losses"], one["losses"], strict=True)
    return max(abs(a - b) / abs(b) for a, b in pairs), abs(found["metric"] - one["metric"])


def check(settings: tuple[str, ...] = ()) -> None:
    """Two processes have the losses and the metric of one, at a thousand items."""
    place = CACHE / "sharded-check"
    try:
        one = trained(FEW, 1, place)
        losses, metric = differences(trained(FEW, 2, place, *settings), one)
        require(len(one["losses"]) == STEPS, f"{len(one['losses'])} steps were trained, not {STEPS}")
        require(losses <= 1e-6, f"a loss of two processes is {losses:.1e} from that of one")
        require(metric == 0, "the metric of two processes is another one than that of one")
    finally:
        shutil.rmtree(place, ignore_errors=True)


def measure(options: argparse.Namespace, say: Say) -> Figures:
    few: tuple[Any, ...] = (FEW,)  # items and settings of the training that is counted above, and of the large one
    many: tuple[Any, ...] = (options.items,)
    what, without_it = "table", "few_items"
    if options.encoder:
        few, many = (FEW, *WIDE, "model.encoder.layers=1"), (FEW, *WIDE, f"model.encoder.layers={BLOCKS}")
        what, without_it = "encoder", "one_block"
    place = CACHE / "sharded"
    found: Figures = {"items": many[0]}
    above, runs = dict[int, float](), dict[int, dict[str, Any]]()
    try:
        for processes in options.processes:
            without = trained(few[0], processes, place, *few[1:])
            runs[processes] = run = trained(many[0], processes, place, *many[1:])
            above[processes] = max(run["memory"]) - max(without["memory"])
            say(
                f"{processes} processes: {max(without['memory']):.0f} MB each without the {what}, with it "
                f"{max(run['memory']):.0f} MB, {run['seconds_per_step']:.1f} s a step"
            )
            found |= {
                f"{what}_mb_{processes}": above[processes],
                f"process_mb_{processes}": max(run["memory"]),
                f"process_mb_{processes}_{without_it}": max(without["memory"]),
                f"seconds_per_step_{processes}": run["seconds_per_step"],
                f"seconds_{processes}": run["seconds"],
            }
        for processes in (n for n in runs if n > 1 and 1 in runs):
            found[f"{what}_memory_share_{processes}"] = above[processes] / above[1]
            losses, metric = differences(runs[processes], runs[1])
            found |= {f"losses_differ_{processes}": losses, f"metric_differs_{processes}": metric}
        if not options.encoder:
            found["table_itself_mb"] = options.items * 64 * 4 / 2**20
        found["losses"] = next(iter(runs.values()))["losses"]
        return rounded(found)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _one(store: str, out: str, *settings: str) -> None:
    """One process of a training; leaves what it took beside the run."""
    from fullrank.api import train
    from fullrank.training import loop

    torch.set_num_threads(1)
    loop.LOG_EVERY = 1  # a row for each step
    begun = time.perf_counter()
    with most_anonymous() as most:
        train(experiment(*settings), store, Path(out) / "run", progress=False, device="cpu")
    told = {"anonymous_mb": most[0], "seconds": time.perf_counter() - begun}
    (Path(out) / f"process-{os.environ.get('RANK', '0')}.json").write_text(json.dumps(told))


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--items", type=int, default=5_000_000, help="rows of the table (default 5,000,000)")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4], help="in turn (default 1 2 4)")
    parser.add_argument("--encoder", action="store_true", help="share out an encoder instead of a table")


BENCHMARK = Benchmark("sharded", __doc__ or "", _arguments, check, measure)

if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        _one(*sys.argv[2:])
    else:
        sys.exit(main(BENCHMARK))
