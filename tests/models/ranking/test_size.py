"""What a click model says of its size: the FLOPs that torch counts while it runs, and all of its parameters."""

import pytest
import torch
from torch import nn

from clicks import FIELDS, impressions
from fullrank.models.ranking import Ranker, RankerOutput
from fullrank.models.ranking.dcnv2 import DCNv2
from fullrank.models.ranking.feed_forwards import FeedForward
from fullrank.models.ranking.fm import FM
from fullrank.models.ranking.model import RankingModel, RankingModule
from fullrank.models.ranking.rankelastor import RankElastor
from fullrank.ops.model_cost import counted


def model(ranker, **embedding) -> RankingModule:
    return RankingModel(
        ranker=ranker, embedding={"dim": 4, **embedding} if embedding or ranker.kind_of() != "lr" else {}
    ).build(FIELDS)


def test_by_hand() -> None:
    """Two crosses of 28 x 28, a perceptron 28 -> 5, a head of 33."""
    found = model(DCNv2(crosses=2, deep={"hidden": [5]})).size()
    assert found.flops == {"cross_0": 2 * 28 * 28, "cross_1": 2 * 28 * 28, "deep": 2 * 28 * 5, "head": 2 * 33}
    assert found.total_flops == sum(v or 0 for v in found.flops.values())
    assert found.dense == 2 * (28 * 28 + 28) + 28 * 5 + 5 + 33 + 1
    assert found.embedding == (12 + 7 + 9 + 5) * 4 + 2 * 2 * 4


def test_first_order_weights_are_looked_up_and_the_bias_is_not() -> None:
    found = model(FM()).size()
    assert (found.embedding, found.dense) == ((12 + 7 + 9 + 5) * 5 + 2 * 2 * 5, 1)
    assert found.total_flops == 0


def test_projections_of_other_widths_are_dense() -> None:
    plain, wide = model(DCNv2(), dims=()).size(), model(DCNv2(), dims=(("user", 9),)).size()
    assert wide.dense - plain.dense == 9 * 4 and wide.flops["projections"] == 2 * 9 * 4
    assert wide.embedding - plain.embedding == 12 * (9 - 4)


@pytest.mark.parametrize("dims", [(), (("user", 9), ("item", 3))])
def test_the_whole_model_is_counted(dims) -> None:
    made, rows = model(RankElastor(tokens=4, width=6, blocks=3), dims=dims).eval(), 11
    assert counted(lambda: made.output(impressions(rows))) == rows * (made.size().total_flops or 0)
    assert made.size().dense + made.size().embedding == sum(p.numel() for p in made.parameters())


class Own(Ranker):
    """A ranker of another package that says nothing of its cost."""

    def __init__(self, looks=False):
        super().__init__()
        self.looks, self.up = looks, nn.Linear(4, 5)

    def forward(self, x):
        logits = self.up(x.tokens).sum((1, 2))
        return RankerOutput(logits * logits.max().item() if self.looks else logits)


class Fails(Ranker):
    def forward(self, x):
        raise NotImplementedError


class OwnFeedForward(FeedForward):
    def __init__(self):
        super().__init__()
        self.map = nn.Linear(6, 6)

    def forward(self, x):
        return self.map(x), {}


def test_a_ranker_of_another_package_is_counted() -> None:
    made = model(DCNv2())
    made.ranker = Own()
    assert made.size().flops == {"ranker": 2 * 7 * 4 * 5}
    whole = model(RankElastor(tokens=4, width=6, blocks=1))
    whole.ranker.feed_forwards[0] = OwnFeedForward()  # type: ignore[index,operator]
    assert whole.size().flops["ffn_0"] == 2 * 4 * 6 * 6


@pytest.mark.parametrize("ranker", [Own(looks=True), Fails(), nn.Linear(1, 1)], ids=["looks", "fails", "alien"])
def test_what_cannot_be_counted_is_unknown(ranker) -> None:
    """It looks at values, cannot run, or is no ranker of ours."""
    made = model(DCNv2())
    made.ranker = ranker  # type: ignore[assignment]
    assert made.size().flops == {"ranker": None} and made.size().total_flops is None
    assert made.size().dump()["flops"] is None


def test_counting_leaves_a_model_in_training_as_it_is() -> None:
    """Batch norm and dropout included: weights, running means, mode and random numbers."""
    deep = {"hidden": [5], "batch_norm": True, "dropout": 0.5}
    made = model(DCNv2(crosses=1, deep=deep)).train()
    before, state = {key: value.clone() for key, value in made.state_dict().items()}, torch.get_rng_state()
    assert made.size() == made.eval().size()
    assert made.train().size().flops["deep"] == 2 * 28 * 5 and made.ranker.deep.training  # type: ignore[union-attr]
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[key]) for key, value in made.state_dict().items())


def test_shapes_need_no_memory() -> None:
    with torch.device("meta"):
        shapes = model(RankElastor(tokens=4)).size()
    assert shapes == model(RankElastor(tokens=4)).size()
