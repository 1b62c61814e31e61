"""DNN: a perceptron on all field vectors at once (the deep part of Covington et al., RecSys 2016; BARS calls it DNN).

    logit = w . MLP([v_1; ...; v_F]) + b

The perceptron itself, its settings and layers, is what most rankers have beside
their own idea (`Deep`).
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from fullrank.core.constraints import DropoutRate, Widths, needs, only_with
from fullrank.core.spec import Spec, later
from fullrank.models.ranking import Fields, FieldTokens, Ranker, RankerOutput, RankerSpec
from fullrank.ops.dropout import Dropout
from fullrank.ops.ranking_layers import norm_relu_dropout

Activation = Literal["relu", "prelu", "dice"]


class Deep(Spec):
    """Hidden layers: Linear, batch norm if asked for, activation, dropout."""

    hidden: Widths = (400, 400, 400)
    """Widths of the hidden layers; empty leaves the perceptron out."""
    dropout: Annotated[DropoutRate, only_with("hidden")] = 0.0
    """Share of hidden units dropped in training."""
    batch_norm: Annotated[bool, only_with("hidden")] = False
    """Normalise each hidden unit over the batch, before its activation."""
    activation: Annotated[Activation, only_with("hidden")] = later("relu")
    """ReLU; PReLU, one learned slope for negative inputs of each unit; or Dice, PReLU whose step lies at the batch's
    mean."""

    def build(self, width: int) -> Perceptron:
        return Perceptron(width, self)


class Perceptron(nn.Module):
    """[B, width] -> [B, `out`], the last hidden layer (the input where there is none)."""

    def __init__(self, width: int, spec: Deep):
        super().__init__()
        self.layers = nn.Sequential()
        for hidden in spec.hidden:
            self.layers.append(xavier(nn.Linear(width, hidden)))
            if spec.batch_norm:
                self.layers.append(nn.BatchNorm1d(hidden))
            self.layers.append(activation(spec.activation, hidden))
            if spec.dropout:
                self.layers.append(Dropout(spec.dropout))
            width = hidden
        self.out, self.dropout = width, spec.dropout
        self.in_one_step = spec.batch_norm and spec.activation == "relu"

    def forward(self, x: Float[Tensor, "B W"]) -> Float[Tensor, "B H"]:
        if not (self.training and self.in_one_step):
            out: Tensor = self.layers(x)
            return out
        # norm, ReLU and dropout are one operation, so the layers of the last two are passed over
        for layer in self.layers:
            if isinstance(layer, nn.Linear):
                x = layer(x)
            elif isinstance(layer, nn.BatchNorm1d):
                x = norm_relu_dropout(x, layer, self.dropout)
        return x


class Dice(nn.Module):
    """Data-adaptive activation (DIN, arXiv:1706.06978, Eq. 3): p x + (1 - p) alpha x, p = sigmoid((x - mean) / std).

    Mean and deviation of each unit are the batch's in training and their moving averages (momentum
    0.1) else; a batch of one row has no deviation and takes the averages too. alpha begins at 0, as
    in FuxiCTR. The numbers are tiny where embeddings begin at 1e-4, so the term that keeps the
    deviation from 0 is FuxiCTR's 1e-9 (the paper: 1e-8).
    """

    mean: Tensor
    variance: Tensor

    def __init__(self, width: int):
        super().__init__()
        self.alpha = nn.Parameter(torch.zeros(width))
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("variance", torch.ones(width))

    def forward(self, x: Float[Tensor, "B H"]) -> Float[Tensor, "B H"]:
        of_batch = self.training and len(x) > 1
        p = torch.sigmoid(F.batch_norm(x, self.mean, self.variance, training=of_batch, momentum=0.1, eps=1e-9))
        return p * x + (1 - p) * self.alpha * x


def activation(name: Activation, width: int) -> nn.Module:
    """The activation of a hidden layer of so many units."""
    if name == "relu":
        return nn.ReLU(inplace=True)
    return Dice(width) if name == "dice" else nn.PReLU(width)


def xavier(linear: nn.Linear) -> nn.Linear:
    """Starting values of all linear layers of rankers (FuxiCTR): Xavier-normal weights, zero biases."""
    nn.init.xavier_normal_(linear.weight)
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)
    return linear


class DNN(RankerSpec):
    """Multi-layer perceptron on the concatenated fields."""

    kind: Literal["dnn"] = "dnn"
    deep: Annotated[Deep, needs("deep.hidden", code="no-hidden-layers")] = Deep()
    """The perceptron."""

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
