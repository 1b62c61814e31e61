"""GLU-improved per-token FFN (RankElastor, Sec. 3.2, Eq. 4), alone or as the authors' code builds a block of it.

Claim: a gate multiplies coordinates, so that a token's network no longer shrinks the
effective rank (Theorem 3.2).

    glu(M)  = (GELU(M W1) * (M W2)) W3 + M W_r,   W1, W2 in R^{D x rD}, W3 in R^{rD x D}, W_r in R^{D x D}      (Eq. 4)
    unit(M) = dropout(glu'(RMSNorm(M)) W_h),  glu'(M) = ((M W_s + GELU(M W1)) * (M W2)) W3 + M W_r
    Z       = unit_n(...unit_1(M)) W_c + M                                                          (the authors' code)

The defaults are Eq. 4 with a norm before it. The code's pieces are settings, and `AUTHORS_BLOCK`
has them: the linear skip W_s inside the gate (`inner_skip`), the closing map W_c (`closing`), the
input itself (`outer_skip`), and several units one behind the other (`hidden`), with a map W_h where
the next one has another width.

Differs: every map but W_r and W_s has a bias (the paper omits biases "for clarity", the code has
them on these two as well), the gain of a norm is shared by the tokens, and W3 is there with
`expansion` 1 too, where the code has none.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from fullrank.core.constraints import DropoutRate, Expansion, Widths
from fullrank.core.errors import UserError
from fullrank.core.spec import later
from fullrank.models.ranking.feed_forwards import FeedForward, FeedForwardSpec, TokensAndTerms
from fullrank.ops.dropout import drop
from fullrank.ops.ranking_layers import affine, biases, per_token, stack_of


class Glu(FeedForwardSpec):
    """RankElastor's per-token FFN."""

    kind: Literal["glu"] = "glu"
    expansion: Expansion = 3.0
    """r: hidden width of a unit as a multiple of the width that it reads."""
    norm: bool = True
    """RMSNorm of the input of all maps of a unit."""
    bias: bool = True
    """Biases on W1, W2, W3, and on the maps between and behind units."""
    inner_skip: bool = False
    """A linear map of the token beside GELU, inside the gate (the code)."""
    outer_skip: bool = False
    """The input itself added to the output, beside W_r (the code)."""
    hidden: Widths = later(())
    """Units one behind the other (the code): the width that each leaves; empty is one unit of the token's width."""
    closing: bool = later(False)
    """A linear map to the token's width behind the last unit (the code)."""
    dropout: DropoutRate = later(0.0)
    """Share of each unit's outputs dropped in training (the code)."""

    def build(self, tokens: int, width: int) -> GluFeedForward:
        if self.hidden and self.hidden[-1] != width and not self.closing:
            raise UserError(
                f"the last unit leaves a width of {self.hidden[-1]} and a token has {width}: set closing=true, or end "
                f"hidden={list(self.hidden)} with {width}",
                code="invalid-width",
            )
        return GluFeedForward(tokens, width, self)


AUTHORS_BLOCK = Glu(inner_skip=True, outer_skip=True, closing=True)
"""The block of the authors' code, with one unit of the token's width as in its configurations for Avazu; for Criteo it
takes two, `hidden=(64, 64)`, which have many times the weights."""


