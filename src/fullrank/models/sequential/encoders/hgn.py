"""HGN: gates on features and on events, and products of items with items (Ma, Kang & Liu, KDD 2019, arXiv:1906.09217).

With x_k the vectors of the last `window` events:

    feature gate    g_k = x_k * sigmoid(W x_k + b)
    instance gate   a_k = sigmoid(w . g_k + c_k)
    state           sum_k a_k g_k / sum_k a_k  +  sum_k x_k

The second sum scores an item by its products with the events themselves.

Differs: no vector of the user. In the paper it adds to both gates, of which b and c stay, and
to the state. In place of the second table of items that the paper scores with there is a
linear map of the state (`projection`), which begins as the identity: with one table and no
map, item a would score item b exactly as b scores a. Every position of a history is a window
of its own and predicts the next item, where a window of the authors predicts T. What lies
before the first event adds nothing.
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from fullrank.core.constraints import DropoutRate, Parts
from fullrank.models.sequential.encoders import EncoderSpec
from fullrank.models.sequential.encoders.windows import WindowEncoder
from fullrank.ops.dropout import Dropout
from fullrank.ops.starting_values import small, start_small


class HGN(EncoderSpec):
    """Gates on features and events of the last few events."""

    kind: Literal["hgn"] = "hgn"
    window: Parts = 5
    """L: events that are read."""
    products: bool = True
    """Add the sum of the events' own vectors, which scores an item by its products with them."""
    projection: bool = True
    """Map the state linearly before items are scored with it."""
    dropout: DropoutRate = 0.0
    """Dropout on the vectors that are read (none in the paper)."""

    def build(self, dim: int, max_length: int) -> HGNEncoder:
        return HGNEncoder(dim, self)


class HGNEncoder(WindowEncoder):
    flop_parts = {"features": "gates", "events": "gates", "projection": "projections"}

    def __init__(self, dim: int, spec: HGN):
        super().__init__(dim, spec.window)
        self.features, self.events = nn.Linear(dim, dim), nn.Linear(dim, 1, bias=False)
        self.places = small(spec.window)
        self.products, self.drop = spec.products, Dropout(spec.dropout)
        start_small(self)
        self.projection = nn.Linear(dim, dim, bias=False) if spec.projection else nn.Identity()
        if isinstance(self.projection, nn.Linear):
            nn.init.eye_(self.projection.weight)

    def read(self, x: Float[Tensor, "B n D"], known: Bool[Tensor, "B n"]) -> Float[Tensor, "B T D"]:
        x = self.drop(x)
        gated = x * self.features(x).sigmoid()
        # windows: [B, T, window] of scores, [B, T, D, window] of vectors
        score = self.events(gated)[..., 0].unfold(1, self.window, 1)
        score = (score + self.places).sigmoid() * known.unfold(1, self.window, 1)
        weighted = (gated.unfold(1, self.window, 1) * score[:, :, None]).sum(-1)
        # a window holds its own event at least, and a sigmoid that underflows must not divide by
        # zero
        state = weighted / score.sum(-1, keepdim=True).clamp_min(torch.finfo(score.dtype).tiny)
        return self.projection(state + x.unfold(1, self.window, 1).sum(-1) if self.products else state)
