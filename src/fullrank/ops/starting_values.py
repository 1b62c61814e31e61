"""Starting values of a sequential model: N(0, 0.02) for matrices and tables, zero biases (BERT, arXiv:1810.04805).

All of our papers start so. 0.02 belongs to the width of their models, 256 to 512. Behind a norm a
projection's entries have the standard deviation sqrt(d) std, and an attention score, q . k /
sqrt(e), has d std^2: .20 at d = 512, .05 at 128. Softmax attention hardly notices, it starts as the
mean either way; what is made of the difference of two maps, or of two streams that open apart by
such a vector, starts that much smaller. `start_by_width` has N(0, 0.02 sqrt(512 / d)) instead:
scores, projections and the lengths of vectors are at every width what they are at d = 512.

A parameter is marked when it is started here, so that one pass over a finished model finds every
one of them, in whichever room. The pass multiplies what was drawn: one seed gives the same draws
under both, and without it no bit moves. Not marked, because width has no say: HSTU's biases of
distance and time, which are added to scores.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

STD = 0.02
"""Standard deviation of what starts small."""
WIDTH = 512
"""The width at which both starts agree: FAIR's."""
MARK = "_started_small"
"""Attribute of a parameter that was started here."""
GROUP = 16
"""Numbers that torch draws together on the CPU."""
PIECE = GROUP << 18
"""Numbers of a table that are drawn at once, where most are dropped again: 16 MB."""


def small(*shape: int, std: float = STD) -> nn.Parameter:
    """A parameter that starts small."""
    parameter = nn.Parameter(torch.randn(*shape) * std)
    setattr(parameter, MARK, True)
    return parameter


def normal_rows(size: int, width: int, low: int, high: int, std: float, piece: int = PIECE) -> Tensor:
    """Rows low .. high - 1 of ``torch.empty(size, width).normal_(0, std)``, without the others ever existing at once.

    Bit for bit, and the generator ends where it would: torch draws in groups of 16 numbers, so
    pieces are a multiple of that, and the last has at least as many.
    """
    total, first, last = size * width, low * width, high * width
    rows, at = torch.empty(last - first), 0
    while at < total:
        end = total if total - at < piece + GROUP else at + piece
        drawn = torch.empty(end - at).normal_(0.0, std)
        left, right = max(at, first), min(end, last)
        if left < right:
            rows[left - first : right - first] = drawn[left - at : right - at]
        at = end
    return rows.view(high - low, width)


def start_small(module: nn.Module) -> None:
    """Draw the linear layers and tables directly in this module."""
    for part in module.children():
        if isinstance(part, nn.Linear | nn.Embedding):
            nn.init.normal_(part.weight, std=STD)
            setattr(part.weight, MARK, True)
        if isinstance(part, nn.Linear) and part.bias is not None:
            nn.init.zeros_(part.bias)


def start_otherwise(parameter: Tensor) -> None:
    """Take the mark back from a parameter that `start_small` drew and its module then
    starts in a way of its own."""
    parameter.__dict__.pop(MARK, None)


@torch.no_grad()
def start_by_width(module: nn.Module, dim: int) -> None:
    """Scale every parameter below this module that was started small to N(0, 0.02 sqrt(512 / dim)), each once."""
    for parameter in module.parameters():
        if parameter.__dict__.pop(MARK, False):
            parameter.mul_((WIDTH / dim) ** 0.5)
