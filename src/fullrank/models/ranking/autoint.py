"""AutoInt: fields attend to fields (Song et al., CIKM 2019, arXiv:1810.11921).

    a^h = softmax_g(<W_Q^h v_f, W_K^h v_g>),  v'_f = ReLU([sum_g a^h_fg W_V^h v_g]_h + W_Res v_f)     (Eqs. 5 to 8)
    logit = w . [v'_1; ...; v'_F]  (+ MLP: AutoInt+)  (+ linear: `wide`)

Differs: as FuxiCTR offers, `residual_map` may leave W_Res out where a layer keeps the width,
`scale` divides the scores by sqrt(width of a head) and `norm` puts a LayerNorm behind the residual;
all are off, as in the paper.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from pydantic import model_validator
from torch import Tensor, nn

from fullrank.core.checks import divided
from fullrank.core.constraints import DropoutRate, Parts, Width, only_with
from fullrank.core.spec import later
from fullrank.models.ranking import Fields, FieldTokens, Ranker, RankerOutput, RankerSpec, require_fields_to_cross
from fullrank.models.ranking.dnn import Deep, xavier
from fullrank.ops.dropout import drop


class AutoInt(RankerSpec):
    """Self-attention over the fields."""

    kind: Literal["autoint"] = "autoint"
    layers: Parts = 3
    """Attention layers."""
    width: Width = 64
    """Width of a field after each layer, over all heads."""
    heads: Parts = 2
    """Heads; the width must divide by them."""
    residual: bool = True
    """Add a linear map of the layer's input."""
    residual_map: Annotated[Literal["always", "as_needed"], only_with("residual")] = later("always")
    """Map the input in every layer (Eq. 7), or add it as it is where it has the layer's width, as FuxiCTR does."""
    norm: bool = False
    """LayerNorm behind the residual, before the ReLU."""
    scale: bool = False
    """Divide scores by the square root of a head's width."""
    dropout: DropoutRate = 0.0
    """Share of attention weights dropped in training."""
    wide: bool = False
    """Add the linear part."""
    deep: Deep = Deep(hidden=())
    """Perceptron beside the attention (AutoInt+); none by default."""

    @model_validator(mode="after")
    def _divides(self) -> AutoInt:
        divided(self.width, self.heads, "autoint: the width", "heads")
        return self

    @property
    def reads(self) -> frozenset[str]:
        return frozenset({"tokens", "linear"} if self.wide else {"tokens"})

    def build(self, fields: Fields, dim: int) -> AutoIntRanker:
        require_fields_to_cross(fields, "autoint")
        return AutoIntRanker(len(fields), dim, self)


class AutoIntRanker(Ranker):
    flop_parts = {"layers.*": "attention_*", "deep": "deep", "": "head"}

    def __init__(self, fields: int, dim: int, spec: AutoInt):
        super().__init__()
        self.fields = fields
        widths = [dim] + [spec.width] * spec.layers
        self.layers = nn.ModuleList(FieldAttention(width, spec) for width in widths[:-1])
        self.head = xavier(nn.Linear(fields * spec.width, 1))
        self.deep = spec.deep.build(fields * dim) if spec.deep.hidden else None
        self.deep_head = xavier(nn.Linear(self.deep.out, 1, bias=False)) if self.deep is not None else None

    def forward(self, x: FieldTokens) -> RankerOutput:
        outputs, tokens = x.layer_outputs(), x.tokens
        for number, layer in enumerate(self.layers):
            tokens = layer(tokens)
            outputs(f"attention_{number}", tokens)
        logits = self.head(tokens.flatten(1)).squeeze(-1)
        if self.deep is not None and self.deep_head is not None:
            logits = logits + self.deep_head(self.deep(x.tokens.flatten(1))).squeeze(-1)
        return RankerOutput(logits if x.linear is None else logits + x.linear, outputs)


class FieldAttention(nn.Module):
    """An attention layer over the fields (Eqs. 5 to 8)."""

    def __init__(self, dim: int, spec: AutoInt):
        super().__init__()
        self.heads, self.dropout = spec.heads, spec.dropout
        self.scale = (spec.width // spec.heads) ** -0.5 if spec.scale else 1.0
        mapped = spec.residual and (spec.residual_map == "always" or dim != spec.width)
        maps = [nn.Linear(dim, spec.width, bias=False) for _ in range(4 if mapped else 3)]
        for linear in maps:
            xavier(linear)
        self.query, self.key, self.value = maps[:3]
        self.residual = (maps[3] if mapped else nn.Identity()) if spec.residual else None
        self.norm = nn.LayerNorm(spec.width) if spec.norm else None

    def forward(self, x: Float[Tensor, "B F D"]) -> Float[Tensor, "B F W"]:
        maps = (self.query, self.key, self.value)
        q, k, v = (linear(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for linear in maps)
        shares = torch.softmax(q @ k.mT * self.scale, -1)
        if self.dropout and self.training:
            shares = drop(shares, self.dropout)
        out = (shares @ v).transpose(1, 2).flatten(2)
        if self.residual is not None:
            out = out + self.residual(x)
        return F.relu(out if self.norm is None else self.norm(out))
