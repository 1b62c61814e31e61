"""Cost: what items say is what torch counts, or they say why they do not say; a wrong count and silence are caught."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from discover import Pair, everything, name
from fullrank.models.sequential.reasoning import Reasoner
from fullrank.ops.flop_count import counted
from fullrank.testing.attention import counts_as_said
from tiny import ITEMS, built, catalog, plain, reachable

DIM, ROWS = 12, 3


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
        counts_as_said(layer, (x,), 4)
    layer.flops = lambda length: {"projections": 2 * length * DIM * DIM}  # type: ignore[assignment,misc]
    counts_as_said(layer, (x,), 4)
    layer.flops = lambda length: {"projections": length * DIM * DIM}  # type: ignore[assignment,misc]
    with pytest.raises(AssertionError):
        counts_as_said(layer, (x,), 4)


def test_reasoners_say_that_they_are_not_counted() -> None:
    assert "latent" in Reasoner.uncounted and not hasattr(Reasoner, "flops")
