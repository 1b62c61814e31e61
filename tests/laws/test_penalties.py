"""Laws of every penalty: finite and differentiable in any precision, and least where it says that it is."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from discover import Pair, everything, name
from fullrank.batch import Step
from fullrank.recommender import Recommender, RecommenderModel
from fullrank.regularizers.logdet import LogDet
from tiny import ITEMS, Flat, catalog, histories, padded, plain, reachable, shaken

DIM = 6
ALL = pytest.mark.parametrize("pair", everything("regularizers"), ids=name)
Optimum = Callable[[], tuple[Step, Tensor]]
"""A step at which a penalty is least, and the tensor to move."""


def model(*penalties: Any) -> RecommenderModel:
    built = Recommender(dim=DIM, max_length=12, penalties=penalties).build(catalog())
    shaken(built)
    return built


def at_orthonormal_items() -> tuple[Step, Tensor]:
    """Item vectors whose Gram matrix is the identity."""
    table = torch.linalg.qr(torch.randn(ITEMS, DIM, generator=torch.Generator().manual_seed(0)))[0].requires_grad_()
    step = model().step(padded(histories([5, 7])))
    return replace(step, queries=tuple(replace(q, catalogue=Flat(table)) for q in step.queries)), table


OPTIMA: dict[str, Optimum] = {"logdet": at_orthonormal_items}
"""Where each kind is least; a new penalty states its own here."""
BOTTOMLESS = {"sprint": "logarithms of norms fall without end as the weights shrink"}
"""Kinds without a least value, and why; of these a step against the gradient must lower the value."""


def check_finite(whole: RecommenderModel, penalty: Any) -> None:
    """A scalar, with gradients that are finite and not all zero, in fp32 and under bf16 autocast."""
    for cast in (False, True):
        whole.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=cast):
            value = penalty(whole.step(padded(histories([5, 7, 2]))))
        assert value.shape == () and value.isfinite() and value.dtype == torch.float32
        value.backward()
        gradients = [p.grad for p in whole.parameters() if p.grad is not None]
        assert gradients and all(g.isfinite().all() for g in gradients) and any(g.any() for g in gradients)


def check_optimum(penalty: Any, optimum: Optimum) -> None:
    """The gradient vanishes there, and no small step in a random direction lowers the value."""
    step, moved = optimum()
    least = penalty(step)
    (gradient,) = torch.autograd.grad(least, moved)
    (scale,) = torch.autograd.grad(penalty(_nudged(step, moved, 0.3, 0)), moved)
    assert gradient.norm() < 1e-3 * scale.norm()
    for seed in range(20):
        for size in (0.02, 0.3):
            assert penalty(_nudged(step, moved, size, seed)) > least


def _nudged(step: Step, moved: Tensor, size: float, seed: int) -> Step:
    """The step computed again with the tensor moved, if it is the table that is searched."""
    way = torch.randn(moved.shape, generator=torch.Generator().manual_seed(seed))
    table = Flat(moved + size * way / way.norm())
    return replace(step, queries=tuple(replace(q, catalogue=table) for q in step.queries))


@ALL
def test_finite(pair: Pair) -> None:
    for spec in reachable(plain(pair), 1):
        whole = model(spec)
        check_finite(whole, whole.penalties[pair[1]])


def check_falls(whole: RecommenderModel, penalty: Any) -> None:
    """A small step against the gradient lowers the value (once what it keeps between steps has settled)."""
    batch = padded(histories([5, 7, 2]))
    with torch.no_grad():
        for _ in range(100):
            penalty(whole.step(batch))
    whole.eval()
    before = penalty(whole.step(batch))
    before.backward()
    with torch.no_grad():
        moving = [(p, p.grad) for p in whole.parameters() if p.grad is not None]
        size = 0.05 / torch.stack([g.norm() for _, g in moving]).norm()
        for parameter, gradient in moving:
            parameter -= size * gradient
    assert penalty(whole.step(batch)) < before


@ALL
def test_least_at_its_optimum(pair: Pair) -> None:
    if pair[1] in BOTTOMLESS:
        whole = model(plain(pair))
        check_falls(whole, whole.penalties[pair[1]])
        return
    assert pair[1] in OPTIMA, f"state where {pair[1]!r} is least: add it to OPTIMA in {__file__}"
    check_optimum(plain(pair).build(), OPTIMA[pair[1]])  # type: ignore[attr-defined]


def test_weight_is_a_factor() -> None:
    step, _ = at_orthonormal_items()
    torch.testing.assert_close(LogDet(weight=0.5).build()(step), 500 * LogDet(weight=1e-3).build()(step))


def test_logdet_by_hand() -> None:
    """weight (tr C - log det C): DIM at its optimum; for orthogonal vectors of length s, DIM (s^2 - 2 log s)."""
    step, table = at_orthonormal_items()
    assert abs(LogDet(weight=1).build()(step).item() - DIM) < 1e-4
    doubled = replace(step, queries=tuple(replace(q, catalogue=Flat(2 * table)) for q in step.queries))
    assert abs(LogDet(weight=1).build()(doubled).item() - DIM * (4 - 2 * math.log(2))) < 1e-4


def test_fewer_items_than_dimensions() -> None:
    """The ridge keeps a Gram matrix without full rank finite."""
    step, _ = at_orthonormal_items()
    few = torch.randn(3, DIM).requires_grad_()
    value = LogDet().build()(replace(step, queries=tuple(replace(q, catalogue=Flat(few)) for q in step.queries)))
    value.backward()
    assert value.isfinite() and few.grad is not None and few.grad.isfinite().all()


def test_small_eigenvalues_survive_autocast() -> None:
    step, table = at_orthonormal_items()
    thin = table.detach() * torch.logspace(0, -3, DIM)
    flat = replace(step, queries=tuple(replace(q, catalogue=Flat(thin)) for q in step.queries))
    with torch.autocast("cpu", torch.bfloat16):
        rough = LogDet(weight=1, ridge=1e-9).build()(flat)
    torch.testing.assert_close(rough, LogDet(weight=1, ridge=1e-9).build()(flat))


def test_planted_faults_are_caught() -> None:
    def elsewhere(step: Step) -> Tensor:
        return (step.queries[0].catalogue.all() - 1).pow(2).sum()

    def detached(step: Step) -> Tensor:
        return LogDet().build()(step).detach() + 0 * step.states.tokens.sum()

    with pytest.raises(AssertionError):
        check_optimum(elsewhere, at_orthonormal_items)
    with pytest.raises(AssertionError):
        check_finite(model(), detached)

    def backwards(step: Step) -> Tensor:
        value = LogDet().build()(step)
        return 2 * value.detach() - value

    with pytest.raises(AssertionError):
        check_falls(model(), backwards)
