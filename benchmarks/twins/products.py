"""The floor under any exact softmax over a catalogue: its three matrix products and nothing else, in fp32.

Scores = X W^T, dX = G W and dW = G^T X, with the scores standing in for their gradient G (its values cost no time).
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


class Products:
    """The products of M queries, `chunk` rows at a time, in buffers that are made once."""

    def __init__(self, queries: int, items: int, dim: int, chunk: int):
        draw = torch.Generator().manual_seed(0)
        self.x = torch.randn(queries, dim, generator=draw)
        self.w = torch.randn(items, dim, generator=draw)
        self.dx, self.dw = torch.empty(queries, dim), torch.empty(items, dim)
        self.scores = torch.empty(min(chunk, queries), items)

    def run(self) -> tuple[Float[Tensor, "M D"], Float[Tensor, "V D"]]:
        self.dw.zero_()
        rows = len(self.scores)
        for low in range(0, len(self.x), rows):
            part = self.x[low : low + rows]
            scores = torch.mm(part, self.w.T, out=self.scores[: len(part)])
            torch.mm(scores, self.w, out=self.dx[low : low + rows])
            self.dw.addmm_(scores.T, part)
        return self.dx, self.dw
