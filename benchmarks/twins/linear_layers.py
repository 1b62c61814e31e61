"""The floor under a training step of linear layers: their three matrix products and nothing else, in fp32.

Of a layer with weights W on rows X: Y = X W^T, dX = G W and dW = G^T X, with Y standing in for its gradient G (its
values cost no time). A layer on the rows of T tokens is a layer on T times as many rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor


class LinearLayers:
    """The products of `rows` rows through layers of (inner, outer) widths, in buffers that are made once."""

    def __init__(self, rows: int, shapes: Sequence[tuple[int, int]]):
        draw = torch.Generator().manual_seed(0)
        self.x = [torch.randn(rows, inner, generator=draw) for inner, _ in shapes]
        self.w = [torch.randn(outer, inner, generator=draw) for inner, outer in shapes]
        self.y = [torch.empty(rows, outer) for _, outer in shapes]
        self.dx, self.dw = [torch.empty_like(x) for x in self.x], [torch.empty_like(w) for w in self.w]

    def run(self) -> tuple[list[Float[Tensor, "B I"]], list[Float[Tensor, "O I"]]]:
        for x, w, y in zip(self.x, self.w, self.y, strict=True):
            torch.mm(x, w.T, out=y)
        for x, w, y, dx, dw in zip(self.x, self.w, self.y, self.dx, self.dw, strict=True):
            torch.mm(y, w, out=dx)
            torch.mm(y.T, x, out=dw)
        return self.dx, self.dw


def shapes_of(model: torch.nn.Module) -> list[tuple[int, int]]:
    """(inner, outer) of every linear layer of a model."""
    linear = [m for m in model.modules() if isinstance(m, torch.nn.Linear)]
    return [(one.in_features, one.out_features) for one in linear]
