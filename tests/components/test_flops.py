"""Cost: on shapes as on numbers, by part; what items say is what torch counts; wrong counts and silence are caught."""

import pytest
import torch
from torch import nn

from fullrank.models.ranking.dnn import DNN, Deep
from fullrank.models.sequential.reasoning import Reasoner
from fullrank.ops.model_cost import by_part, counted, forward_flops
from fullrank.testing import rankers
from fullrank.testing.attention import counts_as_said
from parts import GRU, Transformer
from tests.components.cases import every_kind
from tiny import ITEMS, built, catalog, plain, reachable

DIM, ROWS = 12, 3


@every_kind("items")
def test_what_items_say_is_what_torch_counts(pair) -> None:
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


class Branching(nn.Module):
    """Costs half as much on shapes as on numbers."""

    def __init__(self):
        super().__init__()
        self.map = nn.Linear(DIM, DIM)

    def forward(self, x):
        return self.map(x) if x.is_meta else self.map(self.map(x))

    def flops(self, length):
        return forward_flops(self, torch.empty(1, length, DIM, device="meta")) or {}


def test_another_cost_on_shapes_than_on_numbers_is_caught() -> None:
    with pytest.raises(AssertionError, match="cost"):
        counts_as_said(Branching(), (torch.randn(ROWS, 4, DIM),), 4)


class Everything(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 4)) for _ in range(2))
        self.norm, self.unused = nn.LayerNorm(4), nn.Linear(4, 4)
        self.register_buffer("scale", torch.ones(4, 4, dtype=torch.float64))

    def forward(self, x):
        for block in self.blocks:
            x = block(x) @ self.scale
        return self.norm(x)


def test_flops_on_shapes_by_path_and_by_part() -> None:
    x = torch.empty(5, 4, device="meta")
    found = forward_flops(Everything(), x)
    once, own = 2 * 5 * 4 * 3, 2 * 2 * 5 * 4 * 4
    layers = {f"blocks.{b}.{layer}": cost for b in (0, 1) for layer, cost in ((0, once), (1, 0), (2, once))}
    assert found == {"": own, "blocks.0": 0, "blocks.1": 0, "norm": 0, **layers}
    assert by_part(found, {"blocks.*": "block_*", "": "rest"}) == {
        "block_0": 2 * once, "block_1": 2 * once, "rest": own
    }  # fmt: skip
    inner = {"blocks.*": "blocks", "blocks.*.0": "up", "norm": "norm"}
    assert by_part(found, inner) == {"blocks": 2 * once, "up": 2 * once, "norm": 0, "other": own}


def test_what_looks_at_values_is_unknown(caplog) -> None:
    class Looking(nn.Linear):
        def forward(self, x):
            return super().forward(x) * float(x.max())

    assert forward_flops(Looking(4, 4), torch.empty(2, 4, device="meta")) is None
    assert "Looking" in caplog.text
    assert forward_flops(nn.Linear(4, 4), torch.empty(2, 4, device="meta")) == {"": 2 * 2 * 4 * 4}, "hooks are gone"


def test_an_uncounted_attention_leaves_its_parts_unknown() -> None:
    encoder = Transformer(layers=2).build(DIM, 8)
    encoder.blocks[0].attention.uncounted = "its kernel is none that the counter knows"  # type: ignore[union-attr]
    fed = 2 * 2 * 5 * 3 * DIM * 4 * DIM
    assert encoder.flops(5) == {"projections": None, "mixing": None, "feed_forward": fed}


@pytest.mark.parametrize("spec", [Transformer(), GRU(layers=2)], ids=lambda spec: spec.kind)
def test_counting_draws_no_random_numbers(spec) -> None:
    encoder = spec.override("dropout=0.5").build(DIM, 8).train()
    state = torch.get_rng_state()
    found = encoder.flops(7)
    assert torch.equal(torch.get_rng_state(), state) and found == encoder.eval().flops(7)


def test_reasoners_say_that_they_are_not_counted() -> None:
    assert "latent" in Reasoner.uncounted and Reasoner.flops(None, 7) == {"encoder": None}


def test_a_ranker_that_says_half_or_nothing_is_caught() -> None:
    spec = DNN(deep=Deep(hidden=(5,)))
    ranker = spec.build(rankers.FIELDS, rankers.DIM)
    rankers.check_cost(spec, ranker)
    said = ranker.flops(len(rankers.FIELDS), rankers.DIM)
    for wrong in ({**said, "deep": said["deep"] // 2}, {"ranker": None}):
        ranker.flops = lambda fields, dim, wrong=wrong: wrong
        with pytest.raises(AssertionError):
            rankers.check_cost(spec, ranker)
