"""Checks of every loss: one number per query, true gradients, never the full scores."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fullrank.core.spec import Spec
from fullrank.data.batch import Batch
from fullrank.models import Queries
from fullrank.models.sequential.objectives.losses import Loss, LossSpec
from fullrank.models.sequential.objectives.negatives import Negatives
from fullrank.testing.inputs import (
    Device,
    Flat,
    close,
    histories,
    of_specs,
    padded,
    questions,
    reachable,
)

LENGTHS = (2, 7, 3, 12, 5)


MIXTURES: tuple[dict[str, Any], ...] = (
    {},
    {"uniform": 0, "popularity": 1},
    {"in_batch": 1},
    {"uniform": 1, "popularity": 2, "in_batch": 0.5},
)


def near(base: Spec, *, few: bool = False) -> list[Spec]:
    """Every setting one change away from the defaults; every way to draw negatives."""
    specs = [base] if few else reachable(base, 1)
    if "negatives" in type(base).model_fields:
        ways = [
            Negatives(count=4, share=share, exclude=exclude, **mixture)
            for share in ("query", "row", "batch")
            for exclude in ("none", "target", "history")
            for mixture in MIXTURES
        ]
        specs += [base.model_copy(update={"negatives": way}) for way in (ways[::7] if few else ways)]
    return specs


def few_queries(device: Device = "cpu") -> tuple[Queries, Batch]:
    """Queries of some histories, and their batch."""
    batch = padded(histories(LENGTHS), extra=2)
    return questions(batch, device=device), batch.to(device)


def couples(spec: Spec, loss: Any) -> bool:
    """Does a query's loss depend on the other queries, as spec and loss say?"""
    negatives = getattr(spec, "negatives", None)
    return loss.couples or (negatives is not None and negatives.in_batch > 0)


def check_record(spec: Spec, loss: Any, device: Device = "cpu") -> None:
    q, batch = few_queries(device)
    record = loss(q, batch)
    assert record.losses.shape == q.targets.shape and record.losses.dtype == torch.float32
    assert record.losses.isfinite().all() and (record.losses >= -1e-6).all()
    table = q.table.all()
    if record.positive is not None:
        assert close(record.positive, (q.vectors * table[q.targets]).sum(-1) / q.temperature)
    if record.negative is not None:
        scores = torch.einsum("md,mnd->mn", q.vectors, table[record.negative_ids]) / q.temperature
        assert close(record.negative, scores)
    assert loss.sampled == (record.negative is not None), "`sampled` says whether there are negatives"
    if record.negative is not None:
        (slopes,) = torch.autograd.grad(record.losses.sum(), record.negative, retain_graph=True)
        counted = torch.ones_like(slopes, dtype=torch.bool) if record.kept is None else record.kept
        assert torch.equal(slopes != 0, counted), "`kept` names the negatives that count"


def check_gradient(spec: Spec, loss: Any, device: Device = "cpu") -> None:
    """Against central differences, with an upstream gradient of its own for each query."""
    q, batch = few_queries(device)
    weights = torch.linspace(0.5, 2, len(q.targets), device=device)
    total = (loss(q, batch).losses * weights).sum()
    leaves = (q.vectors, q.table.all())
    gradients = torch.autograd.grad(total, leaves)
    generator = torch.Generator().manual_seed(2)
    for leaf, gradient in zip(leaves, gradients, strict=True):
        assert gradient.isfinite().all() and gradient.any()
        way = torch.randn(leaf.shape, generator=generator).to(device)
        with torch.no_grad():
            ends = []
            for sign in (1, -1):
                leaf += sign * 1e-2 * way
                ends.append(float((loss(q, batch).losses * weights).sum().double()))
                leaf -= sign * 1e-2 * way
        slope = (ends[0] - ends[1]) / 2e-2
        assert abs(float((gradient * way).sum()) - slope) < 0.01 * abs(slope) + 0.02


def check_temperature(spec: Spec, loss: Any, device: Device = "cpu") -> None:
    q, batch = few_queries(device)
    sharp = loss(replace(q, temperature=0.25), batch).losses
    assert close(sharp, loss(replace(q, vectors=q.vectors / 0.25), batch).losses)
    assert not close(sharp, loss(q, batch).losses)


def check_place(spec: Spec, loss: Any, device: Device = "cpu") -> None:
    """A query's loss depends neither on the other rows nor on order or padding."""
    if couples(spec, loss):
        return
    rows = histories(LENGTHS)
    q, batch = few_queries(device)
    whole = loss(q, batch).losses
    for mine in ([3], [4, 1], [0, 2, 3]):
        part = padded([rows[i] for i in mine], ids=[100 + i for i in mine])
        among = torch.cat([(q.rows == i).nonzero()[:, 0] for i in mine])
        assert close(loss(questions(part, device=device), part.to(device)).losses, whole[among]), (
            "the loss depends on the company"
        )