class GatedUnit(nn.Module):
    """RMSNorm, Eq. 4, and a linear map where the unit leaves another width than it reads."""

    def __init__(self, tokens: int, width: int, out: int, spec: Glu):
        super().__init__()
        hidden = max(1, round(spec.expansion * width))
        self.norm = nn.RMSNorm(width) if spec.norm else None
        self.gate, self.value = stack_of(tokens, width, hidden), stack_of(tokens, width, hidden)
        self.down, self.residual = stack_of(tokens, hidden, width), stack_of(tokens, width, width)
        self.skip = stack_of(tokens, width, hidden) if spec.inner_skip else None
        widths = (hidden, hidden, width) if spec.bias else ()
        self.biases = nn.ParameterList(biases(tokens, size) for size in widths)
        self.turn = _map(tokens, width, out, spec.bias) if out != width else None

    def unit(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T H"]:
        """The unit's output: tokens of the width that it leaves."""
        inner = x if self.norm is None else self.norm(x)
        weights = [self.gate, self.value, self.down, self.residual, *self.biases]
        if self.skip is None:
            out = per_token(gated, inner, weights)
        else:
            out = per_token(gated_with_skip, inner, [self.skip, *weights])
        return out if self.turn is None else per_token(mapped, out, list(self.turn))

    @property
    def last(self) -> nn.Parameter:
        """The matrix of the map that ends the unit, W_r apart."""
        last: nn.Parameter = self.down if self.turn is None else self.turn[0]
        return last


class GluFeedForward(GatedUnit, FeedForward):
    """The first unit is the module itself: its parameters keep the names of weights saved when it was the only one."""

    def __init__(self, tokens: int, width: int, spec: Glu):
        first, *others = spec.hidden or (width,)
        super().__init__(tokens, width, first, spec)
        pairs = zip((first, *others), others, strict=False)
        self.further = nn.ModuleList(GatedUnit(tokens, inner, outer, spec) for inner, outer in pairs)
        self.closing = _map(tokens, [first, *others][-1], width, spec.bias) if spec.closing else None
        self.outer_skip, self.dropout = spec.outer_skip, spec.dropout

    @property
    def units(self) -> tuple[GatedUnit, ...]:
        return (self, *self.further)

    def forward(self, x: Float[Tensor, "B T D"]) -> TokensAndTerms:
        out = x
        for unit in self.units:
            out = unit.unit(out)
            if self.dropout and self.training:
                out = drop(out, self.dropout)
        if self.closing is not None:
            out = per_token(mapped, out, list(self.closing))
        return out + x if self.outer_skip else out, {}

    def start_near_identity(self, blocks: int) -> None:
        """Start W_r as I, which opens a path, and divide what is added to that path by sqrt(2 blocks)."""
        if not self.outer_skip and (self.closing is not None or any(unit.turn is not None for unit in self.units)):
            raise UserError(
                "initial=identity needs a way past the random maps of a block: set feed_forward.outer_skip=true, or "
                "leave out feed_forward.closing and other widths in feed_forward.hidden",
                code="no-identity-path",
            )
        with torch.no_grad():
            for unit in self.units:
                unit.residual.copy_(torch.eye(unit.residual.shape[-1]))
            for last in [unit.last for unit in self.units] if self.closing is None else [self.closing[0]]:
                last.div_((2 * blocks) ** 0.5)


def _map(tokens: int, inner: int, outer: int, bias: bool) -> nn.ParameterList:
    """A matrix per token, and a bias if asked for."""
    return nn.ParameterList([stack_of(tokens, inner, outer), *([biases(tokens, outer)] if bias else [])])


def mapped(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """A linear map of one token (or of all)."""
    return affine(x, weight, bias)


def gated(x: Tensor, gate: Tensor, value: Tensor, down: Tensor, residual: Tensor, *bias: Tensor) -> Tensor:
    """Eq. 4 for one token (or for all)."""
    of_gate, of_value, of_down = bias or (None, None, None)
    return affine(F.gelu(affine(x, gate, of_gate)) * affine(x, value, of_value), down, of_down) + x @ residual


def gated_with_skip(
    x: Tensor, skip: Tensor, gate: Tensor, value: Tensor, down: Tensor, residual: Tensor, *bias: Tensor
) -> Tensor:
    """`gated` with a linear skip inside the gate (the authors' code)."""
    of_gate, of_value, of_down = bias or (None, None, None)
    lifted = x @ skip + F.gelu(affine(x, gate, of_gate))
    return affine(lifted * affine(x, value, of_value), down, of_down) + x @ residual
