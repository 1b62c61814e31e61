"""Trainings in several processes: started one by one, cut off, compared with those of one, and with a planted fault."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from fullrank.api import evaluate, train
from fullrank.core.readers import read_json
from fullrank.core.tensor_files import read_tensors
from fullrank.data.events.store import Store
from fullrank.run import Run
from fullrank.run.experiment import Experiment
from tests.training.conftest import column, weights

WORKER = Path(__file__).with_name("worker.py")
SMOOTH = "model.encoder.activation=gelu"
"""For long runs: a ReLU whose sum is within rounding of zero has another gradient in another order of additions."""
LONG = ("training.checkpoint_minutes=0", "training.max_epochs=40", "training.lr=1e-4", SMOOTH)
"""Long enough to be cut off twice."""


def free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return str(server.getsockname()[1])


def ranks(words: Sequence[object], processes: int) -> list[subprocess.Popen[bytes]]:
    """`python WORDS` as so many processes of one training, without torchrun's agent, which puts its workers into
    sessions of their own, where nobody's signal reaches them, and ends the survivors itself."""
    of = {"WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1"}
    env = {**os.environ, **of, "MASTER_PORT": free_port(), "OMP_NUM_THREADS": "1"}
    return [
        subprocess.Popen(
            [sys.executable, *map(str, words)],
            env={**env, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for rank in range(processes)
    ]


def torchrun(
    spec: Experiment, store: Store, out: Path, processes: int = 2, mode: str = "fresh", worker: Path = WORKER
) -> Run:
    return torchrun_all({out: spec}, store, processes, mode, worker)[0]


def torchrun_all(
    specs: Mapping[Path, Experiment], store: Any, processes: int, mode: str = "fresh", worker: Path = WORKER
) -> list[Run]:
    """One run per folder and spec, one after another in the same processes, which take seconds to begin."""
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    runs = (str(word) for out, spec in specs.items() for word in (out, json.dumps(spec.dump())))
    done = subprocess.run(
        [*command, str(worker), str(store.path), mode, *runs],
        env=env,
        capture_output=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    return [Run.open(out) for out in specs]


def cut_off(spec: Experiment, store: Store, out: Path, processes: int, mode: str, behind: int) -> None:
    """Kill training once there is a checkpoint behind a step, before it has ended."""
    running = ranks([WORKER, store.path, mode, out, json.dumps(spec.dump())], processes)
    pointer = out / "checkpoints" / "last.json"
    try:
        while not pointer.exists() or int(read_json(pointer)["folder"].removeprefix("step-")) <= behind:
            if running[0].poll() is not None:
                break
            time.sleep(0.005)  # they need the processor
    finally:
        for one in running:
            one.kill()
        said = [one.communicate()[1].decode()[-2000:] for one in running]
    assert running[0].returncode == -signal.SIGKILL, f"the run ended before it could be cut off: {said[0]}"


def several_equal_one(specs: Mapping[str, Experiment], store: Store, folder: Path, processes: int) -> None:
    for run in torchrun_all({folder / name: spec for name, spec in specs.items()}, store, processes):
        name = run.path.name
        equal(run, train(specs[name], store, folder / f"one-{name}", progress=False))


def goes_on(spec: Experiment, store: Store, folder: Path) -> None:
    """Cut off on four processes, gone on with on two, cut off there, and ended by one: the run of one process."""
    one, out = train(spec, store, folder / "one", progress=False), folder / "several"
    cut_off(spec, store, out, 4, "fresh", behind=8)
    cut_off(spec, store, out, 2, "resume", behind=60)
    equal(train(out=out, resume=True, progress=False), one)


def moments(run: Run) -> dict[str, torch.Tensor]:
    return read_tensors(run.path / "checkpoints" / read_json(run.path / "checkpoints" / "last.json")["folder"] /
                        "optimizer.safetensors")  # fmt: skip


def equal(run: Run, one: Run) -> None:
    """Losses to 1e-6, the metric of the same weights, and files of the same tensors, which differ by rounding alone."""
    assert column(run) == pytest.approx(column(one), rel=1e-6)
    metric = column(run, "validation/ndcg@10")
    assert max(metric) == pytest.approx(evaluate(run, split="validation").metrics["ndcg@10"], abs=1e-12)
    # Weights that differ by rounding rank two items of nearly one score either way: that moves one user by one place.
    assert metric == pytest.approx(column(one, "validation/ndcg@10"), abs=1e-3)
    assert run.manifest["parameters"] == one.manifest["parameters"]
    for a, b in ((weights(run), weights(one)), (moments(run), moments(one))):
        assert {n: t.shape for n, t in a.items()} == {n: t.shape for n, t in b.items()}
        for name in a:  # by norm: Adam blows up the rounding of single weights whose gradients are near zero
            assert (a[name] - b[name]).norm() <= 2e-2 * b[name].norm() + 1e-12, name


def with_summed_gradients(folder: Path) -> Path:
    """The worker with a planted fault: gradients of what is shared out are as many times too large as processes are."""
    script = folder / "faulty.py"
    script.write_text(
        f"import sys; sys.path[:0] = {[str(WORKER.parents[2]), *sys.path]!r}\n"
        "from fullrank.training.loop import FitModule\n"
        "step = FitModule.on_before_optimizer_step\n"
        "def wrong(self, optimizer):\n"
        "    step(self, optimizer)\n"
        "    for name in self.shards:\n"
        "        self.get_parameter(name).grad *= self.trainer.world_size\n"
        "FitModule.on_before_optimizer_step = wrong\n"
        "from tests.training import worker\nworker.main()\n"
    )
    return script
