"""Checks of every penalty: finite and differentiable in any precision, and its weight is a factor.

What a penalty adds to the loss is what it returns and the losses of the queries that it asks for
(`added`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from fullrank.core.device import device_of
from fullrank.core.spec import Spec
from fullrank.models import Step
from fullrank.models.sequential.attention.hstu import HSTU
from fullrank.models.sequential.attention.softmax import Softmax
from fullrank.models.sequential.encoders.seq2seq import Seq2Seq
from fullrank.models.sequential.encoders.transformer import Transformer
from fullrank.models.sequential.items.tpab import TPAB
from fullrank.models.sequential.items.unisrec import UniSRec
from fullrank.models.sequential.model import Recommender, RecommenderModel
from fullrank.models.sequential.objectives.losses.bce import BCE
from fullrank.models.sequential.objectives.negatives import Negatives
from fullrank.models.sequential.objectives.tasks.cloze import Cloze
from fullrank.models.sequential.objectives.tasks.last_item import LastItem
from fullrank.models.sequential.reasoning.plr import PLR
from fullrank.models.sequential.regularizers import PenaltySpec
from fullrank.semantic_ids.vectors.text import TextVectors
from fullrank.testing.inputs import (
    Device,
    catalog,
    histories,
    of_specs,
    padded,
    reachable,
    shaken,
)

DIM = 6


Optimum = Callable[[], tuple[Callable[[Tensor], Step], Tensor]]
"""A step as a function of one tensor, and the tensor at which the penalty is least."""


REASONING = {"task": LastItem(), "reasoner": PLR()}


MODELS: dict[str, dict[str, Spec]] = {
    "dros": {"loss": BCE(negatives=Negatives(count=3, share="row"))},
    "kl_diversity": REASONING,
    "reasoning_alignment": REASONING,
    "reasoning_contrast": REASONING,
    "progressive": REASONING,
    "sequence_contrast": {"items": UniSRec(augmented=TextVectors(word_drop=0.2))},
    "stream_loss": REASONING,
    "s3rec": {"task": Cloze(), "encoder": Transformer(attention=Softmax(causal=False))},
    "tpab": {"items": TPAB(), "loss": BCE(negatives=Negatives(count=3, share="row"))},
}
"""The parts of a model that a kind cannot do without."""


def small_recommender(kind: str = "", *penalties: Any, device: Device = "cpu") -> RecommenderModel:
    """A small recommender with these penalties, and with what the kind cannot do without."""
    parts = MODELS.get(kind, {})
    if any(getattr(p, "exact_bound", False) for p in penalties):
        parts = parts | {"encoder": Transformer(attention=HSTU(rel_bias="none"))}
    if any(getattr(p, "between", False) for p in penalties):
        parts = parts | {"encoder": Seq2Seq(), "task": LastItem()}
    built = Recommender(dim=DIM, max_length=12, penalties=penalties, **parts).build(catalog())
    return shaken(built).to(device)


HINGED = {"noise_robustness", "ewc"}
"""Kinds that are 0, and flat, once what they ask for is reached (`ewc`: at the weights where training begins)."""


def added(penalty: Any, step: Step) -> Tensor:
    """The loss that a penalty adds to a step, the losses of its queries included."""
    term: Tensor = penalty(step)
    if hasattr(penalty, "extra_queries"):
        trained = tuple(q for q in step.queries if q.counted_as is None)
        for q in penalty.extra_queries(trained, step.states):
            term = term + q.weight * step.records[q.name].losses.mean()
    return term


def check_finite(whole: RecommenderModel, penalty: Any, hinged: bool = False) -> None:
    """A scalar whose gradients are finite and not all zero, in fp32 and under bf16."""
    device = device_of(whole)
    for cast in (False, True):
        whole.zero_grad()
        with torch.autocast(device.type, torch.bfloat16, enabled=cast):
            value = added(penalty, whole.step(padded(histories([5, 7, 2]), step=9).to(device)))
        assert value.shape == () and value.isfinite() and value.dtype == torch.float32 and value.requires_grad
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
    (scale,) = torch.autograd.grad(penalty(at(nudged(moved, 0.3, 0))), moved)
    assert gradient.norm() < 1e-3 * scale.norm()
    for seed in range(20):
        for size in (0.02, 0.3):
            assert penalty(at(nudged(moved, size, seed))) > least


def nudged(moved: Tensor, size: float, seed: int) -> Tensor:
    """The tensor after a step of this size in a random direction."""
    way = torch.randn(moved.shape, generator=torch.Generator().manual_seed(seed))
    return moved + size * way / way.norm()


def check_falls(whole: RecommenderModel, penalty: Any) -> None:
    """A small step against the gradient lowers the value, once its memory has settled."""
    batch = padded(histories([5, 7, 2])).to(device_of(whole))
    with torch.no_grad():
        for _ in range(100):
            penalty(whole.step(batch))
    whole.eval()
    torch.manual_seed(0)  # a penalty that draws in a step has to draw the same again
    before = added(penalty, whole.step(batch))
    before.backward()
    with torch.no_grad():
        moving = [(p, p.grad) for p in whole.parameters() if p.grad is not None]
        size = 0.05 / torch.stack([g.norm() for _, g in moving]).norm()
        for parameter, gradient in moving:
            parameter.sub_(size * gradient)
    torch.manual_seed(0)
    assert added(penalty, whole.step(batch)) < before


def check_weight(spec: Spec, device: torch.device) -> None:
    """The setting `weight` is a factor of the value, where the spec has one."""
    if "weight" not in type(spec).model_fields:
        return
    whole = small_recommender(
        spec.kind_of(), spec, device=device
    ).eval()  # a penalty that runs the encoder must not draw dropout twice
    step = whole.step(padded(histories([5, 7, 2])).to(device))
    heavier = spec.override(f"weight={3 * spec.dump()['weight']}")
    assert isinstance(spec, PenaltySpec) and isinstance(heavier, PenaltySpec)
    torch.testing.assert_close(added(heavier.build(), step), 3 * added(spec.build(), step))


def _in_recommenders(spec: Spec, device: torch.device) -> Iterator[tuple[Any, ...]]:
    kind = spec.kind_of()
    for other in reachable(spec, 1):
        whole = small_recommender(kind, other, device=device)
        yield other, whole, whole.penalties[kind], kind in HINGED


BASE = PenaltySpec
CHECKS = (*of_specs((check_finite,), _in_recommenders), check_weight)
