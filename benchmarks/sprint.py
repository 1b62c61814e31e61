"""A training step with SPRINT over the same step without: time at two lengths, and peak memory at a long one.

``step_over_plain_t50``, ``step_over_plain_t200``: median over pairs of steps (forward, backward, AdamW, power method)
of 4,800 tokens in full rows, width 256, 4 layers, 4 heads, SwiGLU, BCE with 16 negatives. ``memory_t1024_over_fused``:
peak memory of a step of 8 rows of 1,024 events above the level before it, with SPRINT over without; the slow twin,
which holds the weights, is beside it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor

from benchmarks.harness import Benchmark, Figures, Say, main, require, rounded
from benchmarks.step_memory import MODES, measured, model_of, rows_of
from fullrank.models.sequential.model import RecommenderModel
from fullrank.ops.column_attention import column_attention, column_attention_reference
from fullrank.run.experiment import Training
from fullrank.training.optim import make_optimizer

TOKENS = 4800
LENGTHS = (50, 200)
Attend = Callable[..., tuple[Tensor, Tensor, Tensor]]


def check(attend: Attend = column_attention) -> None:
    """The blocked attention equals its slow twin in output, sums and gradients, and the two models' losses agree."""
    draw = torch.Generator().manual_seed(0)
    leaves = torch.randn(3, 2, 2, 150, 8, generator=draw).requires_grad_()
    valid = torch.arange(150) < torch.tensor([[150], [77]])
    q, k, v = leaves.unbind(0)
    found, wanted = ([*f(q, k, v, valid, causal=True)] for f in (attend, column_attention_reference))
    for values in (found, wanted):
        loss = values[0].sin().sum() + values[1].square().sum()
        values += torch.autograd.grad(loss, leaves)
    same = all(torch.allclose(a, b, rtol=1e-4, atol=1e-4) for a, b in zip(found, wanted, strict=True))
    require(same, "the blocked attention is not its slow twin")
    batch = rows_of(3, 20)
    plain, sprint = (model_of(mode, dim=32)(batch) for mode in ("fused", "blocked"))
    require("sprint" in sprint and "sprint" not in plain, "the two models are not with and without SPRINT")
    require(abs(plain["ahead_1"].item() - sprint["ahead_1"].item()) < 1e-4, "the losses of the two models differ")


def measure(options: argparse.Namespace, say: Say) -> Figures:
    figures: Figures = {}
    for length in LENGTHS:
        plain, sprint = (Stepper(model_of(mode), length) for mode in ("fused", "blocked"))
        pairs = []
        for done in range(options.rounds + 2):
            pairs.append((plain(), sprint()) if done % 2 else (sprint(), plain())[::-1])
        kept = pairs[2:]
        figures[f"step_over_plain_t{length}"] = median(b / a for a, b in kept)
        figures[f"plain_seconds_t{length}"] = median(a for a, _ in kept)
        figures[f"sprint_seconds_t{length}"] = median(b for _, b in kept)
        say(f"length {length}: {figures[f'step_over_plain_t{length}']:.3f} times the plain step")
    peaks = {}
    for mode in MODES:
        say(f"peak memory of a step of 8 rows of 1,024: {mode}")
        peaks[mode] = median(measured(mode, 8, 1024, threads=options.threads) for _ in range(options.processes))
    return rounded({
        **figures,
        "memory_t1024_over_fused": peaks["blocked"] / peaks["fused"],
        "memory_t1024_slow_over_fused": peaks["slow"] / peaks["fused"],
        **{f"memory_t1024_{mode}_mb": peak for mode, peak in peaks.items()},
        "tokens": TOKENS,
        "rounds": options.rounds,
    })  # fmt: skip


class Stepper:
    """Seconds of one training step on the same rows."""

    def __init__(self, model: RecommenderModel, length: int):
        self.model, self.batch = model.train(), rows_of(TOKENS // length, length)
        self.optimizer = make_optimizer(model, Training(weight_decay=0.1))

    def __call__(self) -> float:
        begun = time.perf_counter()
        loss = torch.stack(list(self.model(self.batch).values())).sum()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return time.perf_counter() - begun


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=30, help="timed pairs of steps at each length (default 30)")
    parser.add_argument("--processes", type=int, default=3, help="processes per peak of memory (default 3)")


BENCHMARK = Benchmark("sprint", __doc__ or "", arguments, check, measure)

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
