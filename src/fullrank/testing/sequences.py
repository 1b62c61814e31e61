"""Checks of every way to read behaviour sequences: packed events equal padded ones, rows one by one, and bfloat16.

A kind that makes no vectors itself (`pooled`) has no cases here; its table is tested where tables
are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from fullrank.core.spec import Spec
from fullrank.models.ranking.sequences import SequenceSpec
from fullrank.testing.inputs import Device, all_learn, built, close, close_in_bf16, of_specs, with_parts

WIDTH = 4
LENGTHS = (2, 1, 5, 3, 1, 4)
"""Events of each row; one without any has the missing value, so none is 0."""


def events(device: Device = "cpu", extra: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Targets [B, W], events [B, L, W] with noise in the padding, and which of them are inside."""
    draw = torch.Generator().manual_seed(4)
    target = torch.randn(len(LENGTHS), WIDTH, generator=draw)
    wide = torch.randn(len(LENGTHS), max(LENGTHS) + 3, WIDTH, generator=draw)[:, : max(LENGTHS) + extra]
    inside = torch.arange(wide.shape[1]) < torch.tensor(LENGTHS)[:, None]
    return target.to(device), wide.to(device), inside.to(device)


def packed(pooling: Any, target: Tensor, wide: Tensor, inside: Tensor) -> Tensor:
    """The pooling of the events that are inside."""
    rows = inside.nonzero()[:, 0]
    return pooling(target, wide[inside], rows)


def check_padded_reference(spec: SequenceSpec, pooling: Any, device: Device = "cpu") -> None:
    """Packed events agree with padded ones, in value and gradient, whatever the padding."""
    runs = []
    for run in (packed, lambda pooling, *inputs: pooling.padded(*inputs)):
        for extra in (0, 3):
            target, wide, inside = (x.requires_grad_(x.is_floating_point()) for x in events(device, extra))
            pooling.zero_grad()
            out = run(pooling, target, wide, inside)
            out.pow(3).sum().backward()
            grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in pooling.parameters()]
            assert target.grad is not None and wide.grad is not None
            assert not wide.grad[~inside].any(), "an event in the padding learns"
            runs.append([out.detach(), target.grad, wide.grad[:, : max(LENGTHS)], *(g.clone() for g in grads)])
    for other in runs[1:]:
        assert all(close(a, b, 1e-4) for a, b in zip(runs[0], other, strict=True))
    pooling.zero_grad()


def check_rows_alone(spec: SequenceSpec, pooling: Any, device: Device = "cpu") -> None:
    """A row's vector is its own, whoever stands beside it."""
    target, wide, inside = events(device)
    whole = packed(pooling, target, wide, inside)
    for row in range(len(LENGTHS)):
        alone = slice(row, row + 1)
        assert close(packed(pooling, target[alone], wide[alone], inside[alone]), whole[alone]), (
            "a row hears of the others"
        )


def check_target(spec: SequenceSpec, pooling: Any, device: Device = "cpu") -> None:
    """Another target gives the same history another vector: otherwise plain pooling would do, and cost less."""
    target, wide, inside = events(device)
    several = torch.tensor(LENGTHS) > 1
    original, others = (packed(pooling, x, wide, inside).cpu()[several] for x in (target, target.flip(0)))
    assert not (original - others).abs().amax(1).lt(1e-6).any(), "the target does not matter"


def check_everything_learns(spec: SequenceSpec, pooling: Any, device: Device = "cpu") -> None:
    """Every parameter gets a gradient in training."""
    pooling.train().zero_grad()
    target, wide, inside = events(device)
    packed(pooling, target, wide, inside).pow(3).sum().backward()
    all_learn(pooling.named_parameters())
    pooling.eval().zero_grad()


def check_bf16(spec: SequenceSpec, pooling: Any, device: Device = "cpu") -> None:
    target, wide, inside = (x.requires_grad_(x.is_floating_point()) for x in events(device))
    close_in_bf16(lambda: packed(pooling, target, wide, inside), [target, wide, *pooling.parameters()])


def _poolings(spec: Spec, device: torch.device) -> Iterator[tuple[Any, ...]]:
    if isinstance(spec, SequenceSpec) and spec.learns:
        for other, pooling in built(with_parts(spec, part_numbers=False), WIDTH, device=device):
            yield other, other, pooling, device


BASE = SequenceSpec
OF_SEQUENCES = (check_padded_reference, check_rows_alone, check_target, check_everything_learns, check_bf16)
CHECKS = of_specs(OF_SEQUENCES, _poolings)
