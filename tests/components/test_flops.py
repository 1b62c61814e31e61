"""Laws of size: what an attention or an encoder says it costs is what torch counts, or it says that it does not say."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from discover import Pair, everything, name
from fullrank.models.sequential.reasoning import Reasoner
from fullrank.ops.flop_count import counted
from tiny import ITEMS, built, catalog, histories, padded, plain, reachable

DIM, ROWS = 12, 3
LENGTHS = (1, 9, 150)
"""The last is more than one block of queries."""


def check_flops(module: Any, run: Any, length: int) -> None:
    """`run` computes `ROWS` rows of a length."""
    if not hasattr(module, "flops"):
        assert len(getattr(module, "uncounted", "")) > 20, "neither flops(length) nor a sentence `uncounted`"
        return
    parts = module.flops(length)
    assert not hasattr(module, "uncounted") and None not in parts.values()
    assert ROWS * sum(parts.values()) == counted(run)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("pair", everything("encoders"), ids=name)
def test_what_is_said_is_what_torch_counts(pair: Pair, length: int) -> None:
    batch, x = padded(histories([length] * ROWS)), torch.randn(ROWS, length, DIM)
    for _, module in built(reachable(plain(pair), 1, numbers=length < 100), DIM, 160):
        with torch.no_grad():
            check_flops(module, lambda module=module: module(x, batch), length)


@pytest.mark.parametrize("pair", everything("items"), ids=name)
def test_what_items_say_is_what_torch_counts(pair: Pair) -> None:
    for _, items in built(reachable(plain(pair), 2, numbers=False), DIM, catalog()):
        if not hasattr(items, "flops"):
            assert len(getattr(items, "uncounted", "")) > 20, "neither flops(count) nor a sentence `uncounted`"
            continue
        assert not hasattr(items, "uncounted")
        with torch.no_grad():
            assert items.flops(7) == counted(lambda items=items: items.embed(torch.arange(7)))
            assert items.flops(ITEMS) == counted(items.all)


def test_a_wrong_count_and_silence_are_caught() -> None:
    layer, x = nn.Linear(DIM, DIM), torch.randn(ROWS, 4, DIM)
    with pytest.raises(AssertionError, match="neither"):
        check_flops(layer, lambda: layer(x), 4)
    layer.flops = lambda length: {"projections": 2 * length * DIM * DIM}  # type: ignore[assignment,misc]
    check_flops(layer, lambda: layer(x), 4)
    layer.flops = lambda length: {"projections": length * DIM * DIM}  # type: ignore[assignment,misc]
    with pytest.raises(AssertionError):
        check_flops(layer, lambda: layer(x), 4)


def test_reasoners_say_that_they_are_not_counted() -> None:
    assert "latent" in Reasoner.uncounted and not hasattr(Reasoner, "flops")
