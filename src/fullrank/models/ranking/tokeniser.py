"""Field vectors -> T tokens of width D: as they lie, chunk by chunk, or all from all (RankElastor's code).

[B, F, E] is flattened to F E numbers and normalised (RMSNorm over all of them), then

    none    read as [T, D]; needs F E = T D. The paper's shapes are such plain reshapes (15 x 26 = 39 fields x 10).
    matrix  cut into T chunks, one perceptron (500 hidden, ReLU, dropout) shared by all of them -> D. A chunk may begin
            in the middle of a field.
    vector  one perceptron (800 hidden) on the whole vector -> T D.
"""

from __future__ import annotations

from typing import Literal

import torch.nn.functional as F
from jaxtyping import Float
from pydantic import Field, model_validator
from torch import Tensor, nn

from fullrank.core.errors import UserError
from fullrank.core.spec import Spec
from fullrank.models.ranking.deep import xavier
from fullrank.models.ranking.size import of_linear

HIDDEN = {"matrix": 500, "vector": 800}
DROPOUT = 0.1


class Tokeniser(Spec):
    """Fields to tokens."""

    mode: Literal["none", "matrix", "vector"] = "matrix"
    """Plain reshape, one perceptron for every chunk, or one for everything."""
    hidden: int | None = Field(None, ge=1)
    """Hidden width of the perceptron; null takes 500 (matrix) or 800 (vector)."""
    dropout: float | None = Field(None, ge=0, lt=1)
    """Share of hidden units dropped in training; null is 0.1."""
    norm: bool = True
    """RMSNorm of the flattened fields, before anything else."""
    hidden_norm: bool | None = None
    """RMSNorm of the hidden layer; null is off."""

    @model_validator(mode="after")
    def _every_setting_has_an_effect(self) -> Tokeniser:
        for name in ("hidden", "dropout", "hidden_norm"):
            if self.mode == "none" and getattr(self, name) is not None:
                raise ValueError(f"{name} has no effect with mode=none, which has no perceptron: leave it out")
        return self

    def build(self, inputs: int, tokens: int, width: int) -> Tokens:
        if self.mode == "none" and inputs != tokens * width:
            raise UserError(
                f"tokeniser mode=none reshapes {inputs} numbers (fields x embedding.dim) and cannot make {tokens} x "
                f"{width} of them: set tokens and width to factors of {inputs}, or use mode=matrix or vector"
            )
        if self.mode == "matrix" and inputs % tokens:
            fitting = [n for n in range(2, 65) if inputs % n == 0]
            raise UserError(
                f"tokeniser mode=matrix cuts {inputs} numbers (fields x embedding.dim) into equal chunks and {tokens} "
                f"tokens do not divide them: set tokens to one of {fitting}, or use mode=vector"
            )
        return Tokens(inputs, tokens, width, self)


class Tokens(nn.Module):
    """[B, F, E] -> [B, T, D]."""

    def __init__(self, inputs: int, tokens: int, width: int, spec: Tokeniser):
        super().__init__()
        self.tokens, self.width = tokens, width
        self.norm = nn.RMSNorm(inputs, eps=1e-12) if spec.norm else None
        self.chunks = {"none": 0, "matrix": tokens, "vector": 1}[spec.mode]
        if self.chunks:
            hidden = spec.hidden or HIDDEN[spec.mode]
            self.up = xavier(nn.Linear(inputs // self.chunks, hidden))
            self.hidden_norm = nn.RMSNorm(hidden, eps=1e-12) if spec.hidden_norm else None
            self.down = xavier(nn.Linear(hidden, tokens * width // self.chunks))
        self.dropout = DROPOUT if spec.dropout is None else spec.dropout

    def forward(self, fields: Float[Tensor, "B F E"]) -> Float[Tensor, "B T D"]:
        x = fields.flatten(1)
        if self.norm is not None:
            x = self.norm(x)
        if self.chunks:
            x = self.up(x.unflatten(1, (self.chunks, -1)))
            x = F.relu(x if self.hidden_norm is None else self.hidden_norm(x))
            if self.dropout and self.training:
                x = F.dropout(x, self.dropout)
            x = self.down(x)
        return x.reshape(-1, self.tokens, self.width)

    def flops(self) -> int:
        return of_linear(self.up, self.chunks) + of_linear(self.down, self.chunks) if self.chunks else 0
