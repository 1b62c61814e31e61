"""The multi-layer perceptron that most rankers have beside their own idea (the deep part): settings and layers."""

from __future__ import annotations

from jaxtyping import Float
from pydantic import Field, model_validator
from torch import Tensor, nn

from fullrank.core.bounds import MOST_PARTS, Width
from fullrank.core.errors import UserError
from fullrank.core.spec import Spec


class Deep(Spec):
    """Hidden layers: Linear, batch norm if asked for, ReLU, dropout."""

    hidden: tuple[Width, ...] = Field((400, 400, 400), max_length=MOST_PARTS)
    """Widths of the hidden layers; empty leaves the perceptron out."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Share of hidden units dropped in training."""
    batch_norm: bool = False
    """Normalise each hidden unit over the batch, before its ReLU."""

    @model_validator(mode="after")
    def _every_setting_has_an_effect(self) -> Deep:
        if any(width < 1 for width in self.hidden):
            raise UserError(f"hidden: widths of at least 1, not {list(self.hidden)}", code="invalid-width")
        if not self.hidden and (self.dropout or self.batch_norm):
            raise UserError(
                "dropout and batch_norm have no effect without hidden layers: leave them out",
                code="setting-without-effect",
            )
        return self

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
            self.layers.append(nn.ReLU(inplace=True))
            if spec.dropout:
                self.layers.append(nn.Dropout(spec.dropout))
            width = hidden
        self.out = width

    def forward(self, x: Float[Tensor, "B W"]) -> Float[Tensor, "B H"]:
        out: Tensor = self.layers(x)
        return out


def xavier(linear: nn.Linear) -> nn.Linear:
    """Starting values of all linear layers of rankers (FuxiCTR): Xavier-normal weights, zero biases."""
    nn.init.xavier_normal_(linear.weight)
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)
    return linear
