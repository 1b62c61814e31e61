"""The checks of `fullrank.testing.sequences` catch planted faults."""

import pytest
import torch

from fullrank.models.ranking.sequences.target_attention import ActivationUnit, TargetAttention
from fullrank.testing.sequences import WIDTH, check_padded_reference, check_rows_alone, check_target
from tiny import shaken


class Gossip(ActivationUnit):
    """Planted: each row hears of the others."""

    def forward(self, target, events, rows):
        out = super().forward(target, events, rows)
        return out + out.mean(0)


class Aimless(ActivationUnit):
    """Planted: the target is not looked at."""

    def forward(self, target, events, rows):
        return super().forward(torch.ones_like(target), events, rows)


class Leaky(ActivationUnit):
    """Planted: a reference that counts the padding."""

    def padded(self, target, events, inside):
        return super().padded(target, events, torch.ones_like(inside))


@pytest.mark.parametrize(
    ("fault", "check"), [(Gossip, check_rows_alone), (Aimless, check_target), (Leaky, check_padded_reference)]
)
def test_planted_faults_are_caught(fault, check) -> None:
    spec = TargetAttention()
    check(spec, shaken(ActivationUnit(WIDTH, spec)).eval())
    with pytest.raises(AssertionError):
        check(spec, shaken(fault(WIDTH, spec)).eval())
