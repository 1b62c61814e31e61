"""Logistic regression: one weight per value of each field, summed.

Source: McMahan et al., KDD 2013, as the linear baseline of click prediction. It cannot
represent any interaction.

    logit = b + sum_f w_f[id_f]
"""

from __future__ import annotations

from typing import Literal

from fullrank.models.ranking import Fields, FieldTokens, Ranker, RankerOutput, RankerSpec


class LR(RankerSpec):
    """Logistic regression on the fields."""

    kind: Literal["lr"] = "lr"

    @property
    def reads(self) -> frozenset[str]:
        return frozenset({"linear"})

    def build(self, fields: Fields, dim: int) -> LRRanker:
        return LRRanker()


class LRRanker(Ranker):
    def forward(self, x: FieldTokens) -> RankerOutput:
        assert x.linear is not None
        return RankerOutput(x.linear)