def check_step(spec: Spec, loss: Any, device: Device = "cpu") -> None:
    """The same place draws the same negatives, another step or seed draws others."""
    q, batch = few_queries(device)
    torch.manual_seed(1)
    first = loss(q, batch)
    torch.manual_seed(2)
    assert torch.equal(first.losses, loss(q, batch).losses)
    if first.negative_ids is not None:
        for other in (replace(batch, step=1), replace(batch, seed=4)):
            assert not torch.equal(loss(q, other).negative_ids, first.negative_ids)


def check_empty(spec: Spec, loss: Any, device: Device = "cpu") -> None:
    """No queries (a horizon that no row reaches) give no losses, and gradients that are zero."""
    q, batch = few_queries(device)
    none = torch.zeros(0, dtype=torch.long, device=device)
    empty = replace(q, vectors=q.vectors[:0], targets=none, rows=none, positions=none)
    record = loss(empty, batch)
    assert record.losses.shape == (0,)
    table = q.table.all()
    (gradient,) = torch.autograd.grad(record.losses.sum() + 0 * table.sum(), table)
    assert not gradient.any()


def check_autocast(spec: Spec, loss: Any, device: Device = "cpu") -> None:
    """On small whole numbers, of which bf16 holds every product: nothing but gradients is rounded to bf16.

    A loss is that of fp32 then, to the roundings of fp32. Gradients are products of weights that
    bf16 rounds: what is read and what is given is off by 2^-9 each at most, so a gradient by
    2^-7 of its length, cancellation included. The mean of all items, which label smoothing
    reads, is no whole number.
    """
    queries, batch = few_queries(device)
    vectors, items = (x.detach().round().requires_grad_() for x in (queries.vectors, queries.table.all()))
    table = Flat(items, queries.table.log_q(torch.arange(len(items), device=device)).exp())
    upstream = torch.linspace(0.5, 2, len(vectors), device=device)
    smooth = getattr(spec, "label_smoothing", 0.0) * float((vectors.abs() @ items.mean(0).abs()).max().detach())
    for temperature in (1.0, 2**-4):  # a sum of exponentials that is not shifted overflows at the second
        runs = []
        for half in (False, True):
            with torch.autocast(torch.device(device).type, torch.bfloat16, enabled=half):
                read = vectors.bfloat16() if half else vectors
                q = replace(queries, vectors=read, table=table, temperature=temperature)
                losses = loss(q, batch).losses
            assert losses.dtype == torch.float32
            runs.append((losses, *torch.autograd.grad((losses * upstream).sum(), (vectors, items))))
        (exact, *wanted), (rough, *gradients) = runs
        error, length = (float(x.detach().abs().max()) for x in (rough - exact, exact))
        assert error <= 2e-5 * length + 2**-7 * smooth / temperature, f"a loss is off by {error:.2g}"
        for x, y in zip(gradients, wanted, strict=True):
            assert float((x - y).norm()) <= 2**-7 * float(y.norm()), "a gradient is off by more than bf16 rounds it"


class Largest(TorchDispatchMode):
    """The largest tensor that any operation returns, in elements."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for value in result if isinstance(result, tuple | list) else (result,):
            if isinstance(value, Tensor):
                self.elements = max(self.elements, value.numel())
        return result


def _built(spec: Spec, **settings: Any) -> Loss:
    other = spec.model_copy(update=settings)
    assert isinstance(other, LossSpec)
    return other.build()


def check_memory(spec: Spec, loss: Any, device: Device = "cpu") -> None:
    """The scores of all queries against all items never exist at once, forward or backward."""
    if hasattr(spec, "chunk_elements"):
        loss = _built(spec, chunk_elements=20_000)
    if hasattr(spec, "negatives"):
        fewer = spec.negatives.model_copy(update={"count": min(4, spec.negatives.count)})
        loss = _built(spec, negatives=fewer)
    batch = padded(histories([15] * 20, 1000))
    q = questions(batch, items=1000, device=device)
    batch = batch.to(device)
    with Largest() as seen:
        loss(q, batch).losses.sum().backward()
    assert seen.elements < len(q.targets) * 1000 / 4


def _losses(spec: Spec, device: torch.device, *, few: bool = False) -> Iterator[tuple[Any, ...]]:
    for other in near(spec, few=few):
        yield other, other, _built(other), device


BASE = LossSpec
OF_LOSSES = (check_record, check_temperature, check_place, check_step, check_empty, check_autocast)
COSTLY = (check_gradient, check_memory)
CHECKS = (*of_specs(OF_LOSSES, _losses), *of_specs(COSTLY, partial(_losses, few=True)))
