"""A step computes each item's vector once, to the same loss and gradients; shares are made once, and anew when due."""

import pytest
import torch

from fullrank.models.sequential.items import CachedItems, ItemIndex, Items, Shares, keep_shares, shares
from fullrank.models.sequential.items.table import ItemTable
from fullrank.models.sequential.items.text import Text, TextItems
from fullrank.models.sequential.objectives.losses.sampled_softmax import SampledSoftmax
from parts import Negatives, model_with
from tiny import ITEMS, catalog, histories, padded, shaken


class Counting(Items):
    """Items that note which ids were asked of them."""

    def __init__(self, items):
        super().__init__()
        self.items, self.size, self.popularity = items, items.size, items.popularity
        self.asked: list[int] = []

    def embed(self, ids):
        self.asked += ids.flatten().tolist()
        return self.items.embed(ids)

    def all(self):
        return self.items.all()


def test_each_item_is_computed_once() -> None:
    table = shaken(ItemTable(4, catalog()))
    counted = Counting(table)
    once = CachedItems(counted)
    for ids in ([[3, 3, 1], [9, 1, 0]], [1], [22, 0, 5], [], [[5], [4]], [9, 9, 9]):
        wanted = torch.tensor(ids, dtype=torch.long)
        assert torch.equal(once.embed(wanted), table.embed(wanted))
    assert sorted(counted.asked) == [0, 1, 3, 4, 5, 9, 22]
    assert torch.equal(once.all(), table.all())


@pytest.mark.parametrize("share", ["query", "row", "batch"])
def test_a_step_is_the_same_with_and_without(share, monkeypatch) -> None:
    loss = SampledSoftmax(negatives=Negatives(count=9, uniform=0, popularity=1, share=share))
    model = model_with(items=Text(), loss=loss).eval()
    batch = padded(histories([5, 3, 7]))
    found = []
    asked = []
    own = TextItems.embed

    def noted(items, ids):
        asked.extend(ids.flatten().tolist())
        return own(items, ids)

    monkeypatch.setattr(TextItems, "embed", noted)
    for once in (True, False):
        monkeypatch.setattr(TextItems, "computed", once)
        model.zero_grad()
        terms = model(batch)
        sum(terms.values()).backward()
        found.append((terms["ahead_1"].item(), [p.grad.clone() for p in model.parameters()]))
        if once:
            assert len(asked) == len(set(asked)), "an item was computed twice"
    assert len(asked) > 2 * len(set(asked))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-5)
    for a, b in zip(found[0][1], found[1][1], strict=True):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-5)


def test_shares_follow_their_counts() -> None:
    items = ItemTable(4, catalog())
    counts = items.popularity
    first = shares(counts)
    assert shares(counts) is first
    snapshot = ItemIndex(items, normalise=False)
    running = snapshot.log_q(torch.arange(ITEMS)).double().exp().cumsum(0)
    assert torch.allclose(snapshot.cumulative(), running / running[-1])
    assert snapshot.cumulative() is ItemIndex(items, normalise=True).cumulative()
    items.load_state_dict(items.state_dict() | {"popularity": torch.arange(1.0, ITEMS + 1)})
    assert shares(counts) is not first
    assert snapshot.cumulative()[0] == pytest.approx(2 / (ITEMS * (ITEMS + 1)))
    given = Shares(counts, cumulative=torch.ones(ITEMS, dtype=torch.double))
    keep_shares(counts, given)
    assert (snapshot.cumulative() == 1).all()


def test_shares_under_inference_mode_are_not_kept() -> None:
    with torch.inference_mode():
        counts = torch.ones(3)
        assert shares(counts) is not shares(counts)
