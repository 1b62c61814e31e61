"""DCN V2: explicit crosses of bounded degree, learned matrix by matrix (Wang et al., WWW 2021, arXiv:2008.13535).

    x_{l+1} = x_0 * (W_l x_l + b_l) + x_l                                                              (Eq. 1)
    x_{l+1} = sum_i G_i(x_l) x_0 * (U_i g(C_i g(V_i^T x_l)) + b_l) + x_l                         (Eqs. 4 to 7)

x_0 is all field vectors in a row and * the element-wise product; the second form is the low-rank
mixture of experts, with g = tanh and G a softmax. `parallel` puts the perceptron beside the
crosses, `stacked` behind them (Sec. 3.4).

Differs: G_i(x) is a linear gate with a softmax, as in the authors' code; the paper leaves it open.
The bias is added once to the mixture.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from fullrank.core.constraints import Parts, Width, only_with
from fullrank.models.ranking import Fields, FieldTokens, Ranker, RankerOutput, RankerSpec
from fullrank.models.ranking.dnn import Deep, xavier
from fullrank.ops.ranking_layers import cross


class DCNv2(RankerSpec):
    """Deep and cross network, second version."""

    kind: Literal["dcnv2"] = "dcnv2"
    crosses: Parts = 3
    """Cross layers: interactions of up to `crosses` + 1 fields."""
    rank: Width | None = None
    """Rank of each expert's matrix; null takes one full matrix."""
    experts: Annotated[Parts | None, only_with("rank")] = None
    """Low-rank experts per layer (needs `rank`, which takes 4 where this is null)."""
    structure: Annotated[Literal["parallel", "stacked"], only_with("deep.hidden")] = "parallel"
    """The perceptron reads the field vectors, beside the crosses, or what the crosses made of them."""
    deep: Deep = Deep()
    """The perceptron; without hidden layers there are crosses alone."""

    def build(self, fields: Fields, dim: int) -> DCNv2Ranker:
        return DCNv2Ranker(len(fields) * dim, self)


class DCNv2Ranker(Ranker):
    flop_parts = {"crosses.*": "cross_*", "deep": "deep", "": "head"}

    def __init__(self, width: int, spec: DCNv2):
        super().__init__()
        self.stacked = spec.structure == "stacked"
        if spec.rank is None:
            layers: list[nn.Module] = [Cross(width) for _ in range(spec.crosses)]
        else:
            layers = [LowRankCross(width, spec.rank, spec.experts or 4) for _ in range(spec.crosses)]
        self.crosses = nn.ModuleList(layers)
        self.deep = spec.deep.build(width) if spec.deep.hidden else None
        deep = 0 if self.deep is None else self.deep.out
        self.head = xavier(nn.Linear(deep if self.stacked else width + deep, 1))

    def forward(self, x: FieldTokens) -> RankerOutput:
        outputs = x.layer_outputs()
        first = crossed = x.tokens.flatten(1)
        for number, layer in enumerate(self.crosses):
            crossed = layer(first, crossed)
            outputs(f"cross_{number}", crossed.view(x.tokens.shape))
        if self.deep is None or self.stacked:
            logits = self.head(crossed if self.deep is None else self.deep(crossed))
        else:  # the head reads both sides, one behind the other, without a copy that joins them
            sides = self.head.weight.split([crossed.shape[1], self.deep.out], 1)
            logits = F.linear(crossed, sides[0], self.head.bias) + F.linear(self.deep(first), sides[1])
        return RankerOutput(logits.squeeze(-1), outputs)


class Cross(nn.Module):
    """A cross layer with a full matrix (Eq. 1)."""

    def __init__(self, width: int):
        super().__init__()
        self.linear = xavier(nn.Linear(width, width))

    def forward(self, first: Float[Tensor, "B W"], x: Float[Tensor, "B W"]) -> Float[Tensor, "B W"]:
        return cross(first, x, self.linear.weight, self.linear.bias)


class LowRankCross(nn.Module):
    """A cross layer as a mixture of low-rank experts (Eqs. 4 to 7)."""

    def __init__(self, width: int, rank: int, experts: int):
        super().__init__()
        self.down = nn.Parameter(torch.empty(experts, width, rank))
        self.core = nn.Parameter(torch.empty(experts, rank, rank))
        self.up = nn.Parameter(torch.empty(experts, rank, width))
        self.bias = nn.Parameter(torch.zeros(width))
        # a single expert has the gate 1
        self.gate = xavier(nn.Linear(width, experts)) if experts > 1 else None
        for stack in (self.down, self.core, self.up):
            for matrix in stack:  # Xavier's fans are those of one expert, not of the stack
                nn.init.xavier_normal_(matrix)

    def forward(self, first: Float[Tensor, "B W"], x: Float[Tensor, "B W"]) -> Float[Tensor, "B W"]:
        inner = torch.tanh(torch.einsum("bw,ewr->ber", x, self.down))
        inner = torch.tanh(torch.einsum("ber,ers->bes", inner, self.core))
        if self.gate is not None:
            # gated before the widest product, which is linear
            inner = inner * self.gate(x).softmax(-1)[..., None]
        return torch.addcmul(x, first, torch.einsum("ber,erw->bw", inner, self.up) + self.bias)
