"""Backward passes written by hand against autograd on the reference, forward and backward, in turn on one machine.

``OP_reference_over_hand``: seconds of the reference over ours. A pass by hand is more code to read and to hold true, so
it stays where this is above 1.1, or where it saves memory that the reference cannot have.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from benchmarks.harness import Benchmark, Figures, Say, main, require, rounded
from fullrank.ops.in_batch_contrast import in_batch_contrast, in_batch_contrast_reference
from fullrank.ops.pairwise_kl import pairwise_kl, pairwise_kl_reference
from fullrank.ops.ranking_layers import cross, cross_reference

Op = Callable[..., Tensor]


def cases(large: bool = True) -> dict[str, tuple[Op, Op, list[Tensor]]]:
    """name -> ours, the reference, and what both are given: batches of the recipes on public data."""
    draw = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw) / shape[-1] ** 0.5

    rows, users, items = (4096, 1024, 12_000) if large else (9, 7, 50)
    contrast = {"temperature": 0.1, "both": True}
    kl = {"maximum": 10.0, "attached": True}
    return {
        "cross_110": (cross, cross_reference, [normal(rows, 110), normal(rows, 110), normal(110, 110), normal(110)]),
        "cross_416": (cross, cross_reference, [normal(rows, 416), normal(rows, 416), normal(416, 416), normal(416)]),
        "contrast": (
            partial(in_batch_contrast, **contrast), partial(in_batch_contrast_reference, **contrast),
            [normal(2, users, 64), normal(2, users, 64)],
        ),
        "kl": (
            partial(pairwise_kl, **kl), partial(pairwise_kl_reference, **kl),
            [normal(users // 7, 3, 64), 10 * normal(items, 64)],
        ),
    }  # fmt: skip


def learn(op: Op, given: list[Tensor]) -> tuple[float, list[Tensor]]:
    """Seconds of one forward and backward pass, and the gradients."""
    leaves = [x.clone().requires_grad_() for x in given]
    begun = time.perf_counter()
    op(*leaves).sum().backward()
    return time.perf_counter() - begun, [x.grad for x in leaves if x.grad is not None]


def check(extra: Op | None = None) -> None:
    """Both give the same gradients; `extra` takes the place of every pass by hand (a planted fault)."""
    for name, (hand, reference, given) in cases(large=False).items():
        ours, theirs = learn(extra or hand, given)[1], learn(reference, given)[1]
        same = len(ours) == len(theirs) and all(
            torch.allclose(a, b, atol=1e-5) for a, b in zip(ours, theirs, strict=True)
        )
        require(same, f"{name}: the gradients by hand are not those of the reference")


def measure(options: argparse.Namespace, say: Say) -> Figures:
    figures: Figures = {}
    for name, (hand, reference, given) in cases().items():
        say(name)
        pairs = [(learn(hand, given)[0], learn(reference, given)[0]) for _ in range(options.rounds + 1)][1:]
        ours, theirs = (min(column) for column in zip(*pairs, strict=True))  # the least disturbed of each
        figures |= {f"{name}_reference_over_hand": theirs / ours, f"{name}_ms": ours * 1e3}
    return rounded(figures)


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=40, help="timed rounds (default 40)")


BENCHMARK = Benchmark("backward", "backward passes by hand against autograd", _arguments, check, measure)

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
