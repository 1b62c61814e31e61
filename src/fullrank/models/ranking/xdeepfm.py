"""xDeepFM: explicit interactions of whole field vectors, a degree per layer (Lian et al., KDD 2018, arXiv:1803.05170).

    X^k_h = sum_{i,j} W^{k,h}_{ij} (X^{k-1}_i * X^0_j)          compressed interaction network (CIN, Eq. 6)
    logit = linear + w . [sum_d X^1; X^2; ...] + MLP([v_1; ...; v_F])

Differs: the CIN's layers are linear and none is split in halves, as in FuxiCTR (the paper
found the identity best).
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from fullrank.core.constraints import MOST_PARTS, Width
from fullrank.models.ranking import Fields, FieldTokens, Ranker, RankerOutput, RankerSpec, require_fields_to_cross
from fullrank.models.ranking.dnn import Deep, xavier


class XDeepFM(RankerSpec):
    """Compressed interaction network, perceptron and linear part."""

    kind: Literal["xdeepfm"] = "xdeepfm"
    cin: tuple[Width, ...] = Field((16, 16), min_length=1, max_length=MOST_PARTS)
    """Feature maps of each CIN layer."""
    deep: Deep = Deep()
    """The perceptron beside it."""

    @property
    def reads(self) -> frozenset[str]:
        return frozenset({"tokens", "linear"})

    def build(self, fields: Fields, dim: int) -> XDeepFMRanker:
        require_fields_to_cross(fields, "xdeepfm")
        return XDeepFMRanker(len(fields), dim, self)


class XDeepFMRanker(Ranker):
    flop_parts = {"cin.*": "cin_*", "deep": "deep", "": "head"}

    def __init__(self, fields: int, dim: int, spec: XDeepFM):
        super().__init__()
        self.dim = dim
        maps = (fields, *spec.cin)
        self.cin = nn.ModuleList(
            CINLayer(fields * before, after) for before, after in zip(maps[:-1], maps[1:], strict=True)
        )
        self.pooled = xavier(nn.Linear(sum(spec.cin), 1))
        self.deep = spec.deep.build(fields * dim) if spec.deep.hidden else None
        self.head = xavier(nn.Linear(self.deep.out, 1, bias=False)) if self.deep is not None else None

    def forward(self, x: FieldTokens) -> RankerOutput:
        assert x.linear is not None
        outputs, sums, maps = x.layer_outputs(), [], x.tokens
        for number, layer in enumerate(self.cin):
            maps = layer(x.tokens, maps)
            outputs(f"cin_{number}", maps)
            sums.append(maps.sum(-1))
        logits = x.linear + self.pooled(torch.cat(sums, -1)).squeeze(-1)
        if self.deep is not None and self.head is not None:
            logits = logits + self.head(self.deep(x.tokens.flatten(1))).squeeze(-1)
        return RankerOutput(logits, outputs)


class CINLayer(nn.Module):
    """Eq. 6, a layer: each feature map is a linear map of all products of a field's vector and a map before it."""

    def __init__(self, products: int, maps: int):
        super().__init__()
        self.weight = xavier(nn.Linear(products, maps, bias=False)).weight

    def forward(self, first: Float[Tensor, "B F E"], maps: Float[Tensor, "B H E"]) -> Float[Tensor, "B G E"]:
        return interact(first, maps, self.weight)


def interact(
    first: Float[Tensor, "B F E"], maps: Float[Tensor, "B H E"], weight: Float[Tensor, "G FH"]
) -> Float[Tensor, "B G E"]:
    """One CIN layer; `weight[g, f * H + h]` is that of field f with map h."""
    outer = (first[:, :, None] * maps[:, None]).flatten(1, 2)
    return weight @ outer


def interact_reference(
    first: Float[Tensor, "B F E"], maps: Float[Tensor, "B H E"], weight: Float[Tensor, "G FH"]
) -> Float[Tensor, "B G E"]:
    """`interact`, pair by pair."""
    out = first.new_zeros(len(first), len(weight), first.shape[-1])
    for g in range(len(weight)):
        for f in range(first.shape[1]):
            for h in range(maps.shape[1]):
                out[:, g] = out[:, g] + weight[g, f * maps.shape[1] + h] * first[:, f] * maps[:, h]
    return out
