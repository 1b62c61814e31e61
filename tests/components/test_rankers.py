"""The checks of `fullrank.testing.rankers` catch planted faults."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from fullrank.models.ranking import RankerOutput
from fullrank.models.ranking.fm import FM, FMRanker
from fullrank.testing.rankers import check_bf16, check_captures, check_everything_learns, check_rows_alone


class Gossip(FMRanker):
    """Planted: each row hears of the others."""

    def forward(self, x):
        out = super().forward(x)
        return RankerOutput(out.logits + out.logits.mean(), out.captures)


class Idle(FMRanker):
    """Planted: a weight that nothing uses."""

    def __init__(self):
        super().__init__()
        self.unused = nn.Parameter(torch.ones(3))


class Hoarder(FMRanker):
    """Planted: keeps outputs that nobody asked for."""

    def forward(self, x):
        return RankerOutput(super().forward(x).logits, {"embedding": x.tokens})


class Overflow(FMRanker):
    """Planted: a constant that bfloat16's rounding turns to nothing and a logarithm to infinity."""

    def forward(self, x):
        out = super().forward(x)
        return RankerOutput(out.logits + ((1.0 + out.logits.bfloat16() * 0 + 1e-4) - 1.0).float().log(), out.captures)


class Turned(FMRanker):
    """Planted: in bf16 products a row's vectors are read as if they were stored the other way round."""

    def forward(self, x):
        turned = x.tokens.mT.reshape(x.tokens.shape)
        return super().forward(replace(x, tokens=turned) if torch.is_autocast_enabled("cpu") else x)


@pytest.mark.parametrize(
    ("fault", "check"),
    [
        (Gossip, check_rows_alone),
        (Idle, check_everything_learns),
        (Hoarder, check_captures),
        (Overflow, check_bf16),
        (Turned, check_bf16),
    ],
)
def test_planted_faults_are_caught(fault, check) -> None:
    check(FM(), FMRanker())
    with pytest.raises(AssertionError):
        check(FM(), fault())
