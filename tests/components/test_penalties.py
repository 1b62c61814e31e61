"""Laws of every penalty: finite and differentiable in any precision, and least where it says that it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from discover import Pair, everything, name
from fullrank.core.spec import Spec
from fullrank.data.batch import Record, Step
from fullrank.models.sequential.attention.hstu import HSTU
from fullrank.models.sequential.encoders.transformer import Transformer
from fullrank.models.sequential.model import Recommender, RecommenderModel
from fullrank.models.sequential.objectives.losses.bce import BCE
from fullrank.models.sequential.objectives.negatives import Negatives
from fullrank.models.sequential.objectives.tasks.last_item import LastItem
from fullrank.models.sequential.reasoning.plr import PLR
from fullrank.models.sequential.regularizers.logdet import LogDet
from tiny import ITEMS, Flat, catalog, histories, padded, plain, reachable, shaken

DIM = 6
ALL = pytest.mark.parametrize("pair", everything("regularizers"), ids=name)
Optimum = Callable[[], tuple[Callable[[Tensor], Step], Tensor]]
"""The step as a function of one tensor, and the value of that tensor at which a penalty is least."""
REASONING = {"task": LastItem(), "reasoner": PLR()}
MODELS: dict[str, dict[str, Spec]] = {
    "dros": {"loss": BCE(negatives=Negatives(count=3, share="row"))},
    "kl_diversity": REASONING,
    "reasoning_contrast": REASONING,
    "progressive": REASONING,
}
"""The parts of a model that a kind cannot do without."""


def model(kind: str = "", *penalties: Any) -> RecommenderModel:
    parts = MODELS.get(kind, {})
    if any(getattr(p, "exact_bound", False) for p in penalties):
        parts = parts | {"encoder": Transformer(attention=HSTU(rel_bias="none"))}
    built = Recommender(dim=DIM, max_length=12, penalties=penalties, **parts).build(catalog())
    shaken(built)
    return built


def searching(step: Step, table: Tensor) -> Step:
    """The step with other item vectors to search."""
    return replace(step, queries=tuple(replace(q, catalogue=Flat(table)) for q in step.queries))


def at_orthonormal_items() -> tuple[Callable[[Tensor], Step], Tensor]:
    """Item vectors whose Gram matrix is the identity."""
    table = torch.linalg.qr(torch.randn(ITEMS, DIM, generator=torch.Generator().manual_seed(0)))[0]
    step = model().step(padded(histories([5, 7])))
    return lambda moved: searching(step, moved), table


def at_zero_scores() -> tuple[Callable[[Tensor], Step], Tensor]:
    """Item vectors that score nothing: the quotient is the square of a norm."""
    step = model().step(padded(histories([5, 7])))
    return lambda moved: searching(step, moved), torch.zeros(ITEMS, DIM)


def at_even_odds() -> tuple[Callable[[Tensor], Step], Tensor]:
    """Where a target and its negative cannot be told apart (the same score), a probability of one half."""
    step = model().step(padded(histories([5, 7])))

    def scored(moved: Tensor) -> Step:
        (q,) = step.queries
        record = Record(moved, positive=moved, negative=moved[:, None], negative_ids=q.targets[:, None])
        return replace(step, records={q.name: record})

    return scored, torch.zeros(len(step.queries[0].targets))


OPTIMA: dict[str, Optimum] = {"logdet": at_orthonormal_items, "resn": at_zero_scores, "dros": at_even_odds}
"""Where each kind is least; a new penalty states its own here."""
BOTTOMLESS = {
    "sprint": "logarithms of norms fall without end as the weights shrink",
    "kl_diversity": "states may differ more and more; what counts is cut where the gradient ends",
    "reasoning_contrast": "cosines among a batch have no common optimum that is known in closed form",
    "progressive": "inner products grow without end",
    "noise_robustness": "it runs the encoder itself, so no one tensor of the step decides its value",
    "mutual_information": "cosines among a batch have no common optimum that is known in closed form",
}
"""Kinds without a least value to name, and why; of these a step against the gradient must lower the value."""


HINGED = {"noise_robustness"}
"""Kinds that are 0, and flat, where what they ask for is reached."""


def check_finite(whole: RecommenderModel, penalty: Any, *, hinged: bool = False) -> None:
    """A scalar, with gradients that are finite and not all zero, in fp32 and under bf16 autocast."""
    for cast in (False, True):
        whole.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=cast):
            value = penalty(whole.step(padded(histories([5, 7, 2]), step=9)))
        assert value.shape == () and value.isfinite() and value.dtype == torch.float32
        value.backward()
        gradients = [p.grad for p in whole.parameters() if p.grad is not None]
        assert gradients and all(g.isfinite().all() for g in gradients)
        assert any(g.any() for g in gradients) or (hinged and value == 0)


def check_optimum(penalty: Any, optimum: Optimum) -> None:
    """The gradient vanishes there, and no small step in a random direction lowers the value."""
    at, best = optimum()
    moved = best.requires_grad_()
    least = penalty(at(moved))
    (gradient,) = torch.autograd.grad(least, moved)
    (scale,) = torch.autograd.grad(penalty(at(_nudged(moved, 0.3, 0))), moved)
    assert gradient.norm() < 1e-3 * scale.norm()
    for seed in range(20):
        for size in (0.02, 0.3):
            assert penalty(at(_nudged(moved, size, seed))) > least


def _nudged(moved: Tensor, size: float, seed: int) -> Tensor:
    way = torch.randn(moved.shape, generator=torch.Generator().manual_seed(seed))
    return moved + size * way / way.norm()


@ALL
def test_finite(pair: Pair) -> None:
    for spec in reachable(plain(pair), 1):
        whole = model(pair[1], spec)
        check_finite(whole, whole.penalties[pair[1]], hinged=pair[1] in HINGED)


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
        whole = model(pair[1], plain(pair))
        check_falls(whole, whole.penalties[pair[1]])
        return
    assert pair[1] in OPTIMA, f"state where {pair[1]!r} is least: add it to OPTIMA in {__file__}"
    check_optimum(plain(pair).build(), OPTIMA[pair[1]])  # type: ignore[attr-defined]


@ALL
def test_weight_is_a_factor(pair: Pair) -> None:
    spec = plain(pair)
    if hasattr(spec, "weight"):
        if pair[1] in BOTTOMLESS:
            whole = model(pair[1], spec)
            whole.eval()  # one that runs the encoder itself is not to draw dropout twice
            step = whole.step(padded(histories([5, 7, 2])))
        else:
            at, best = OPTIMA[pair[1]]()
            step = at(_nudged(best, 0.3, 0))
        heavier = spec.override(f"weight={3 * spec.weight}")
        torch.testing.assert_close(heavier.build()(step), 3 * spec.build()(step))  # type: ignore[attr-defined]


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
