"""DNN: a perceptron on all field vectors at once (the deep part of Covington et al., RecSys 2016; BARS calls it DNN).

logit = w . MLP([v_1; ...; v_F]) + b
"""

from __future__ import annotations

from typing import Annotated, Literal

from torch import nn

from fullrank.core.constraints import needs
from fullrank.models.ranking import Fields, FieldTokens, Ranker, RankerOutput, RankerSpec
from fullrank.models.ranking.perceptron import Deep, xavier


class DNN(RankerSpec):
    """Multi-layer perceptron on the concatenated fields."""

    kind: Literal["dnn"] = "dnn"
    deep: Annotated[Deep, needs("deep.hidden", code="no-hidden-layers")] = Deep()
    """Its hidden layers."""

    def build(self, fields: Fields, dim: int) -> DNNRanker:
        return DNNRanker(len(fields) * dim, self)


class DNNRanker(Ranker):
    flop_parts = {"deep": "deep", "": "head"}

    def __init__(self, width: int, spec: DNN):
        super().__init__()
        self.deep = spec.deep.build(width)
        self.head = xavier(nn.Linear(self.deep.out, 1))

    def forward(self, x: FieldTokens) -> RankerOutput:
        return RankerOutput(self.head(self.deep(x.tokens.flatten(1))).squeeze(-1), x.layer_outputs())
