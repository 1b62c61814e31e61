"""The benchmark of reasoning: its check sees steps that forget, its products are the paper's, its steps learn."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.harness import Wrong
from benchmarks.reasoning import PAPER, SHAPES, _stepping, check, fast, flops, model_of, rows_of, slow
from fullrank.data.batch import Batch
from fullrank.models.sequential.model import RecommenderModel


def forgetful(model: RecommenderModel, batch: Batch) -> Tensor:
    """The planted fault: a stream's earlier tokens are not in its cache."""
    reasoner: Any = model.reasoner
    if reasoner is None:
        return fast(model, batch)
    thinking = reasoner.begin(*model.task.inference_inputs(model.items, batch))
    for _ in range(reasoner.steps):
        layers = tuple(kept[:2] for kept in thinking.cache.layers)
        thinking = reasoner.advance(replace(thinking, cache=replace(thinking.cache, layers=layers)))
    return reasoner.answered(thinking)


def test_steps_that_forget_are_noticed() -> None:
    with pytest.raises(Wrong, match="cached steps are not recomputed ones"):
        check(forgetful)


@pytest.mark.parametrize("kind", PAPER)
def test_products_are_within_one_percent_of_table_4(kind: str) -> None:
    assert flops(*SHAPES[kind]) == pytest.approx(PAPER[kind], rel=0.01)


def test_products_by_hand() -> None:
    """Per token and layer: four projections of 256 x 256 and two of 256 x 300; 50 x 50 scores and mixtures."""
    layer = 50 * (4 * 256 * 256 + 2 * 256 * 300) + 2 * 50 * 50 * 256
    assert flops(0, 0, items=0) == 2 * 2 * layer
    assert flops(0, 0, items=7) - flops(0, 0, items=0) == 2 * 7 * 256
    one = 2 * 2 * (4 * 256 * 256 + 2 * 256 * 300 + 2 * 51 * 256)
    assert flops(1, 1) - flops(0, 0) == one and flops(1, 2) - flops(0, 0) == 2 * one + 2 * 2 * 256


def test_the_slow_twin_differs_where_streams_do() -> None:
    model, batch = model_of("plr", 60, dim=16), rows_of(3, 60)
    before = slow(model, batch)
    with torch.no_grad():
        model.reasoner.triggers[1] += torch.arange(16)  # type: ignore[union-attr]
    assert not torch.allclose(before, slow(model, batch))


def test_the_slow_twin_has_the_residual() -> None:
    model, batch = model_of("plr", 60, dim=16), rows_of(3, 60)
    without = fast(model, batch)
    model.reasoner.residual = True  # type: ignore[union-attr]
    assert torch.allclose(fast(model, batch), slow(model, batch), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(fast(model, batch), without, rtol=1e-2)


@pytest.mark.parametrize(("kind", "items"), [("base", None), ("plr", 20), ("plr", None)])
def test_a_timed_step_learns(kind: str, items: int | None) -> None:
    model = model_of(kind, 60, dim=16, kl_items=items)
    before = model.items.all().clone()
    _stepping(model, rows_of(4, 60, 11))()
    assert not torch.equal(before, model.items.all())
    names = set(model(rows_of(4, 60, 11)))
    assert names == ({"last"} if kind == "base" else {"last", "reasoning_contrast", "kl_diversity"})
