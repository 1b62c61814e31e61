"""This tree against a baseline commit, by turns: is the same work as fast as it was?

``NAME_over_baseline``: seconds of this tree's round over those of the baseline's round beside it, the median of the
pairs; for `train_sequence` (an epoch), `retrieve` (lists for all users) and `train_ranker` (steps of DCNv2 and of
RankElastor). The baseline is checked out in a worktree of its own; each tree has one process for each benchmark, which
lives from the first pair to the last, and only one of them works at a time. Which of the two goes first changes from
pair to pair.

What a round does is this file's in both trees (`rounds_of`); the library and the helpers of `benchmarks` are each
tree's own.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

NAMES = ("train_sequence", "retrieve", "train_ranker")
RANKER_ROWS, RANKER_STEPS = 200_000, 15
"""Impressions, and steps of each ranker in a round; fewer steps get as much fewer impressions."""


def rounds_of(name: str, steps: int) -> Callable[[int], float]:
    """Seconds of round k of a benchmark, after what it needs was made. Runs in a worker, with its tree's modules."""
    if name == "train_sequence":
        from benchmarks import train_sequence
        from benchmarks.data import beauty

        spec, store = train_sequence.experiment(), beauty(None, print)
        ours = train_sequence.Trainee(spec, store, train_sequence.our_loss)
        loader = train_sequence.loader_of(spec, store, ours.model)
        n = loader.steps_per_epoch
        return lambda k: ours.epoch(loader, range(k * n, (k + 1) * n)).seconds
    if name == "retrieve":
        from benchmarks import retrieve

        retrieve.memory = lambda options, say: {}  # processes of its own, and no matter of speed

        def lists(k: int) -> float:
            figures = retrieve.measure(Namespace(data=None, rounds=1), lambda text: None)
            return float(figures["users"] / figures["users_per_s"])

        return lists
    from benchmarks import train_ranker
    from benchmarks.impressions import prepared

    store = prepared(RANKER_ROWS * steps // RANKER_STEPS, Path(tempfile.mkdtemp()) / "store")
    trainees = [train_ranker.Trainee(recipe, store) for recipe in ("dcnv2", train_ranker.MATCHED["rankelastor"])]

    def seconds(k: int) -> float:
        begun = time.perf_counter()
        for trainee in trainees:
            for step in range(k * steps, (k + 1) * steps):
                trainee.step(step)
        return time.perf_counter() - begun

    return seconds


def work(name: str, threads: int, steps: int) -> None:
    """A worker: for each line on stdin one round, its seconds on stdout. Whatever else is printed goes to stderr."""
    answers, sys.stdout = sys.stdout, sys.stderr
    import torch

    torch.set_num_threads(threads)
    action = rounds_of(name, steps)
    action(0)  # the warm-up
    print("ready", file=answers, flush=True)
    for k, _ in enumerate(sys.stdin, 1):
        print(action(k), file=answers, flush=True)


@contextmanager
def worker(tree: Path, name: str, threads: int, steps: int = RANKER_STEPS) -> Iterator[Callable[[], float]]:
    """A process of a tree that is warm; each call runs one round, of so many ranker steps, and gives its seconds."""
    path = {"PYTHONPATH": os.pathsep.join([str(tree / "src"), str(tree)])}
    command = [sys.executable, "-P", __file__, "--worker", name, "--threads", str(threads), "--steps", str(steps)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=tree, env=os.environ | path, **pipes) as process:
        assert process.stdin is not None and process.stdout is not None
        send, receive = process.stdin, process.stdout

        def answer() -> str:
            line = receive.readline()
            if not line:
                raise RuntimeError(f"the worker of {name} in {tree} ended: its message stands above")
            return line

        def once() -> float:
            send.write("go\n")
            send.flush()
            return float(answer())

        answer()
        yield once
        send.close()


def paired(here: Callable[[], float], there: Callable[[], float], pairs: int) -> list[tuple[float, float]]:
    """(seconds here, seconds there) of each pair; the first of a pair changes."""
    found = []
    for k in range(pairs):
        first, second = (here, there) if k % 2 else (there, here)
        one, two = first(), second()
        found.append((one, two) if k % 2 else (two, one))
    return found


def summary(name: str, pairs: list[tuple[float, float]]) -> dict[str, Any]:
    """Figures of one benchmark's pairs."""
    ratios = [here / there for here, there in pairs]
    return {
        f"{name}_over_baseline": median(ratios),
        f"{name}_over_baseline_low": min(ratios),
        f"{name}_over_baseline_high": max(ratios),
        f"{name}_seconds": median(here for here, _ in pairs),
        f"{name}_baseline_seconds": median(there for _, there in pairs),
    }


def check(pair: Callable[..., list[tuple[float, float]]] = paired) -> None:
    """Rounds that take 2 and 3 are told apart, whichever goes first."""
    from benchmarks.harness import require

    require(pair(lambda: 2.0, lambda: 3.0, 4) == [(2.0, 3.0)] * 4, "the trees of a pair are mixed up")


def measure(options: argparse.Namespace, say: Callable[[str], None]) -> dict[str, Any]:
    from benchmarks.harness import ROOT, rounded
    from fullrank.core.errors import UserError
    from tests.golden.compare import NoComparison, checked_out

    figures: dict[str, Any] = {}
    try:
        with checked_out(options.baseline) as baseline:
            data = os.environ.get("FULLRANK_DATA") or ROOT.parent / "shared" / "data"
            os.environ["FULLRANK_DATA"] = str(Path(data).resolve())  # a worktree has no data beside it
            for name in options.only or NAMES:
                with ExitStack() as stack:
                    here, there = (
                        stack.enter_context(worker(tree, name, options.threads)) for tree in (ROOT, baseline)
                    )
                    figures |= summary(name, paired(here, there, options.pairs))
                say(f"{name}: {figures[f'{name}_over_baseline']:.3f} of the baseline's seconds")
    except NoComparison as reason:
        raise UserError(str(reason)) from None
    return rounded({**figures, "baseline": options.baseline[:12], "pairs": options.pairs})


def arguments(parser: argparse.ArgumentParser) -> None:
    from tests.golden.compare import BASELINE

    parser.add_argument("--baseline", default=BASELINE, help="the commit to compare with")
    parser.add_argument("--pairs", type=int, default=10, help="pairs of rounds (default 10)")
    parser.add_argument("--only", nargs="*", choices=NAMES, help="some of the benchmarks")


def _main() -> int:
    if "--worker" in sys.argv:
        parser = argparse.ArgumentParser()
        parser.add_argument("--worker")
        parser.add_argument("--threads", type=int)
        parser.add_argument("--steps", type=int)
        given = parser.parse_args()
        work(given.worker, given.threads, given.steps)
        return 0
    from benchmarks.harness import Benchmark, main

    return main(Benchmark("pairs", __doc__ or "", arguments, check, measure))


if __name__ == "__main__":
    sys.exit(_main())
