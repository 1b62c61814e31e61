"""Factorization machine: the linear part plus the inner product of every pair of fields (Rendle, ICDM 2010, Eq. 1).

logit = b + sum_f w_f + sum_{f<g} <v_f, v_g>,  the pairs as 1/2 (|sum_f v_f|^2 - sum_f |v_f|^2)      (Lemma 3.1)
"""

from __future__ import annotations

from typing import Literal

from jaxtyping import Float
from torch import Tensor

from fullrank.models.ranking import Fields, FieldTokens, Ranker, RankerOutput, RankerSpec, require_fields_to_cross


class FM(RankerSpec):
    """Second-order factorization machine."""

    kind: Literal["fm"] = "fm"

    @property
    def reads(self) -> frozenset[str]:
        return frozenset({"tokens", "linear"})

    def build(self, fields: Fields, dim: int) -> FMRanker:
        require_fields_to_cross(fields, "fm")
        return FMRanker()


class FMRanker(Ranker):
    def forward(self, x: FieldTokens) -> RankerOutput:
        assert x.linear is not None
        return RankerOutput(x.linear + pairs(x.tokens), x.layer_outputs())


def pairs(tokens: Float[Tensor, "B F E"]) -> Float[Tensor, "B"]:
    """The sum of the inner products of all pairs of tokens, in time linear in F."""
    return (tokens.sum(1).square() - tokens.square().sum(1)).sum(-1) / 2


def pairs_reference(tokens: Float[Tensor, "B F E"]) -> Float[Tensor, "B"]:
    """`pairs`, one pair after the other."""
    total = tokens.new_zeros(len(tokens))
    for f in range(tokens.shape[1]):
        for g in range(f):
            total = total + (tokens[:, f] * tokens[:, g]).sum(-1)
    return total
