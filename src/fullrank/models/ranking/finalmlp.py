"""FinalMLP: two perceptrons on differently gated fields, fused by a bilinear form (Mao et al., AAAI 2023).

    x_k = MLP_k(g_k * [v_1; ...; v_F]),  g_k = 2 sigmoid(MLP(c_k)),  k = 1, 2           (stream-specific selection)
    logit = b + w_1 . x_1 + w_2 . x_2 + sum_h x_{1,h}^T W_h x_{2,h}                       (stream-level aggregation)

arXiv:2304.00902. c_k holds vectors of a few fields (those of the user for one gate, those of the
item for the other), or one learned vector where no field is named. x_{k,h} is part h of x_k cut
into `heads` parts; without gates the two perceptrons read the same and the model is the paper's
DualMLP with the bilinear fusion.

The fields of c_k have tables of their own, beside those of v, as in the authors' code (FuxiCTR);
the paper leaves it open. Differs: the learned vector starts at random. From zeros, with zero biases
behind it, every ReLU stands at its kink, where no gradient passes, so that in FuxiCTR only the last
bias of such a gate ever learns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from jaxtyping import Float
from pydantic import model_validator
from torch import Tensor, nn

from fullrank.core.checks import divided
from fullrank.core.constraints import Names, Parts, Widths, needs, once, only_with
from fullrank.models.ranking import Fields, FieldTokens, Ranker, RankerOutput, RankerSpec
from fullrank.models.ranking.dnn import Deep, xavier

STD = 0.01
"""Standard deviation of the starting values of a gate's learned vector."""


class FinalMLP(RankerSpec):
    """Two perceptrons with feature selection and bilinear fusion."""

    kind: Literal["finalmlp"] = "finalmlp"
    first: Annotated[Deep, needs("first.hidden", code="no-hidden-layers")] = Deep()
    """The first perceptron."""
    second: Annotated[Deep, needs("second.hidden", code="no-hidden-layers")] = Deep()
    """The second perceptron."""
    heads: Parts = 10
    """Parts that both outputs are cut into for the fusion; both last widths must divide by them."""
    gates: bool = True
    """Feature selection: each perceptron reads the fields through a gate of its own."""
    gate_hidden: Annotated[Widths, only_with("gates")] = (64,)
    """Hidden widths of the networks that compute the gates."""
    first_context: Annotated[Names, only_with("gates"), once("field")] = ()
    """Fields that the first gate is computed from, by tables of their own; none: one learned vector."""
    second_context: Annotated[Names, only_with("gates"), once("field")] = ()
    """Fields that the second gate is computed from."""

    @model_validator(mode="after")
    def _fits(self) -> FinalMLP:
        for name, part in (("first", self.first), ("second", self.second)):
            divided(part.hidden[-1], self.heads, f"{name}.hidden: its last width", "heads")
        return self

    @property
    def contexts(self) -> tuple[tuple[str, ...], ...]:
        return (self.first_context, self.second_context) if self.gates else ()

    def build(self, fields: Fields, dim: int) -> FinalMLPRanker:
        return FinalMLPRanker(len(fields) * dim, dim, self)


class FinalMLPRanker(Ranker):
    flop_parts = {"gates.*": "gate_*", "first": "first", "second": "second", "": "fusion"}

    def __init__(self, width: int, dim: int, spec: FinalMLP):
        super().__init__()
        self.context_fields = tuple(len(names) for names in spec.contexts)
        self.gates = nn.ModuleList(
            Gate(fields, dim, spec.gate_hidden, width) for fields in self.context_fields
        )  # none: both perceptrons read the fields as they are
        self.first, self.second = spec.first.build(width), spec.second.build(width)
        self.fusion = Bilinear(self.first.out, self.second.out, spec.heads)

    def forward(self, x: FieldTokens) -> RankerOutput:
        outputs, flat = x.layer_outputs(), x.tokens.flatten(1)
        selected = [flat, flat]
        if len(self.gates):
            selected = [flat * gate(context) for gate, context in zip(self.gates, x.contexts, strict=True)]
            for number, fields in enumerate(selected):
                outputs(f"selected_{number}", fields.view(x.tokens.shape))
        return RankerOutput(self.fusion(self.first(selected[0]), self.second(selected[1])), outputs)


class Gate(nn.Module):
    """2 sigmoid(MLP(c)): a factor between 0 and 2 for every number of every field."""

    def __init__(self, fields: int, dim: int, hidden: Sequence[int], width: int):
        super().__init__()
        self.learned = None if fields else nn.Parameter(torch.randn(dim) * STD)
        self.layers, inner = nn.Sequential(), dim * max(1, fields)
        for outer in hidden:
            self.layers.extend([xavier(nn.Linear(inner, outer)), nn.ReLU(inplace=True)])
            inner = outer
        self.layers.append(xavier(nn.Linear(inner, width)))

    def forward(self, context: Float[Tensor, "B C E"]) -> Tensor:
        """[B, W], or [W] of the learned vector: the same for all impressions, so it
        is computed once for a batch."""
        if self.learned is None:
            return 2 * torch.sigmoid(self.layers(context.flatten(1)))
        x: Tensor = self.learned
        for layer in self.layers:
            # a matrix times a vector, which torch does not count: FLOPs are of one impression,
            # and this is of a batch
            x = layer.weight @ x + layer.bias if isinstance(layer, nn.Linear) else layer(x)
        return 2 * torch.sigmoid(x)


class Bilinear(nn.Module):
    """The fusion of the two perceptrons to a logit."""

    def __init__(self, first: int, second: int, heads: int):
        super().__init__()
        self.first = xavier(nn.Linear(first, 1))
        self.second = xavier(nn.Linear(second, 1, bias=False))
        # Xavier's fans are those of one output of all products x_{1,i} x_{2,j}, as in FuxiCTR: the
        # fans of each W_h alone would start the logits several times as large
        self.weight = nn.Parameter(torch.empty(heads, first // heads, second // heads))
        nn.init.xavier_normal_(self.weight.data.view(-1, 1))

    def forward(self, x: Float[Tensor, "B P"], y: Float[Tensor, "B Q"]) -> Float[Tensor, "B"]:
        return self.first(x).squeeze(-1) + bilinear(x, y, self.weight, self.second.weight[0])


def bilinear(
    x: Float[Tensor, "B P"], y: Float[Tensor, "B Q"], weight: Float[Tensor, "H R S"], linear: Float[Tensor, "Q"]
) -> Float[Tensor, "B"]:
    """linear . y + sum_h x_h^T W_h y_h, as (x_h^T W_h + linear_h) . y_h: the linear part begins the product."""
    heads = len(weight)
    left, right = (side.unflatten(1, (heads, -1)).transpose(0, 1) for side in (x, y))
    return (torch.baddbmm(linear.view(heads, 1, -1), left, weight) * right).sum((0, 2))


def bilinear_reference(
    x: Float[Tensor, "B P"], y: Float[Tensor, "B Q"], weight: Float[Tensor, "H R S"], linear: Float[Tensor, "Q"]
) -> Float[Tensor, "B"]:
    """`bilinear`, product by product."""
    heads, rows, columns = weight.shape
    out = y @ linear
    for h in range(heads):
        for i in range(rows):
            for j in range(columns):
                out = out + weight[h, i, j] * x[:, h * rows + i] * y[:, h * columns + j]
    return out
