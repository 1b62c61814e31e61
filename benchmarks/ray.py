"""What engines of sweeps cost for each job, and what a killed node and a killed worker leave behind.

Twelve runs of a SASRec of width 8 on a planted store, one at a time: `job_s_local` is the mean time between two rows,
`overhead_s_processes` and `overhead_s_ray` what it is more there, and `start_s_...` the time to the first row beyond a
job's own. `sent_bytes` is what travels for a job, `store_bytes` the store that does not. The other figures are of a Ray
cluster of two nodes on this machine, a CPU each: `rows` of twelve jobs of which the second node is killed after three,
`lost_jobs` those that were handed in again, and of a training by two workers of which one is killed, the largest
difference of a weight to the unbroken one's and the seconds of both.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.harness import CACHE, Benchmark, Figures, Say, main, require, rounded
from fullrank import parallel
from fullrank.api import train
from fullrank.core.tensor_files import read_tensors
from fullrank.data.events.prepare import prepare
from fullrank.data.events.store import Store
from fullrank.data.sources.planted import Planted
from fullrank.parallel import Local, Runner
from fullrank.parallel.processes import LocalProcesses
from fullrank.parallel.ray import RayEngine
from fullrank.sweeps.sweep import Grid
from fullrank.sweeps.work import Work

SMALL = {
    "model.dim": 8, "model.encoder.layers": 1, "training.batch_size": 512, "training.patience": None,
    "evaluation.bootstrap": 5,
}  # fmt: skip
JOBS = 12


def shop(folder: Path, users: int) -> Store:
    return prepare(Planted(users=users, items=60, events_per_user=8).read().events, folder / "shop")


def work(store: Store, out: Path, jobs: int, epochs: int) -> list[Work]:
    cell = {"name": "sasrec", "recipe": "sasrec", "set": {**SMALL, "training.max_epochs": epochs}}
    grid = Grid.parse({"cells": [cell], "seeds": list(range(jobs))})
    return [Work(job, store, out) for job in grid.jobs()]


def check(engine: Any = LocalProcesses) -> None:
    """A row of another process has the metrics of one made here."""
    with place("ray-check") as folder:
        store = shop(folder, 60)
        ((_, here),) = Local().results(Work.run, work(store, folder / "here", 1, 1))
        ((_, there),) = engine(1).results(Work.run, work(store, folder / "there", 1, 1))
        require(here["metrics"] == there.get("metrics"), "another process measured other metrics")


def measure(options: argparse.Namespace, say: Say) -> Figures:
    figures: Figures = {}
    with place("ray") as folder:
        store = shop(folder, 150)
        engines: dict[str, Runner] = {
            "local": Local(), "processes": LocalProcesses(1), "ray": RayEngine("local", jobs=1),
        }  # fmt: skip
        for name, engine in engines.items():
            say(f"{JOBS} jobs, {name}")
            figures |= paced(name, engine, work(store, folder / name, JOBS, 1), figures.get("job_s_local", 0.0))
        one = work(store, folder / "sent", 1, 1)[0]
        figures["sent_bytes"] = len(ForkingPickler.dumps(one))
        figures["store_bytes"] = sum(file.stat().st_size for file in store.path.rglob("*") if file.is_file())
        with two_nodes() as cluster:
            say("a worker is killed")
            figures |= killed_worker(cluster, store, folder)
            say("a node is killed")
            figures |= killed_node(cluster, work(store, folder / "killed", JOBS, 12))
    return rounded(figures)


def paced(name: str, engine: Runner, jobs: list[Work], job: float) -> Figures:
    begun, at = time.perf_counter(), list[float]()
    for _, row in engine.results(Work.run, jobs):
        require(not row.get("error"), f"a run failed: {row.get('error')}")
        at.append(time.perf_counter() - begun)
    each = statistics.fmean(b - a for a, b in zip(at, at[1:], strict=False))
    if name == "local":
        return {"job_s_local": each}
    return {f"overhead_s_{name}": each - job, f"start_s_{name}": at[0] - each}


def killed_node(cluster: Any, jobs: list[Work]) -> Figures:
    """The rows of jobs on two nodes, the second of which is killed when three rows are there."""
    begun, rows, lost = time.perf_counter(), list[Any](), set[str]()
    with mock.patch.object(parallel.log, "info", lambda message: lost.add(message.partition(":")[0])):
        for done, row in RayEngine(cluster.address).results(Work.run, jobs):
            rows.append((str(done), row.get("error")))
            if len(rows) == 3:
                node = next(iter(cluster.worker_nodes))
                threading.Timer(1.0, cluster.remove_node, (node,), {"allow_graceful": False}).start()
    return {
        "rows": len(rows), "rows_distinct": len({name for name, _ in rows}),
        "rows_failed": sum(error is not None for _, error in rows),
        "lost_jobs": len(lost), "killed_node_s": time.perf_counter() - begun,
    }  # fmt: skip


class Killed:
    """Kills the first worker at the end of an epoch, once."""

    def __init__(self, note: Path):
        self.note = note

    def on_epoch(self, state: Any) -> dict[str, float]:
        if state.epoch == 4 and not self.note.exists():
            self.note.write_text("killed")
            os.kill(os.getpid(), signal.SIGKILL)
        return {}


def killed_worker(cluster: Any, store: Store, folder: Path) -> Figures:
    """Two workers with dropout, unbroken and with one killed at the end of epoch 4 of 6."""
    settings = [f"{path}={'null' if value is None else value}" for path, value in SMALL.items()]
    how: dict[str, Any] = {"ray": cluster.address, "workers": 2, "progress": False}
    seconds, found = [], []
    for name, callbacks in (("unbroken", []), ("broken", [Killed(folder / "note")])):
        begun = time.perf_counter()
        run = train(
            "sasrec", store, folder / name, set=[*settings, "training.max_epochs=6"], callbacks=callbacks, **how
        )
        seconds.append(time.perf_counter() - begun)
        found.append(read_tensors(run.path / "weights.safetensors"))
    require((folder / "note").exists(), "no worker was killed")
    most = max(float((found[0][name] - found[1][name]).abs().max()) for name in found[0])
    return {"most_weight_difference": most, "train_s": seconds[0], "train_killed_s": seconds[1]}


@contextmanager
def two_nodes() -> Iterator[Any]:
    import ray
    from ray.cluster_utils import Cluster

    cluster, node = Cluster(), {"num_cpus": 1, "object_store_memory": 100 * 2**20, "include_dashboard": False}
    try:
        for _ in range(2):
            cluster.add_node(**node)
        cluster.wait_for_nodes()
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


@contextmanager
def place(name: str) -> Iterator[Path]:
    folder = CACHE / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


BENCHMARK = Benchmark("ray", __doc__.splitlines()[0], lambda _: None, check, measure)

if __name__ == "__main__":
    raise SystemExit(main(BENCHMARK))
